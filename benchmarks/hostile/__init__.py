"""Hostile inputs by kind: errors of people, data, and machines, and vramcast's reactions.

`case.py` defines a case and a verdict, `command.py` runs the command line and checks the result. Each other module is a group
of kinds and has `cases(folder) -> Iterable[Case]`; `__main__.py` runs them all and prints the table.
"""
