"""The limit of a traced script: the same steps on the null GPU without a watcher. Ratios of CPU time, and host memory.

    python -m benchmarks.speed.limit --sources FOLDER [--data FOLDER] [--only TEXT] [--steps 10] [--limit-s 90] [--fresh]

The scripts are those of docs/scripts.md (`benchmarks/scripts`) and some more of their repositories, each three ways
(`ways.py`). CPU times include the processes that a script waits for. Answers are kept in build/speed/limit.jsonl. Host memory
is the largest sum of the resident memory of a run's processes. The exit code is 1 while an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks import tables
from benchmarks.accuracy.runner import ROOT
from benchmarks.scripts.entry import Entry
from benchmarks.scripts.survey import prepared
from benchmarks.scripts.table import ENTRIES
from benchmarks.speed.more_scripts import MORE
from benchmarks.speed.ways import STAGES, WAYS
from vramcast.core.units import GIB

_KEPT: Final = ROOT / "build" / "speed" / "limit.jsonl"
MEDIAN, MOST, MEMORY, MEMORY_GIB = 1.5, 2.5, 1.5, 3.0  # spec: the aims
Found = dict[str, Any]


def measured(entry: Entry, options: argparse.Namespace) -> Found:
    """Return what a script took each way, or "missing", the reason why there is nothing."""
    ready = prepared(entry, options.sources.resolve(), options.data.resolve())
    if isinstance(ready, str):
        return {"missing": ready}
    path = ready.environment.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.ways", entry.device, str(options.steps), str(options.limit_s), *ready.words],
        env={**ready.environment, "PYTHONPATH": f"{ROOT}:{path}".rstrip(":")}, cwd=ready.folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (ready.out / "ways.txt").write_text(done.stderr, encoding="utf-8")
    lines = done.stdout.splitlines()
    ways = {one["way"]: one for one in (json.loads(line) for line in lines if line.startswith('{"way"'))}
    failed = next((f"{way}: {one['message']}" for way, one in ways.items() if one["status"] != "ok"), "")
    if failed or len(ways) < len(WAYS):
        return {"missing": failed or "no answer: " + " ".join(done.stderr.split())[-200:]}
    counts = [int(ways[way]["calls"]) for way in WAYS]
    if not min(counts) or max(counts) != min(counts):  # the runs would not end at the same place
        return {"missing": f"its own process called torch's optimizers {', '.join(map(str, counts))} times"}
    return ways


def seconds(found: Found, way: str, stages: Iterable[str] = STAGES) -> float:
    """Return the CPU seconds of a script, one way."""
    return sum(float(found[way][stage]) for stage in stages)


def ratio(found: Found, way: str, stages: Iterable[str] = STAGES) -> float:
    """Return the CPU time of one way / that of the bare run; the processing has none there, so it counts as a part of it."""
    return seconds(found, way, stages) / max(seconds(found, "bare", stages), 0.01)  # spec: the clock's tick


def memory(found: Found, way: str = "follower") -> float:
    """Return the host memory of one way / that of the bare run."""
    return float(found[way]["bytes"]) / float(found["bare"]["bytes"])


def report(kept: dict[str, Found]) -> tuple[str, bool]:
    """Return the tables as Markdown, and whether all aims are met."""
    found = {name: one for name, one in kept.items() if "missing" not in one}
    columns = ("script", "bare s", "recorder", "follower", "start", "steps", "end s", "bare GiB", "recorder", "follower")
    rows = [
        (
            name, f"{seconds(one, 'bare'):.2f}", *(f"{ratio(one, way):.2f}" for way in ("recorder", "follower")),
            *(f"{ratio(one, 'follower', (stage,)):.2f}" for stage in ("start", "steps")),
            f"{one['follower']['end']:.2f}", f"{one['bare']['bytes'] / GIB:.2f}",
            *(f"{memory(one, way):.2f}" for way in ("recorder", "follower")),
        )
        for name, one in sorted(found.items(), key=lambda pair: -ratio(pair[1], "follower"))
    ]  # fmt: skip
    said = [tables.table(columns, rows), ""]
    aims: tuple[tuple[str, Callable[[Found], float], float, float], ...] = (
        ("CPU time with the recorder / bare", lambda one: ratio(one, "recorder"), MEDIAN, MOST),
        ("CPU time with the follower / bare", lambda one: ratio(one, "follower"), MEDIAN, MOST),
        ("its steps alone", lambda one: ratio(one, "follower", ("steps",)), MEDIAN, MOST),
        ("host memory / bare", memory, MEMORY, MEMORY),
        ("host memory, GiB", lambda one: one["follower"]["bytes"] / GIB, MEMORY_GIB, MEMORY_GIB),
    )
    lines, is_met = [], True
    for what, value, median, most in aims if found else ():
        values = [value(one) for one in found.values()]
        middle, worst = statistics.median(values), max(values)
        is_met &= middle <= median and worst <= most
        lines.append((what, len(values), f"{middle:.2f}", f"{median:g}", f"{worst:.2f}", f"{most:g}"))
    said += [tables.table(("figure", "scripts", "median", "aim", "largest", "aim"), lines), ""]
    said += [f"left out: {name}: {one['missing']}" for name, one in kept.items() if "missing" in one]
    return "\n".join(said), is_met


def main() -> int:
    """Measure what has no stored answer, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, metavar="FOLDER", help="the repositories")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "scripts" / "data", metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scripts whose name or repository contains TEXT")
    parser.add_argument("--steps", type=int, default=10, help="training steps (default: 10)")
    parser.add_argument("--limit-s", type=float, default=90.0, metavar="SECONDS", help="limit of one way (default: 90)")
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    options = parser.parse_args()
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        _KEPT.unlink(missing_ok=True)
    lines = _KEPT.read_text(encoding="utf-8").splitlines() if _KEPT.exists() else []
    stored: dict[str, Found] = dict(json.loads(line) for line in lines)
    entries = [entry for entry in (*ENTRIES, *MORE) if options.only in f"{entry.name} {entry.repository}"]
    for entry in entries:
        if "missing" not in stored.get(entry.name, {"missing": ""}):
            continue
        stored[entry.name] = measured(entry, options)
        with open(_KEPT, "a", encoding="utf-8") as file:
            file.write(json.dumps((entry.name, stored[entry.name])) + "\n")
        print(f"{entry.name}: {stored[entry.name].get('missing', 'measured')}", file=sys.stderr, flush=True)
    text, is_met = report({entry.name: stored[entry.name] for entry in entries})
    print(text)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
