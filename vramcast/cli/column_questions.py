"""Questions about a table's columns, on a terminal only."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from vramcast.cli.streams import say
from vramcast.cli.terminal import is_interactive
from vramcast.datasets.histories import column_names, plain_csv

_UNITS = ("mib", "gib", "bytes")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add --columns."""
    parser.add_argument(
        "--columns",
        metavar="FIELD=COLUMN,...",
        help="for tables with columns of other names: 'peak_mib=Max Mem,model=Net', or a .json file of such pairs",
    )


def answered(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return a person's choice of columns for a table in which a required one is not recognized; {} for any other table.

    Without a terminal nothing is asked, and the reader names what is missing.
    """
    if not is_interactive():
        return {}
    columns, rows = plain_csv.beginning(path)
    if not columns.missing:
        return {}
    say(f"{os.fspath(path)} has columns of other names: {', '.join(columns.ignored)}")
    suggested = column_names.suggested(columns, rows)
    answers: dict[str, str] = {}
    wanted = {"name": "model", "peak": "peak"}
    fields = [wanted[one] for one in columns.missing] + [
        one for one in suggested if one not in ("model",) and one[:4] != "peak"
    ]
    for field in fields:
        name = next((one for one in suggested if one.partition("_")[0] == field), field)
        answer = _asked(f"column of the {field}", suggested.get(name, ""), columns.ignored)
        if answer:
            answers[_with_unit(answer, rows) if field == "peak" else field] = answer
    say(f"to answer the same without questions: {column_names.line_of(answers)}")
    return answers


def _with_unit(column: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return the field of a peak with the unit that a person confirms, if the column does not name one."""
    unit = column_names.guessed_unit(column, [row[column] for row in rows])
    return f"peak_{_asked(f'unit of {column}', unit, _UNITS) or unit}" if unit else "peak"


def _asked(what: str, default: str, known: list[str] | tuple[str, ...]) -> str:
    """Return a person's answer: Enter takes the default, '-' nothing."""
    while True:
        say(f"{what}{f' [{default}]' if default else ''} ('-' for none): ", end="")
        line = sys.stdin.readline()
        answer = line.strip() or default
        if not line or answer == "-":
            return ""
        if answer in known:
            return answer
        say(f"'{answer}' is none of {', '.join(known)}")
