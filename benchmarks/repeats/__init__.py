"""Measured runs of other people, repeated on the null GPU: one module a source, all with one command."""
