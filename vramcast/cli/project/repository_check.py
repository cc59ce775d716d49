"""`vramcast check` without TARGET and COMMAND: check the jobs named in the current folder's pyproject.toml.

Each job is a table whose keys are the options of `vramcast check`:

    [tool.vramcast]
    on = "a100-40gb"                      # for all jobs that name no other card

    [tool.vramcast.jobs.resnet50]
    target = "torchvision:resnet50"
    batch-size = 32

    [tool.vramcast.jobs.finetune]
    command = "torchrun --nproc_per_node=2 train.py --epochs 1"
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.cli import job_table
from vramcast.cli.checked_job import CheckedJob
from vramcast.cli.project.comment import as_markdown, as_text
from vramcast.cli.project.comparison import Base, ProjectComparison
from vramcast.cli.project.outcomes import JobOutcome, Outcomes, load
from vramcast.cli.project.revision import checked_out
from vramcast.cli.streams import answer
from vramcast.core.errors import CannotEstimate, UsageError, VramcastError
from vramcast.core.files import atomic_write
from vramcast.core.text import shown

_NAME: Final = "pyproject.toml"
_EXAMPLE: Final = f"{_NAME} needs a table [tool.vramcast.jobs.NAME] with a target and its batch (docs/ci-gate.md)"
_OF_ALL = ("markdown", "results", "base", "against")  # options for the whole repository, which a single job does not take
_OF_ONE = ("snapshot", "plot", "report", "what_if", "cards", "fragmentation")  # options for a single job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a check of all jobs."""
    jobs = parser.add_argument_group("the jobs of pyproject.toml, without TARGET and COMMAND")
    jobs.add_argument(
        "--markdown", metavar="FILE", help="write a table for a comment; '-': print it on stdout instead of the text"
    )
    jobs.add_argument("--results", metavar="FILE", help="write the results as JSON, for --base")
    jobs.add_argument("--base", metavar="FILE", help="compare with results that another check wrote with --results")
    jobs.add_argument("--against", metavar="REV", help="compare with a git revision, checked out in a temporary folder")


def refuse(options: argparse.Namespace) -> None:
    """Raise if one job is checked with an option that is for all jobs.

    Raises:
        UsageError: Names the option.
    """
    for name in _OF_ALL:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for the jobs of pyproject.toml: leave it out, or leave out TARGET and COMMAND.")


def main(options: argparse.Namespace) -> int:
    """Check all jobs; return the worst exit code."""
    jobs = read_jobs(Path())
    if jobs is None:
        raise UsageError(
            "There is nothing to check: write vramcast check TARGET ..., or vramcast check ... -- train.py args; or name "
            "jobs in [tool.vramcast] of a pyproject.toml in this folder (docs/ci-gate.md)."
        )
    given = job_table.described(options) + [f"--{name.replace('_', '-')}" for name in _OF_ONE if getattr(options, name)]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be combined with the jobs of pyproject.toml: set it in their tables, or give a TARGET."
        )
    if options.base is not None and options.against is not None:
        raise UsageError("--base and --against are both given: give one of them.")
    if options.json and options.markdown == "-":
        raise UsageError("--json and --markdown - both write to stdout: give a file to one of them.")
    saved = Base(Path(options.base).stem, load(options.base)) if options.base is not None else None
    comparison = ProjectComparison(_check(jobs), saved if options.against is None else _of_revision(options.against))
    _write(options, comparison)
    return comparison.found.exit_code


def read_jobs(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the jobs of a folder's pyproject.toml by name, with the shared options; None: it has no [tool.vramcast].

    Raises:
        UsageError: The file cannot be read, or the table has another form.
    """
    path = folder / _NAME
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read ({error}): it must be a text file in UTF-8.") from None
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"'{path}' is not valid TOML: {error}.") from None
    if not isinstance(tool, dict) or "vramcast" not in tool:
        return None
    return _jobs_of(tool["vramcast"])


def _jobs_of(table: object) -> dict[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise UsageError(f"tool.vramcast is {shown(table)}, but must be a table: {_EXAMPLE}.")
    common = {key: value for key, value in table.items() if key != "jobs"}
    for key, value in common.items():
        if isinstance(value, dict):
            raise UsageError(f"[tool.vramcast.{key}] is unknown: write [tool.vramcast.jobs.{key}] for a job of this name.")
    jobs = table.get("jobs", {})
    if not isinstance(jobs, Mapping) or not jobs:
        raise UsageError(f"[tool.vramcast] names no job: {_EXAMPLE}.")
    for name, job in jobs.items():
        if not isinstance(job, dict):
            raise UsageError(f"tool.vramcast.jobs.{name} is {shown(job)}, but must be a table: {_EXAMPLE}.")
    return {name: {**common, **job} for name, job in jobs.items()}


def _check(jobs: dict[str, dict[str, Any]]) -> Outcomes:
    """Return the results for all jobs; a wrong table raises before anything is traced."""
    read = {name: job_table.read(name, table) for name, table in jobs.items()}
    return Outcomes({name: _outcome(jobs[name], job) for name, job in read.items()})


def _outcome(table: dict[str, Any], job: CheckedJob) -> JobOutcome:
    """Return the result for one job; a failed estimate is a result too."""
    try:
        estimate = job.estimate()
    except (CannotEstimate, UsageError) as error:
        return JobOutcome(table, error.exit_code, str(error))
    return JobOutcome(table, estimate.verdict.exit_code, estimate.verdict.value, estimate.to_dict())


def _of_revision(revision: str) -> Base:
    """Return the results at a revision, computed with the software installed here."""
    name = revision.removeprefix("refs/remotes/").removeprefix("origin/")
    with checked_out(revision) as folder:
        try:
            jobs = read_jobs(folder)
            if jobs is None:
                return Base(name, None, "its pyproject.toml has no [tool.vramcast].")
            return Base(name, _check(jobs))
        except VramcastError as error:  # the base's own fault: this revision is checked all the same
            return Base(name, None, str(error))


def _write(options: argparse.Namespace, comparison: ProjectComparison) -> None:
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
