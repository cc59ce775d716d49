"""What a check found of each job of a repository, and its file: one JSON object, which another check compares with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast._version import __version__
from vramcast.core.errors import UsageError

SCHEMA: Final = 1  # spec: docs/ci-gate.md
# spec: docs/ci-gate.md. The exit codes of the contract from worst to best: a wrong question, no, no answer, uncertain, yes.
WORST: Final = (2, 1, 3, 4, 0)
_LARGEST_FILE: Final = 64 << 20  # arbitrary: bytes; an estimate takes some 10 KB


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one job.

    Attributes:
        asked: Its table of pyproject.toml.
        exit_code: As the contract has it.
        verdict: In words; where there is no estimate, why.
        estimate: The JSON object of the contract; None: there is none.
    """

    asked: Mapping[str, Any]
    exit_code: int
    verdict: str
    estimate: Mapping[str, Any] | None = None

    @property
    def process_bytes(self) -> int | None:
        """The process peak; None: it is not known."""
        return None if self.estimate is None else int(self.estimate["peaks"]["process"])

    @property
    def software(self) -> dict[str, Any]:
        """What else than the repository's own code decides the numbers."""
        return {key: self.estimate.get(key) for key in ("torch", "tracer", "artifact")} if self.estimate is not None else {}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        asked, estimate = dict(self.asked), dict(self.estimate) if self.estimate is not None else None
        return {"asked": asked, "exit_code": self.exit_code, "verdict": self.verdict, "estimate": estimate}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of all jobs, by name, and which release of vramcast found them."""

    jobs: Mapping[str, Outcome]
    vramcast: str = __version__

    @property
    def exit_code(self) -> int:
        """The worst of them; without any job 0."""
        return min((job.exit_code for job in self.jobs.values()), key=WORST.index, default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON values."""
        jobs = {name: job.to_dict() for name, job in self.jobs.items()}
        return {"schema": SCHEMA, "vramcast": self.vramcast, "exit_code": self.exit_code, "jobs": jobs}


def load(path: str | Path) -> Outcomes:
    """Return what a check has saved, or printed with --json.

    Raises:
        UsageError: it is no such file.
    """
    try:
        with Path(path).open("rb") as file:
            said = file.read(_LARGEST_FILE + 1)
        if len(said) > _LARGEST_FILE:
            raise ValueError(f"it is larger than {_LARGEST_FILE >> 20} MiB")
        return _outcomes_of(json.loads(said))
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read ({error.strerror}): give a file of vramcast check --results.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"'{path}' does not hold what a check found ({type(error).__name__}: {error}): "
            "write it again with vramcast check --results."
        ) from None


def _outcomes_of(values: Any) -> Outcomes:
    if values["schema"] != SCHEMA:
        raise ValueError(f"its schema is {values['schema']!r:.20}, and this release reads {SCHEMA}")
    return Outcomes({name: _outcome_of(job) for name, job in values["jobs"].items()}, str(values["vramcast"]))


def _outcome_of(values: Any) -> Outcome:
    asked, estimate = values["asked"], values["estimate"]
    if values["exit_code"] not in WORST or not isinstance(asked, dict):
        raise ValueError(f"exit code {values['exit_code']!r:.20} and {asked!r:.40} are none of a job's")
    if estimate is not None and (type(peak := estimate["peaks"]["process"]) is not int or peak < 0):
        raise ValueError(f"a process peak is {peak!r:.40}")
    return Outcome(asked, values["exit_code"], str(values["verdict"]), estimate)
