"""`vramcast check` without TARGET and COMMAND: the jobs which the current folder's pyproject.toml names."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vramcast.cli import job_table
from vramcast.cli.checked_job import CheckedJob
from vramcast.cli.project.comment import as_markdown, as_text
from vramcast.cli.project.comparison import Base, Comparison
from vramcast.cli.project.outcomes import Outcome, Outcomes, load
from vramcast.cli.project.pyproject import read_jobs
from vramcast.cli.project.revision import checked_out
from vramcast.cli.streams import answer
from vramcast.core.errors import CannotEstimate, UsageError, VramcastError
from vramcast.core.files import atomic_write
from vramcast.estimates.verdict import verdict_of

_OF_ALL = ("markdown", "results", "base", "against")  # options of the whole, which one job alone does not have
_OF_ONE = ("snapshot", "plot", "report", "what_if", "cards", "fragmentation")  # options of one job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a check of all jobs."""
    said = "for the jobs of pyproject.toml: "
    parser.add_argument("--markdown", metavar="FILE", help=f"{said}write a table for a comment; '-': on stdout, for the text")
    parser.add_argument("--results", metavar="FILE", help=f"{said}write what was found as JSON, for --base")
    parser.add_argument("--base", metavar="FILE", help=f"{said}compare with what another check has written with --results")
    parser.add_argument(
        "--against", metavar="REV", help=f"{said}compare with a git revision, checked out in a temporary folder"
    )


def refuse(options: argparse.Namespace) -> None:
    """Raise where one job is checked, and an option is of all jobs.

    Raises:
        UsageError: the message names it.
    """
    for name in _OF_ALL:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for the jobs of pyproject.toml: leave it out, or leave out TARGET and COMMAND.")


def main(options: argparse.Namespace) -> int:
    """Check all jobs; return the worst exit code."""
    jobs = read_jobs(Path())
    if jobs is None:
        raise UsageError(
            "What shall be checked? Write vramcast check TARGET ..., or vramcast check ... -- train.py args; or name jobs in "
            "[tool.vramcast] of a pyproject.toml in this folder (docs/ci-gate.md)."
        )
    given = job_table.described(options) + [f"--{name.replace('_', '-')}" for name in _OF_ONE if getattr(options, name)]
    if given:
        raise UsageError(f"{', '.join(given)}: the jobs of pyproject.toml say so themselves: leave it out, or give a TARGET.")
    if options.base is not None and options.against is not None:
        raise UsageError("--base and --against: give one of them.")
    if options.json and options.markdown == "-":
        raise UsageError("--json and --markdown -: both go to stdout: give one of them a file.")
    read = _read(jobs)
    saved = Base(Path(options.base).stem, load(options.base)) if options.base is not None else None
    comparison = Comparison(_check(jobs, read), saved if options.against is None else _of_revision(options.against))
    _write(options, comparison)
    return comparison.found.exit_code


def _read(jobs: dict[str, dict[str, Any]]) -> dict[str, CheckedJob]:
    """Return all jobs: a wrong table is told before anything is traced."""
    return {name: job_table.read(name, table) for name, table in jobs.items()}


def _check(jobs: dict[str, dict[str, Any]], read: dict[str, CheckedJob]) -> Outcomes:
    return Outcomes({name: _outcome(jobs[name], job) for name, job in read.items()})


def _outcome(table: dict[str, Any], job: CheckedJob) -> Outcome:
    """Return what is found of one job; that it cannot be estimated is an outcome too."""
    try:
        estimate = job.estimate()
    except (CannotEstimate, UsageError) as error:
        return Outcome(table, error.exit_code, str(error))
    code, verdict = verdict_of(estimate, strict=job.strict)
    return Outcome(table, code, verdict, estimate.to_dict())


def _of_revision(revision: str) -> Base:
    """Return what is found at a revision, by the software which is installed here."""
    name = revision.removeprefix("refs/remotes/").removeprefix("origin/")
    with checked_out(revision) as folder:
        try:
            jobs = read_jobs(folder)
            if jobs is None:
                return Base(name, None, "its pyproject.toml has no [tool.vramcast].")
            return Base(name, _check(jobs, _read(jobs)))
        except VramcastError as error:  # the base's own fault: this revision is judged all the same
            return Base(name, None, str(error))


def _write(options: argparse.Namespace, comparison: Comparison) -> None:
    values = json.dumps(comparison.to_dict())
    if options.results is not None:
        with atomic_write(options.results) as file:
            file.write(values.encode() + b"\n")
    if options.markdown not in (None, "-"):
        with atomic_write(options.markdown) as file:
            file.write(as_markdown(comparison).encode())
    if options.json:
        answer(values)
    elif options.markdown == "-":
        answer(as_markdown(comparison), end="")
    else:
        answer(as_text(comparison))
