"""Integrations with libraries that train, and with pytest."""
