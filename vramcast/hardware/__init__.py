"""Cards: their numbers, names and measured contexts."""
