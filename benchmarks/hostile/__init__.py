"""Hostile inputs, by kind: what people, data and machines can do wrong, and how vramcast takes it.

`case.py` says what a case and a verdict are, `command.py` runs the command line and judges how it ended. Each other module is
a group of kinds and has `cases(folder) -> Iterable[Case]`; `__main__.py` runs them all and prints the table.
"""
