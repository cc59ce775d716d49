"""Axes of a job, such as its batch, and the search for the largest value on one that fits a card."""
