"""Rows of this project's own tables as examples: logged runs that were simulated earlier, with minutes of work each.

    python -m benchmarks.accuracy.tabled        # writes build/accuracy/examples-tabled.jsonl

docs/accuracy.md and docs/multi-gpu.md hold measurements (logs of parameter-golf, torchtitan and fsdp_qlora, whose licences
allow distribution of facts) and the answers of `vramcast run`, with the command of each table. A row's class follows from its
table: these are GPT scripts, so attention without convolutions. An example of the same script in
`benchmarks.accuracy.examples` replaces a row. A group is a script, for torchtitan a commit, for fsdp_qlora everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.runner import ROOT
from vramcast.core.units import MIB
from vramcast.hardware.stack import same_minor
from vramcast.learner import examples
from vramcast.learner.examples import Example

_ACCURACY: Final = ROOT / "docs" / "accuracy.md"
_RANKS: Final = ROOT / "docs" / "multi-gpu.md"
_SIZES: Final = ((1024, "below 1 GiB"), (4096, "below 4 GiB"))  # spec: vramcast.learner.traits, MiB
_ANOTHER_JOB: Final = "settings not printed"  # the log is not of the job that ran here
_NO_RELEASE: Final = "in no release"  # release of a job's torch
_DRAWN: Final = "DeepSeek-V3 16B"  # its experts are chosen by unknown values


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table: measured and predicted reserved peak of a script, MiB."""

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
        """Return the row as an example without features."""
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
                "unknown": "none" if self.source == "golf" else "some",  # FSDP2's and bitsandbytes' rows name a call
                "card": "free",
                "size": next((name for most, name in _SIZES if self.here_mib < most), "4 GiB or more"),
                "precision": "amp" if self.source == "golf" else "half",
                "tracer": "nullgpu",
            },
        )


def cells_of(path: Path) -> Iterator[list[str]]:
    """Yield the cells of each table line of a Markdown file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("| ").split(" | ")]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def logged_rows(path: Path) -> Iterator[_Row]:
    """Yield the runs with one rank: `script log | card | torch | [torch here |] how | A / R | A / R | ...`."""
    for cells in cells_of(path):
        if not re.fullmatch(r"[0-9a-f]{8} [0-9a-f]{8}", cells[0]) or any(cell.startswith(_ANOTHER_JOB) for cell in cells):
            continue
        at = next(place for place, cell in enumerate(cells) if cell in ("eager", "compiled"))
        pairs = [re.fullmatch(r"([\d,]+) / ([\d,]+)", cell) for cell in cells[at + 1 : at + 3]]
        if pairs[0] is None or pairs[1] is None:
            continue
        is_same = same_minor(cells[2], cells[3]) if at == 4 else "another torch" not in cells[-1]
        yield _Row(
            "golf", cells[0][:8], cells[0], _number(pairs[0][2]), _number(pairs[1][2]), cells[at] == "compiled", is_same, 1
        )


def ranks_rows(path: Path) -> Iterator[_Row]:
    """Yield the logged runs with eight ranks, and torchtitan's."""
    was_float8 = False
    for cells in cells_of(path):
        if re.match(r"[0-9a-f]{8}(,|$)", cells[0]) and len(cells) == 5:
            pairs = [re.search(r"/ ([\d,]+)$", cell) for cell in cells[2:4]]
            if pairs[0] is not None and pairs[1] is not None:
                is_compiled = "compiled" in cells[0]
                yield _Row("golf", cells[0][:8], cells[0], _number(pairs[0][1]), _number(pairs[1][1]), is_compiled, True, 8)
        elif re.match(r"[0-9a-f]{7,8}\^?$", cells[0]) and len(cells) == 8:
            job, ranks, torch, here = cells[1:5]
            was_float8 = "float8" in job or (was_float8 and job.startswith("the same"))  # in its compiled tables
            sizes = _number(cells[5]), _number(cells[6])
            yield _Row(
                "titan", cells[0], f"{cells[0]} {job}, {ranks} ranks", *sizes, "compile" in job or was_float8,
                same_minor(torch, here) and _NO_RELEASE not in job, int(ranks), _DRAWN in job,
            )  # fmt: skip


def qlora_rows(path: Path) -> Iterator[_Row]:
    """Yield fsdp_qlora's published rows."""
    for cells in cells_of(path):
        if cells[0].startswith("fsdp_qlora") and cells[1] == "reserved":
            yield _Row("qlora", "fsdp_qlora", cells[0], _number(cells[2]), _number(cells[3]), False, False, 2)


def rows() -> list[_Row]:
    """Return all rows."""
    return [*logged_rows(_ACCURACY), *ranks_rows(_RANKS), *qlora_rows(_ACCURACY)]


def main() -> None:
    """Write the examples, except those simulated again."""
    again = set()
    for name in ("golf", "titan", "qlora"):
        if path_of(name).exists():
            again |= {example.group[:13] for example in examples.read(path_of(name))[0]}
    found = [row.example() for row in rows()]
    found = [one for one in found if one.group[:13] not in again]
    path = path_of("tabled")
    path.unlink(missing_ok=True)
    examples.append(found, path)
    print(f"{path}: {len(found)} rows of {len({one.group for one in found})} scripts")


if __name__ == "__main__":
    main()
