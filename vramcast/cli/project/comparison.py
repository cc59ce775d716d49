"""A check compared with a base: the changes of each job, and reasons why two numbers may not be comparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vramcast.cli.project.outcomes import JobOutcome, Outcomes

_SHOWN_NAMES: Final = 5  # arbitrary: job names in one remark


@dataclass(frozen=True, slots=True)
class Base:
    """The results that a check is compared with.

    Attributes:
        name: Name for the reader, such as `main`.
        outcomes: Results at the base; None: there are none.
        missing: Reason for missing results.
    """

    name: str
    outcomes: Outcomes | None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ProjectComparison:
    """A check, and its base if there is one."""

    found: Outcomes
    base: Base | None = None

    def before(self, name: str) -> JobOutcome | None:
        """Return the outcome of a job at the base."""
        return self.base.outcomes.jobs.get(name) if self.base is not None and self.base.outcomes is not None else None

    def change_bytes(self, name: str) -> int | None:
        """Return the growth of a job's process peak since the base in bytes; None: one of the peaks is unknown."""
        before, now = self.before(name), self.found.jobs[name]
        if before is None or before.process_bytes is None or now.process_bytes is None:
            return None
        return now.process_bytes - before.process_bytes

    @property
    def removed(self) -> list[str]:
        """Jobs of the base that the check lacks."""
        known = self.base.outcomes.jobs if self.base is not None and self.base.outcomes is not None else {}
        return [name for name in known if name not in self.found.jobs]

    @property
    def remarks(self) -> list[str]:
        """Sentences that a reader should know before comparing."""
        if self.base is None:
            return []
        if self.base.outcomes is None:
            return [f"There is no comparison with {self.base.name}: {self.base.missing}"]
        said = []
        if self.removed:
            said.append(f"No longer checked since {self.base.name}: {_listed(self.removed)}.")
        asked = [name for name in self.found.jobs if self._changed_keys(name)]
        said += [
            f"The table of {name} has changed since {self.base.name}: {', '.join(self._changed_keys(name))}." for name in asked
        ]
        other = [name for name in self.found.jobs if self._has_other_software(name)]
        if self.base.outcomes.vramcast != self.found.vramcast or other:
            said.append(
                f"{self.base.name} was checked with other software (vramcast {self.base.outcomes.vramcast}, here "
                f"{self.found.vramcast}{_of(other)}): part of the change may come from the software."
            )
        return said

    def _changed_keys(self, name: str) -> list[str]:
        before = self.before(name)
        if before is None:
            return []
        one, other = before.asked, self.found.jobs[name].asked
        return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))

    def _has_other_software(self, name: str) -> bool:
        before, now = self.before(name), self.found.jobs[name]
        return bool(before is not None and before.software and now.software and before.software != now.software)

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values, with the changes since its base; `outcomes.load` reads it too."""
        values = self.found.to_dict()
        if self.base is not None:
            changes = {name: self.change_bytes(name) for name in self.found.jobs}
            values["since"] = {
                "base": self.base.name, "change_bytes": changes, "removed": self.removed, "remarks": self.remarks,
            }  # fmt: skip
        return values


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _of(names: list[str]) -> str:
    return f"; torch, tracer or artifact differ for {_listed(names)}" if names else ""
