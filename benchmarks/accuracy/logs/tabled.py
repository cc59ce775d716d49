"""Runs simulated in earlier sessions, minutes to hours of work each, as examples to learn from.

    python -m benchmarks.accuracy.logs.tabled        # writes build/accuracy/examples-tabled.jsonl

simulated_runs.csv holds the peaks that public projects logged or published and those that `vramcast run` gave for the same
script. docs/accuracy.md and docs/multi-gpu.md have the commands. The runs of projects with a licence that lets facts be given
away become examples. These are transformers, so each has attention and no convolutions. A script is a group; for torchtitan a
commit, for fsdp_qlora and nanoVLM all rows. A later trace of the same script takes precedence.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.shipped import permissive
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.hardware.stack import same_minor
from vramcast.learner import examples
from vramcast.learner.examples import Example

Run = dict[str, str]

METRICS: Final = ("allocated", "reserved")
TABLE: Final = Path(__file__).with_name("simulated_runs.csv")
_SOURCES: Final = ("golf", "titan", "qlora", "modded", "nanovlm")
_HALF: Final = ("titan", "qlora")  # spec: their scripts cast the model; the others use autocast
_SIZES: Final = ((1024, "below 1 GiB"), (4096, "below 4 GiB"))  # spec: vramcast.learner.traits, MiB
_ANOTHER_JOB: Final = "settings not printed"  # the logged run and the one here differ
_NO_TRAINING: Final = ("out of memory", "on the card")  # rows of nanoVLM that are no peak of training
_DRAWN: Final = "DeepSeek-V3 16B"  # its experts depend on values that are unknown here


@dataclass(frozen=True, slots=True)
class _Row:
    """A run with the measured and the predicted reserved peak of its script, or the allocated one, in MiB."""

    source: str
    script: str
    name: str
    measured_mib: float
    here_mib: float
    is_compiled: bool
    is_same_torch: bool
    ranks: int
    is_drawn: bool = False

    def example(self) -> Example:
        """Return it as an example without features."""
        reserved = round(self.here_mib * MIB)
        return Example(
            f"{self.source} {self.name}",
            group=f"{self.source} {self.script}",
            family="script",
            gpu="",
            stack=self.source,
            features={},
            allocated=reserved,
            reserved=reserved,
            measured_reserved=round(self.measured_mib * MIB),
            tracer="nullgpu",
            traits={
                "operators": "attention",
                "convolutions": "none",
                "workspaces": "none",
                "plans": "none",
                "compiled": "yes" if self.is_compiled else "no",
                "values": "drawn" if self.is_drawn else "known",
                "batches": "alike",
                "ranks": "one" if self.ranks == 1 else "several",
                "speed": "any" if self.ranks == 1 else "decides",
                "torch": "same" if self.is_same_torch else "other",
                "unknown": "some" if self.source in _HALF else "none",  # FSDP2's and bitsandbytes' rows name a call
                "card": "free",
                "size": next((name for most, name in _SIZES if self.here_mib < most), "4 GiB or more"),
                "precision": "half" if self.source in _HALF else "amp",
                "tracer": "nullgpu",
            },
        )


def read_table() -> list[dict[str, str]]:
    """Return the rows of logs/simulated_runs.csv."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _row(row: dict[str, str]) -> _Row:
    metric = "reserved" if row["here_reserved_mib"] else "allocated"
    return _Row(
        row["source"],
        row["script"],
        row["name"],
        float(row[f"measured_{metric}_mib"]),
        float(row[f"here_{metric}_mib"]),
        row["compiled"] == "yes" or row["source"] == "modded",
        bool(row["torch"]) and same_minor(row["torch"], row["torch_here"]),
        int(row["ranks"]),
        _DRAWN in row["name"],
    )


def rows() -> list[_Row]:
    """Return the runs that become examples."""
    return [_row(row) for row in read_table() if row["source"] in _SOURCES and _is_comparable(row)]


def _is_comparable(row: dict[str, str]) -> bool:
    has_both = any(row[f"here_{metric}_mib"] and row[f"measured_{metric}_mib"] for metric in METRICS)
    return has_both and not row["note"].startswith(_ANOTHER_JOB) and not row["name"].endswith(_NO_TRAINING)


GROUPS: Final[dict[str, Callable[[Run], bool]]] = {
    "parameter-golf, eager": lambda run: _is_golf(run, compiled=False),
    "parameter-golf, compiled, the log's torch": lambda run: _is_golf(run, compiled=True) and _is_same_torch(run),
    "parameter-golf, compiled, another torch": lambda run: _is_golf(run, compiled=True) and not _is_same_torch(run),
    "modded-nanogpt, 8 ranks": lambda run: run["source"] == "modded",
    "nanoVLM": lambda run: run["source"] == "nanovlm",
    "fsdp_qlora, 2 ranks": lambda run: run["source"] == "qlora",
    "torchtitan, 4 to 256 ranks": lambda run: run["source"] == "titan",
}


def _is_golf(run: Run, *, compiled: bool) -> bool:
    return run["source"] == "golf" and run["ranks"] == "1" and (run["compiled"] == "yes") == compiled


def _is_same_torch(run: Run) -> bool:
    return same_minor(run["torch"], run["torch_here"])


def pairs_of(runs: Sequence[Run], metric: str) -> list[tuple[float, float]]:
    """Return (estimated, measured) MiB of the runs that have both for a metric, "allocated" or "reserved"."""
    cells = [(run[f"here_{metric}_mib"], run[f"measured_{metric}_mib"]) for run in runs]
    return [(float(here), float(measured)) for here, measured in cells if here and measured]


def group_table(runs: Sequence[Run]) -> str:
    """Return the errors of each group of logged and published runs as a Markdown table."""
    lines = []
    for name, is_in in GROUPS.items():
        of_group = [run for run in runs if is_in(run)]
        for metric in METRICS:
            figures = summarize(pairs_of(of_group, metric))
            if figures.n:
                lines.append([name, metric, *figures.cells()])
    return table(["runs", "peak", *SUMMARY_COLUMNS], lines, "ll")


def main() -> None:
    """Write the examples, without those that the shipped artifact has from a later trace."""
    again = {example.group[:13] for example in permissive() if example.stack in _SOURCES}
    found = [row.example() for row in rows()]
    found = [one for one in found if one.group[:13] not in again]
    path = path_of("tabled")
    path.unlink(missing_ok=True)
    examples.append(found, path)
    print(f"{path}: {len(found)} rows of {len({one.group for one in found})} scripts")


if __name__ == "__main__":
    main()
