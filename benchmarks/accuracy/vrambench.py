"""VRAMBench: the counts of the data set of measured runs, and its judgment of estimates and bounds, whole sources held out.

    python -m benchmarks.accuracy.vrambench [--counts] [--learn-all]

The first tables count the runs against the targets. The others judge each run that has an estimate: those that the shipped
artifact learns from (`benchmarks.accuracy.shipped`), and those of build/accuracy/examples-SET.jsonl
(`benchmarks.accuracy.examples`) and build/accuracy/repeats-SOURCE.jsonl (`benchmarks.repeats`). A source's bounds come from an
artifact that saw no run of that source. Screened rows and rows that only limit the peak are left out. A process peak is judged
less the context that the estimate assumes. Width is bound / estimate - 1. Other tools: their published estimates of xMem's
runs, and FakeTensor's and DNNMem's methods on the runs that `benchmarks.accuracy.baselines SET` inspected.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.accuracy import baselines
from benchmarks.accuracy.bounds import CLASSES, ONLY_JUDGE
from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.figures import summarize
from benchmarks.accuracy.runner import BUILD
from benchmarks.accuracy.shipped import SOURCES, of_set, permissive
from benchmarks.accuracy.tools import TOOLS, tool_runs
from benchmarks.measured import measured_run
from benchmarks.measured.importers import every_run, is_allowed
from benchmarks.measured.measured_run import EDGE, MeasuredRun
from benchmarks.repeats.results import kept
from benchmarks.tables import table
from vramcast.core.plain import from_plain
from vramcast.hardware.stack import release_of
from vramcast.learner import examples, training
from vramcast.learner.cross_validation import scored_of
from vramcast.learner.evaluation import metrics
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.traits import ALONE

LEVELS: Final = (0.9, 0.95, 0.99)
_RECENT: Final = (2, 7)  # spec: the target of the data set
_MODELS_OF_CLASS: Final = 99  # a level of 0.99 needs 99 models
_NO_TRAIT: Final = "none of these"
_INSPECTED: Final = ("cnn", "timm", "mlp")
_METHODS: Final = ("simulated", "FakeTensor", "DNNMem")
_LEARNED_FROM: Final = frozenset(source.name for source in SOURCES)
_LARGEST: Final = 25  # arbitrary: sources with a row of their own


@dataclass(frozen=True, slots=True)
class Judged:
    """A run with its prediction by an artifact that saw no run of its source.

    Attributes:
        source: The set or the harness.
        example: The run.
        scored: Its prediction.
        torch: The release that measured it; "" if it is not known.
    """

    source: str
    example: Example
    scored: Scored
    torch: str = ""


def _models(runs: Iterable[MeasuredRun]) -> int:
    return len({run.model.rpartition("/")[2].lower() for run in runs})


def _jobs(runs: Iterable[MeasuredRun]) -> int:
    return len({run.job_key for run in runs})


def _is_recent(run: MeasuredRun) -> bool:
    release = release_of(run.torch.lstrip(">="))
    return release is not None and release >= _RECENT


def traits_of(run: MeasuredRun) -> list[str]:
    """Return the traits of a run by which bounds distinguish jobs."""
    return run.traits.split(", ") if run.traits else [_NO_TRAIT]


def targets(runs: Sequence[MeasuredRun]) -> str:
    """Return the table of the data set's counts against its targets; `here` counts the rows in this repository."""
    usable = [run for run in runs if run.quality != "screened"]
    recent = [run for run in usable if "convolutions" in run.traits and _is_recent(run)]
    groups: list[tuple[str, int, Callable[[Iterable[MeasuredRun]], int], list[MeasuredRun]]] = [
        ("runs", 1500, _jobs, usable),
        ("models", 300, _models, usable),
        ("runs with convolutions, torch 2.7 or later", 400, _jobs, recent),
        ("of these, with a figure in bytes", 400, _jobs, [run for run in recent if run.figure != EDGE]),
    ]
    for trait in sorted({trait for run in usable for trait in traits_of(run)}):
        groups.append((f"models: {trait}", _MODELS_OF_CLASS, _models, [run for run in usable if trait in traits_of(run)]))
    known = measured_run.sources()
    lines = [
        [name, wanted, count(found), count(run for run in found if is_allowed(run, known)), max(wanted - count(found), 0)]
        for name, wanted, count, found in groups
    ]
    return table(["target", "wanted", "found", "here", "missing"], lines)


