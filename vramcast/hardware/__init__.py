"""Cards: what one is, which there are, and what was measured on them."""
