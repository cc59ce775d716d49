"""Results of a check for each job of a repository, and their file: one JSON object, which another check compares with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from vramcast._version import __version__
from vramcast.core.checks import whole
from vramcast.core.errors import UsageError
from vramcast.core.plain import Between, from_plain, json_value, to_plain
from vramcast.core.text import shown

SCHEMA: Final = 1  # spec: docs/ci-gate.md
# spec: docs/ci-gate.md. The exit codes from worst to best: wrong usage, does not fit, no estimate, uncertain, fits.
WORST: Final = (2, 1, 3, 4, 0)
_LARGEST_FILE: Final = 64 << 20  # arbitrary: bytes; an estimate takes about 10 KB


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result for one job.

    Attributes:
        asked: The job's table in pyproject.toml.
        exit_code: Exit code of `vramcast check` for this job.
        verdict: `fits`, `does not fit` or `uncertain`; without an estimate, the reason.
        estimate: The estimate as the documented JSON object; None: there is none.
    """

    asked: Mapping[str, Any]
    exit_code: Annotated[int, Between(0, 4)]
    verdict: str
    estimate: Mapping[str, Any] | None = None

    @property
    def process_bytes(self) -> int | None:
        """The process peak in bytes; None: unknown."""
        return None if self.estimate is None else int(_process_bytes(self.estimate))

    @property
    def software(self) -> dict[str, Any]:
        """The software that decides the numbers, apart from the repository's own code."""
        return {key: self.estimate.get(key) for key in ("torch", "tracer", "artifact")} if self.estimate is not None else {}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results for all jobs by name, and the release of vramcast that produced them."""

    jobs: Mapping[str, JobOutcome]
    vramcast: str = __version__

    @property
    def exit_code(self) -> int:
        """The worst exit code; 0 without jobs."""
        return min((job.exit_code for job in self.jobs.values()), key=WORST.index, default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {"schema": SCHEMA, "vramcast": self.vramcast, "exit_code": self.exit_code, "jobs": to_plain(self.jobs)}


def load(path: str | Path) -> Outcomes:
    """Return results that a check has saved, or printed with --json.

    Raises:
        UsageError: The file does not hold such results.
    """
    try:
        with Path(path).open("rb") as file:
            said = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be read ({error.strerror}): give a file written by vramcast check --results."
        ) from None
    try:
        return _outcomes_of(said)
    except UsageError as error:
        raise UsageError(
            f"'{path}' does not hold the results of a check: {error} Write it again with vramcast check --results."
        ) from None


def _outcomes_of(said: bytes) -> Outcomes:
    if len(said) > _LARGEST_FILE:
        raise UsageError(f"It is larger than {_LARGEST_FILE >> 20} MiB.")
    values = from_plain(dict, json_value(said, "It", raises=UsageError), "It", raises=UsageError)
    if values.get("schema") != SCHEMA:
        raise UsageError(f"Its schema is {shown(values.get('schema'))}, but this release reads schema {SCHEMA}.")
    known = {name: values.get(name) for name in ("jobs", "vramcast")}
    found = from_plain(Outcomes, known, "check", raises=UsageError)
    for name, job in found.jobs.items():
        if job.estimate is not None:
            whole(f"The process peak of {shown(name)}", _process_bytes(job.estimate), least=0)
    return found


def _process_bytes(estimate: Mapping[str, Any]) -> Any:
    peaks = estimate.get("peaks")
    return peaks.get("process") if isinstance(peaks, dict) else None
