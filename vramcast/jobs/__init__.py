"""Jobs as plain data: models and commands, their ranks, and the parsers of their text."""
