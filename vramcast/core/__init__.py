"""Utilities for every layer: errors, units, text, files, and checks of external values. Standard library only."""