def sources(runs: Sequence[MeasuredRun]) -> str:
    """Return the table of the sources, the largest first."""
    of: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        of[run.repository or "no repository"].append(run)
    ordered = sorted(of.items(), key=lambda item: (-len(item[1]), item[0]))
    rest = [run for _, some in ordered[_LARGEST:] for run in some]
    lines = [_line(name, some) for name, some in ordered[:_LARGEST]]
    lines += [_line(f"{len(ordered) - _LARGEST} others", rest)] if rest else []
    return table(["source", "figures", "runs", "models", "edges", "screened"], lines)


def _line(name: str, runs: Sequence[MeasuredRun]) -> list[object]:
    edges, screened = sum(run.figure == EDGE for run in runs), sum(run.quality == "screened" for run in runs)
    return [name, len(runs), _jobs(runs), _models(runs), edges, screened]


def read_examples(rows: Mapping[str, MeasuredRun]) -> Iterator[tuple[str, Example, str]]:
    """Yield source, example, and torch of the available runs that are not screened.

    Args:
        rows: The data set's rows by key.
    """
    for one in permissive():
        if one.traits.get("cudnns") != ALONE:  # the same run once more
            row = rows.get(one.id.rpartition(" ")[2])
            source = one.group if one.stack == "tabled" else one.id
            yield source.partition(" ")[0], one, row.torch if row else ""
    for name in ONLY_JUDGE:
        if path_of(name).exists():
            for one in examples.read(path_of(name))[0]:
                yield name, of_set(one, name), ""
    for path in sorted(BUILD.glob("repeats-*.jsonl")):
        name = path.stem.partition("-")[2]
        for key, result in kept(path).items() if name not in _LEARNED_FROM else ():
            row = rows.get(key)
            if result.example and (row is None or row.quality != "screened"):
                yield name, of_set(from_plain(Example, result.example, "example"), name), row.torch if row else ""


def _without_context(example: Example) -> Example:
    """Return an example with its process peak as a reserved peak: without the context that the estimate assumes."""
    if example.measured_process is None:
        return example
    return replace(example, measured_reserved=example.measured_process - example.context, measured_process=None)


def held_out(found: Sequence[tuple[str, Example, str]], *, learn_all: bool = False) -> list[Judged]:
    """Return each run as predicted without its source; without bounds if no other source can be learned from.

    A process peak below the context belongs to a job that ended before its first tensor: it is left out.

    Args:
        found: Source, example and torch of each run.
        learn_all: Whether to learn also from sources from which the shipped artifact may not.
    """
    barred = () if learn_all else ONLY_JUDGE
    known = [(source, _without_context(one), torch) for source, one, torch in found if not one.censored]
    known = [(source, one, torch) for source, one, torch in known if (one.measured_reserved or 0) > 0]
    judged = []
    for name in dict.fromkeys(source for source, *_ in known):
        others = [one for source, one, _ in known if source not in (name, *barred)]
        learned = training.train(others) if others else None
        for source, one, torch in known:
            scored = scored_of(one, learned, LEVELS) if source == name else None
            if scored is not None:
                judged.append(Judged(source, one, scored, torch))
    return judged


