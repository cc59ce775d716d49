"""Stored answers of the benchmarks of public commands, as examples to learn from: estimates and printed peaks.

    python -m benchmarks.accuracy.examples golf     # from benchmarks.accuracy.logs.logged
    python -m benchmarks.accuracy.examples modded   # from benchmarks.accuracy.logs.modded
    python -m benchmarks.accuracy.examples titan    # from benchmarks.accuracy.logs.titan
    python -m benchmarks.accuracy.examples qlora    # from benchmarks.accuracy.published_peaks, like nanovlm

Nothing is run. An answer counts only if its settings are those of the log, and if the job reached the line that printed the
peak, or at least two steps of its optimizer within its time (recorded in `facts["reached"]`). Only peaks and traits are
known for a command, so `features` are {}.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy import published_peaks
from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.logs import logged, modded, titan
from benchmarks.accuracy.logs.logged_sources import Peaks, read_log
from benchmarks.accuracy.runner import read_rows
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.learner.examples import Example

_STEPS: Final = 2  # arbitrary: the second step has the optimizer's state; later steps rarely have the peak
_CONFIG: Final = re.compile(r"([\w-]+)\.toml|\bCONFIG=([\w-]+)")


def golf(scripts: Path) -> Iterator[Example]:
    """Yield the logged runs, both sides in whole MiB as scripts print them; a group is a script.

    Args:
        scripts: The folder of logs, see `benchmarks.accuracy.logs.logged_sources`.
    """
    rows = {row["log_blob"]: row for row in read_rows(logged.TABLE)}
    for answer in logged.kept_answers().values():
        row, log = rows.get(answer.key), scripts / f"{answer.key}.log"
        if row is None or not log.exists():
            continue
        peaks = read_log(log.read_text(encoding="utf-8")).peaks
        if peaks is not None and (example := logged_example("golf", row, answer, peaks)) is not None:
            yield example


def of_modded() -> Iterator[Example]:
    """Yield modded-nanogpt's records, both sides in whole MiB; a group is a script."""
    logs = modded.logs_of(read_rows(modded.TABLE))
    for answer in logged.kept_answers(modded.KEPT).values():
        script, _, path = answer.key.partition(" ")
        if answer.line is None or path not in logs:
            continue
        row, peaks = logs[path]
        named = replace(answer, key=_digest(answer.key))
        if (example := logged_example("modded", {**row, "script": script}, named, peaks)) is not None:
            yield example


def logged_example(project: str, row: Mapping[str, str], answer: logged.Answer, measured: Peaks) -> Example | None:
    """Return the example of a logged run; None if the answer is for another program or another place in it."""
    if answer.otherwise or not answer.said or answer.peaks is None:
        return None
    if answer.line is None and (answer.said["steps"] or 0) < _STEPS:
        return None
    return _example(
        answer.said,
        id=f"{project} {row['script']} {answer.key[:12]} {answer.said['torch']}",
        group=f"{project} {row['script']}",
        stack=f"{row['gpu']}, driver {row['driver']}, torch {row['torch']}",
        allocated=answer.peaks.allocated_mib * MIB,
        reserved=answer.peaks.reserved_mib * MIB,
        measured_allocated=measured.allocated_mib * MIB,
        measured_reserved=measured.reserved_mib * MIB,
        facts={
            "world_size": row["world_size"],
            "log": row["log_path"],
            "how": row["compile"],
            "reached": "steps" if answer.line is None else "the peaks' own line",
        },
    )


def of_titan() -> Iterator[Example]:
    """Yield torchtitan's logged commands that did all their steps; a group is a configuration."""
    kept = titan.kept_answers()
    for row in titan.all_rows():
        answer = kept.get(row.key)
        if answer is not None and answer.here_mib is not None and answer.said:
            yield titan_example(row, answer)


def titan_example(row: titan.Row, answer: titan.Answer) -> Example:
    """Return the example of a logged command: reserved memory of rank 0."""
    ranks = [rank["peaks"] for rank in answer.said["ranks"] if rank["rank"] == 0]
    peaks = ranks[0] if ranks else answer.said["peaks"]
    named = [name for pair in _CONFIG.findall(row.typed) for name in pair if name]
    return _example(
        answer.said,
        id=f"titan {row.commit[:8]} {_digest(row.key)[:8]}",
        group=f"titan {named[-1] if named else row.short}",
        stack=f"{row.capacity_gib} GiB, nightly of {row.date}",
        allocated=peaks["allocated"],
        reserved=peaks["reserved"],
        measured_reserved=round(row.value_mib * MIB),
        facts={"command": row.short, "world_size": str(answer.said["world_size"])},
    )


def of_figures(project: str) -> Iterator[Example]:
    """Yield the published figures of a project (`fsdp_qlora`, `nanoVLM`) that have an answer."""
    for figure in published_peaks.kept_figures():
        if figure.job.startswith(project) and (example := figure_example(figure)) is not None:
            yield example


def figure_example(figure: published_peaks.Figure) -> Example | None:
    """Return the example of a published figure; None without an answer, or if it is not the peak of a training that fitted."""
    if figure.here_mib is None or not figure.said or "out of memory" in figure.job or "on the card" in figure.job:
        return None
    here, published, peaks = round(figure.here_mib * MIB), round(figure.published_mib * MIB), figure.said["peaks"]
    is_reserved = figure.metric == "reserved"
    return _example(
        figure.said,
        id=figure.job,
        group=figure.group,
        stack="not stated",
        # nanoVLM's batch sizes share a process: the allocated peak belongs to one, the reserved peak to all of them.
        allocated=peaks["allocated"] if is_reserved else here,
        reserved=peaks["reserved"],
        measured_allocated=None if is_reserved else published,
        measured_reserved=published if is_reserved else None,
        facts={"world_size": str(figure.said["world_size"])},
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _example(said: Mapping[str, Any], **known: Any) -> Example:
    """Return the example of an estimate's JSON."""
    return Example(
        family="script",
        gpu=said["device"],
        features={},
        context=said["context_bytes"] or 0,
        tracer=said["tracer"],
        torch=said["torch"],
        traits={"batches": "alike"} | said.get("traits", {}),  # spec: these projects cut their data into lines of equal length
        **known,
    )


KEPT: Final[dict[str, Callable[[Path], Iterable[Example]]]] = {
    "golf": golf,
    "modded": lambda _: of_modded(),
    "titan": lambda _: of_titan(),
    "qlora": lambda _: of_figures("fsdp_qlora"),
    "nanovlm": lambda _: of_figures("nanoVLM"),
}


def report(examples: Iterable[Example]) -> str:
    """Return the errors of the estimates by cause, as Markdown."""
    of_class: dict[tuple[str, ...], list[Example]] = {}
    for example in examples:
        names = ("operators", "compiled", "torch", "ranks", "speed")
        of_class.setdefault(tuple(example.traits.get(name, "-") for name in names), []).append(example)
    rows = []
    for name, members in sorted(of_class.items()):
        allocated = summarize((one.allocated, one.measured_allocated) for one in members if one.measured_allocated)
        reserved = summarize((one.reserved, one.measured_reserved) for one in members if one.measured_reserved)
        groups = len({one.group for one in members})
        for what, summary in (("allocated", allocated), ("reserved", reserved)):
            if summary.n:
                rows.append([", ".join(name), groups, what, *summary.cells()])
    return table(["operators, compiled, torch, ranks, speed", "groups", "peak", *SUMMARY_COLUMNS], rows)
