"""Plans that lower a job's memory: pools, swaps, and mixes of all tools."""
