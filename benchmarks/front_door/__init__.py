"""Answers to the first questions of a new user: models by their names alone, and typical mistakes."""
