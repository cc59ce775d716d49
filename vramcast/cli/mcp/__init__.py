"""The verbs as tools for coding agents."""
