"""The largest batch that timm's own search finds under `vramcast run`, and the one that it found on a real card.

    python -m benchmarks.accuracy.largest_batch [--kind eager|compiled] [--sample N] [--seed S] [--half H] [--torch V]
    python -m benchmarks.accuracy.largest_batch --summary

timm's benchmark.py of the release of the published results (`timm_edges.RELEASES`) runs unmodified, with its row's options, on
the null GPU and the torch of the row (build/versions/VERSION). It begins with its first batch and takes the next smaller one
after a failure. What it reports as `infer_batch_size` counts: the bound has no part in it. The screens are those of
`timm_edges.edges_of`. Results are appended to build/accuracy/largest-batch.jsonl, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.runner import BUILD, ROOT
from benchmarks.accuracy.timm_edges import HALVES, RELEASES, REPOSITORY, Edge, edges_of, key_of, tried_before
from benchmarks.measured.measured_run import runs_of
from benchmarks.repeats.packages import packages, project
from benchmarks.tables import table

KINDS: Final = ("eager", "compiled")
RESULTS: Final = BUILD / "largest-batch.jsonl"
_TIMEOUT_S: Final = 900.0  # arbitrary: a compiled model takes minutes for each batch that it tries
_PRECISIONS: Final = {
    "amp": ["--amp"], "amp_bf16": ["--amp", "--amp-dtype", "bfloat16"], "bf16": ["--precision", "bfloat16"],
}  # fmt: skip
_NONE: Final = "no batch"


def searched(edge: Edge, *, is_compiled: bool) -> dict[str, Any]:
    """Return what timm's search finds for an edge: `found`, its batch (0: none), or `message`, the reason for no answer."""
    python = ROOT / "build" / "versions" / edge.torch / "bin" / "python"
    script = project("huggingface/pytorch-image-models", f"v{RELEASES[edge.torch]}", "benchmark.py") / "benchmark.py"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            str(python), str(script), "--bench", "infer", "--model", edge.model, "--img-size", str(edge.image_size),
            "--batch-size", str(edge.first_batch), *_PRECISIONS[edge.precision], "--results-file", str(results),
            "--results-format", "json", *["--channels-last"] * (edge.layout == "nhwc"), *["--fast-norm"] * edge.fast_norm,
            *["--torchcompile"] * is_compiled,
        ]  # fmt: skip
        own = ["-m", "vramcast", "run", "--json", "-q", "--on", edge.device.key, "--memory", str(edge.device.total_bytes)]
        places = os.pathsep.join((str(packages(f"timm=={RELEASES[edge.torch]}")), str(ROOT)))
        try:
            done = subprocess.run(
                [str(python), *own, "--", *command], env={**os.environ, "PYTHONPATH": places}, cwd=folder,
                timeout=_TIMEOUT_S, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"message": "not done in time"}
        seconds = round(time.perf_counter() - started, 1)
        if results.exists():
            said = json.loads(results.read_text(encoding="utf-8"))
            return {"found": said.get("infer_batch_size", 0), "error": said.get("error", ""), "seconds": seconds}
    return {"message": " ".join(done.stderr.split())[-300:], "seconds": seconds}


def rungs_between(found: int, right: int, first: int) -> int:
    """Return the number of steps of timm's ladder from the right batch to the one found; negative: the one found is smaller."""
    ladder = [right]
    while (larger := tried_before(ladder[-1], first)) is not None:
        ladder.append(larger)
    if found in ladder:
        return ladder.index(found)
    ladder = [found] if found else [1]
    while ladder[-1] < right and (larger := tried_before(ladder[-1], first)) is not None:
        ladder.append(larger)
    return -len(ladder[1:]) - (not found)


def kept() -> Iterator[dict[str, Any]]:
    """Yield the results so far."""
    if RESULTS.exists():
        yield from map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())


def summary() -> str:
    """Return the tables: the share of edges with the same batch, and each edge with another one."""
    groups: dict[str, list[int]] = defaultdict(list)
    others, left = [], Counter[str]()
    for line in kept():
        edge = Edge(**{field.name: line[field.name] for field in fields(Edge)})
        if "message" in line:
            left[line["message"][-80:]] += 1
            continue
        rungs = rungs_between(line["found"], edge.ran_batch, edge.first_batch)
        group = f"{line['kind']}, torch {edge.torch}"
        for name in (group, f"{group}, {edge.card}, {edge.layout}"):
            groups[name].append(rungs)
        if rungs:
            numbers = edge.ran_batch, line["found"] or _NONE, f"{rungs:+}", line["error"][:60]
            others.append([line["kind"], edge.torch, edge.card, edge.layout, edge.model, edge.image_size, *numbers])
    columns = ("edges", "n", "same batch", "one rung smaller", "one larger", "further")
    rows = []
    for group, rungs in sorted(groups.items()):
        seen = Counter(rungs)
        further = len(rungs) - seen[0] - seen[-1] - seen[1]
        rows.append([group, len(rungs), f"{100 * seen[0] / len(rungs):.0f} %", seen[-1], seen[1], further])
    shown = table(
        ["kind", "torch", "card", "layout", "model", "pixels", "on the card", "here", "rungs", "error"], sorted(others)
    )
    reasons = "\n".join(f"{n} without an answer: {reason}" for reason, n in left.items())
    return f"{table(columns, rows)}\n\n{shown}\n\n{reasons}"


def main() -> None:
    """Search for a sample of edges and print the tables of all results so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--sample", type=int, metavar="N", help="number of edges; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=HALVES, help="half of the models; default: both")
    parser.add_argument("--torch", metavar="V", default="2.9.1")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no edge after this time")
    parser.add_argument("--summary", action="store_true", help="only print the tables")
    options = parser.parse_args()
    is_compiled, started = options.kind == "compiled", time.perf_counter()
    edges = [] if options.summary else edges_of(runs_of(REPOSITORY), is_compiled=is_compiled)
    edges = [edge for edge in edges if edge.torch == options.torch and options.half in (None, edge.half)]
    random.Random(options.seed).shuffle(edges)
    done = {(line["kind"], line["key"]) for line in kept()}
    for edge in edges[: options.sample]:
        if (options.kind, key_of(edge)) in done or time.perf_counter() - started > options.seconds:
            continue
        line = {"kind": options.kind, "key": key_of(edge), **asdict(edge), **searched(edge, is_compiled=is_compiled)}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    print(summary())


if __name__ == "__main__":
    main()
