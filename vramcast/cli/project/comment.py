"""A comparison as lines of text, and as Markdown for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.cli.project.comparison import ProjectComparison
from vramcast.core.text import SHOWN, one_line
from vramcast.core.units import gib
from vramcast.estimates.bounds.support import jobs_below
from vramcast.estimates.verdict import EXIT_CODES

# The first line, by which an action finds its own comment again.
MARKER: Final = "<!-- vramcast -->"
_LONGEST_REASON: Final = 300  # arbitrary: characters of the reason for a missing estimate
_UNKNOWN: Final = "-"
_MARKDOWN: Final = re.compile(r"[^\w./-]")
_WORDS: Final = {0: "fit", 1: "does not fit", 2: "has a wrong table", 3: "cannot be estimated", 4: "is uncertain"}


def as_text(comparison: ProjectComparison) -> str:
    """Return aligned columns, with the remarks below them."""
    header, rows = _header(comparison), _rows(comparison)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    # Names and verdicts are left-aligned, numbers right-aligned; the last column is not padded.
    lines = [
        f"{row[0]:<{widths[0]}}  "
        + "".join(f"{cell:>{width}}  " for cell, width in zip(row[2:-1], widths[2:-1], strict=True))
        + f"{row[1]:<{widths[1]}}  {row[-1]}"
        for row in [header, *rows]
    ]
    return "\n".join([*lines, *(one_line(remark, _LONGEST_REASON) for remark in comparison.remarks)])


def as_markdown(comparison: ProjectComparison) -> str:
    """Return a heading, a table with a row for each job, and the remarks.

    The job's own words are set as code, so that an untrusted branch can neither mention people nor inject HTML.
    """
    header, rows = _header(comparison), _rows(comparison)
    lines = [
        MARKER,
        f"### GPU memory: {_summary(comparison)}",
        "",
        _line(header),
        "|---|---|" + "---:|" * (len(header) - 3) + "---|",
        *(_line([_code(row[0]), _code(row[1]), *row[2:-1], _verdict(row[-1])]) for row in rows),
        "",
        *(f"- {_code(one_line(remark, _LONGEST_REASON))}" for remark in comparison.remarks),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _summary(comparison: ProjectComparison) -> str:
    codes = [job.exit_code for job in comparison.found.jobs.values()]
    bad = [f"{codes.count(code)} {words}" for code, words in _WORDS.items() if code and code in codes]
    if not bad:
        return f"{len(codes)} of {len(codes)} jobs fit"
    return f"{', '.join(bad)}, of {len(codes)} job{'' if len(codes) == 1 else 's'}"


def _header(comparison: ProjectComparison) -> list[str]:
    # A revision can have almost any name; Markdown characters in it become question marks.
    since = [f"since {_MARKDOWN.sub('?', comparison.base.name)}"] if comparison.base is not None else []
    return ["job", "card", "process peak", *since, "upper bound", "card has", "verdict"]


def _rows(comparison: ProjectComparison) -> list[list[str]]:
    rows = []
    for name, job in comparison.found.jobs.items():
        estimate = job.estimate
        sizes, card = [_UNKNOWN] * 3, one_line(_asked_card(job.asked), SHOWN)
        if estimate is not None:
            bound = estimate["upper_bound"]
            sizes = [
                gib(estimate["peaks"]["process"]),
                f"{gib(bound['bytes'])} for {jobs_below(bound['level'])}",
                gib(estimate["memory_bytes"]),
            ]
            card = estimate["device"]
        since = [_change(comparison, name)] if comparison.base is not None else []
        rows.append([one_line(name, SHOWN), card, sizes[0], *since, *sizes[1:], one_line(job.verdict, _LONGEST_REASON)])
    return rows


def _asked_card(asked: Mapping[str, Any]) -> str:
    """Return the card of a job's table; of two the last one counts, as on the command line."""
    cards = [value for key, value in asked.items() if key in ("device", "on")]
    return str(cards[-1]) if cards else _UNKNOWN


def _change(comparison: ProjectComparison, name: str) -> str:
    change = comparison.change_bytes(name)
    if change is None:
        return "new" if comparison.before(name) is None and not _is_blind(comparison) else "unknown"
    return f"{'+' if change > 0 else ''}{gib(change)}" if change else "no change"


def _is_blind(comparison: ProjectComparison) -> bool:
    return comparison.base is not None and comparison.base.outcomes is None


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _verdict(words: str) -> str:
    """Return one of our verdicts as it is, and text that may hold a job's own words as code."""
    return words if words in EXIT_CODES else _code(words)


def _code(text: str) -> str:
    """Return text as inline code on one line of a table, with no Markdown in it."""
    quoted = text.replace("`", "'").replace("|", "\\|")
    return f"`{quoted}`" if quoted else _UNKNOWN