def figures(name: str, runs: Sequence[Scored]) -> list[object]:
    """Return the cells of a group: n, models, errors, and for each level the coverage and the median width of the bound."""
    summary = summarize((run.estimated_bytes, run.measured_bytes) for run in runs)
    cells: list[object] = [name, len(runs), len({run.group for run in runs}), _percent(summary.median), _percent(summary.p90)]
    for level in LEVELS:
        held = metrics.covered(runs, level)
        widths = [run.bounds[level] / run.estimated_bytes - 1 for run in runs if level in run.bounds]
        cells += [_percent(float(np.mean(held))), _percent(float(np.median(widths)))] if held and widths else ["-", "-"]
    return cells


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_COLUMNS: Final = (
    "group", "n", "models", "median", "p90",
    *(f"{what} {level:g}" for level in LEVELS for what in ("holds", "width")),
)  # fmt: skip


def judgment(judged: Sequence[Judged]) -> str:
    """Return the tables by source, class, card, and torch."""
    ways: tuple[tuple[str, Callable[[Judged], Iterable[str]]], ...] = (
        ("source", lambda one: [one.source]),
        ("class", lambda one: [name for name, belongs in CLASSES if belongs(one.example)]),
        ("card", lambda one: [one.example.gpu]),
        ("torch", lambda one: [".".join(one.torch.split(".")[:2]) or "not in the row"]),
    )
    parts = []
    for title, names_of in ways:
        groups: dict[str, list[Scored]] = defaultdict(list)
        for one in judged:
            for name in names_of(one):
                groups[name].append(one.scored)
        lines = [figures(name, runs) for name, runs in sorted(groups.items())]
        parts.append(table([title, *_COLUMNS[1:]], [figures("all", [one.scored for one in judged]), *lines]))
    return "\n\n".join(parts)


def other_tools() -> str:
    """Return the table of other tools: as published on xMem's runs, and their methods on sets that `baselines` inspected."""
    rows = []
    for title, tool in TOOLS.items():
        runs = [run for run in tool_runs(tool) if not run.ran_out_of_memory]
        rows.append(_of_tool("xmem", f"{title}, published", [(run.estimated_bytes, run.measured_bytes) for run in runs]))
    for name in _INSPECTED:
        rows += [_of_tool(name, tool, pairs) for tool, pairs in _by_methods(name).items() if pairs]
    return table(["set", "tool", "n", "median", "p90", "the estimate as a bound holds"], rows)


def _by_methods(name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the estimates and measurements of a set's inspected runs by method, learned on other models."""
    if not (path_of(name).exists() and (BUILD / f"networks-{name}.jsonl").exists()):
        return {}
    target = baselines.target_of(name)
    samples = [one for one in baselines.samples_of(name, limit=None, look_at=False) if one.network is not None or one.published]
    if len(samples) < baselines.FOLDS:
        return {}
    found = {}
    for method in baselines.baselines_of(name):
        if method.name.startswith(_METHODS):
            sizes = baselines.held_out(method, samples)
            measured = [sample.measured(target) for sample in samples]
            found[method.name] = [(float(e), float(m)) for e, m in zip(sizes, measured, strict=True) if e is not None and m]
    return found


def _of_tool(name: str, tool: str, pairs: Iterable[tuple[float, float]]) -> list[object]:
    summary = summarize(pairs)
    return [name, tool, summary.n, _percent(summary.median), _percent(summary.p90), _percent(1 - summary.under)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--counts", action="store_true", help="only count the runs")
    parser.add_argument(
        "--learn-all", action="store_true", help="learn also from sources that the shipped artifact may not use"
    )
    options = parser.parse_args()
    runs = every_run()
    print(f"{targets(runs)}\n\n{sources(runs)}")
    if not options.counts:
        found = list(read_examples({run.key: run for run in runs}))
        print(
            f"\n{judgment(held_out(found, learn_all=options.learn_all))}\n"
            if found
            else "\nNo run has an estimate yet: see --help.\n"
        )
        print(other_tools())


if __name__ == "__main__":
    main()
