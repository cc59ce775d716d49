"""What every other package builds on, and what imports nothing of them."""
