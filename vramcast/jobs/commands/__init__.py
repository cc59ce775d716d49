"""Parsers of training commands: the program, and the ranks that its launcher starts."""
