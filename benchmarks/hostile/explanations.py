"""`vramcast explain` on failures with a known cause: recorded histories, and seeded ones.

    python -m benchmarks.hostile.explanations [--no-scripts]

A recorded history ($VRAMCAST_SHARED/data/snapshots) fails on a card chosen so that the cause is known without `explain`:
a page smaller than the first largest request, with room for all before it (one request larger than the card); between the
smallest card on which expandable segments run and torch's smallest (fragmentation); smaller than the peak of live blocks (too
large). Each proposed replay is repeated by the simulator in plain Python, which shares no code with the compiled one.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import vramcast
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.explanations.causes import (
    CHECKPOINT,
    EVALUATION,
    FRAGMENTATION,
    GROWTH,
    HOST,
    LARGER,
    LIMIT,
    OTHERS,
    OUTSIDE,
    STEP,
    TOO_LARGE,
)  # fmt: skip
from vramcast.hardware.cards import DEFAULT, device
from vramcast.hardware.context import context_bytes
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.what_if import min_feasible
from vramcast.tracer.format.snapshot import read_snapshot, snapshot_from_trace
from vramcast.tracer.format.trace import Action

MIB: Final = 1 << 20
PAGE: Final = 2 * MIB
SHARED: Final = Path(os.environ.get("VRAMCAST_SHARED", "/nonexistent")) / "data/snapshots"
CONTEXT: Final = context_bytes(device(DEFAULT), 12, ("cublas",)).bytes
_OWN_ERROR: Final = "b5ef67ce"  # a history with an error of its own: 4.94 GiB, while 78.29 of 79 GiB are live


def recorded(most: int) -> Iterator[tuple[str, str, Any, int]]:
    """Yield (name, cause, file, card) for recorded histories, in turn with each cause that a history can have."""
    found: list[tuple[int, tuple[str, str, Any, int]]] = []
    for path in sorted(path for path in SHARED.glob("*/*") if path.suffix in (".pickle", ".pkl")):
        trace, name = vramcast.read_trace(path), f"{path.parent.name.partition('+')[0]}/{path.name[:8]}"
        if path.name.startswith(_OWN_ERROR):
            found.append((0, (name, TOO_LARGE, path, 0)))
            continue
        asked = Requests.of(trace)
        torch, expandable = min_feasible(asked), min_feasible(asked, vramcast.Settings(expandable_segments=True))
        sizes = np.where(asked.kind == RequestKind.MALLOC, asked.size_bytes, 0)
        cards = {TOO_LARGE: vramcast.simulate(trace).outcome.statistics.active.peak - PAGE}
        if torch and expandable and torch - expandable > 2 * PAGE:
            cards[FRAGMENTATION] = (torch + expandable) // 2
        card = vramcast.Card(max(int(sizes.max()) - PAGE, PAGE))
        if vramcast.simulate(trace, card=card, engine="python").outcome.stopped_at == int(sizes.argmax()):
            cards[LARGER] = card.total_bytes
        rows = [(cause, size) for cause, size in cards.items() if size > 32 * MIB]
        found += [((at + len(found)) % len(rows), (name, cause, path, size + CONTEXT)) for at, (cause, size) in enumerate(rows)]
    yield from [one for _, one in sorted(found, key=lambda one: one[0])][:most]


class Program:
    """Requests of a small program with stacks like `forward@model.py main@train.py:4`, the innermost function first."""

    def __init__(self, layers: int = 6) -> None:
        self.rows: list[tuple[Action, int, int, str]] = []
        for _ in range(layers):
            self.take(16, "convert@torch/nn/m.py:8 cuda@torch/nn/m.py:6 main@train.py:80")

    def take(self, mib: float, stack: str) -> int:
        """Request a block; return its name."""
        self.rows.append((Action.ALLOC, int(mib * MIB), len(self.rows), stack))
        return len(self.rows) - 1

    def free(self, *blocks: int) -> None:
        """Free blocks."""
        ends = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        self.rows += [(action, self.rows[block][1], block, "free@free:1") for block in blocks for action in ends]

    def step(self, mib: float, layers: int = 6, where: str = "train") -> None:
        """Run a step of training or evaluation with activations of this size."""
        main = f"{where}@train.py:20 main@train.py:90"
        batch = self.take(mib / 8, f"to@torch/tensor.py:1 {main}")
        layer = f"forward@torch/nn/linear.py:9 forward@model.py:7 _call_impl@torch/nn/m.py:1 {main}"
        kept = [self.take(mib, layer) for _ in range(layers)]
        for block in reversed(kept):
            self.free(block, *([self.take(mib, f"backward@torch/autograd.py:5 {main}")] if where == "train" else []))
        self.free(batch)

    def run(self, path: Path, card_mib: int, settings: vramcast.Settings | None = None) -> Path:
        """Write the history up to the error on a card, as torch would."""
        names = list(dict.fromkeys(row[3] for row in self.rows))
        action, size, block = (np.array([row[i] for row in self.rows]) for i in range(3))
        columns: dict[str, Any] = {
            "action": action,
            "size_bytes": size,
            "block": block,
            "op": [names.index(row[3]) for row in self.rows],
        }
        found = vramcast.simulate(vramcast.Trace.build(columns, ops=names), settings, vramcast.Card(card_mib * MIB))
        assert not found.fits, path.name
        snapshot = snapshot_from_trace(found.replayed())
        for entry in [*snapshot["device_traces"][0], *(block for one in snapshot["segments"] for block in one["blocks"])]:
            stack = (
                [one.replace("torch/", "/opt/site-packages/torch/") for one in entry["frames"][0]["name"].split()]
                if entry["frames"]
                else []
            )
            parts = [(one.partition("@")[0], *one.partition("@")[2].split(":")) for one in stack]
            entry["frames"] = [{"name": name, "filename": file, "line": int(line)} for name, file, line in parts]
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return path


def histories(folder: Path) -> Iterator[tuple[str, str, Any, int]]:
    """Yield (name, cause, file, card) of the seeded histories; card 0: `explain` gets none."""
    for steps, leak in ((12, 9), (30, 7), (5, 40)):
        program = Program()
        for _ in range(4 * steps):
            program.step(40)
            program.take(leak, "append@train.py:33 main@train.py:91")
        yield f"{leak} MiB kept a step", GROWTH, program.run(folder / f"growth{leak}", 386 + steps * leak), 0
    for mib in (40, 64):
        program = Program()
        program.step(mib, layers=40)
        yield f"first forward, {mib} MiB", TOO_LARGE, program.run(folder / f"large{mib}", 96 + 20 * mib), 0
    yield "model of 90 layers", TOO_LARGE, Program(90).run(folder / "build", 1000), 0
    for mib, where, cause in ((110, "train", STEP), (120, "validate", EVALUATION), (130, "evaluation_loop", EVALUATION)):
        program = Program()
        for _ in range(5):
            program.step(40)
        program.step(mib, where=where)
        yield f"{where}, {mib} MiB", cause, program.run(folder / where, 500), 0
    program = Program()
    for _ in range(5):
        program.step(40)
    for _ in range(6):
        program.take(90, "clone@torch/tensor.py:3 state_dict@model.py:70 save_checkpoint@train.py:60 main@train.py:95")
    yield "copy for a checkpoint", CHECKPOINT, program.run(folder / "save", 500), 0
    program = Program()
    program.take(4000, "matmul@train.py:12 main@train.py:90")
    yield "one matrix", LARGER, program.run(folder / "one", 3000), 0
    for seed in range(3):  # in each segment of a batch, a small tensor stays, so that the segment cannot be returned
        program, sizes, batches = Program(), np.sort(np.random.default_rng(seed).integers(200, 400, 8)).tolist(), []
        for size in sizes:
            program.free(program.take(size, "to@train.py:40 main@train.py:90"))
            batches.append(program.take(size - 12, "to@train.py:41 main@train.py:90"))
            program.take(12, "embedding@data.py:5 main@train.py:91")
        program.free(*batches)
        program.take(sum(sizes) // 2, "cat@train.py:44 main@train.py:92")
        yield f"holes, seed {seed}", FRAGMENTATION, program.run(folder / f"holes{seed}", 120 + sum(sizes)), 0
    program = Program()
    program.step(64, layers=40)
    yield "memory fraction", LIMIT, program.run(folder / "limit", 4000, vramcast.Settings(memory_fraction=0.5)), 0
    yield "another process", OTHERS, program.run(folder / "others", 1000), 8000 * MIB


def _new(asked: str, total: str, free: str, before: str, live: str, holes: str) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of {total} "
        f"GiB of which {free} GiB is free. {before}Of the allocated memory {live} GiB is allocated by PyTorch, and {holes} GiB "
        "is reserved by PyTorch but unallocated. If ..."
    )


def _old(asked: str, live: str, free: str, allowed: str, reserved: str) -> str:
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {asked} GiB (GPU 0; 23.65 GiB total capacity; {live} GiB already "
        f"allocated; {free} GiB free; {allowed}{reserved} GiB reserved in total by PyTorch)"
    )


def _process(size: str, who: str = "Including non-PyTorch memory, this process") -> str:
    return f"{who} has {size} GiB memory in use. "


_FULL: Final = _new("2.00", "39.39", "0.90", _process("38.40"), "36.80", "0.90")
_RANK: Final = 'step 400\nTraceback (most recent call last)\n  File "/home/a/train.py", line 88, in validate\n[rank{}]: '
TEXTS: Final = {
    "2.x, holes": (FRAGMENTATION, _new("2.50", "23.65", "0.40", _process("23.20"), "18.10", "4.60")),
    "1.13, full": (TOO_LARGE, _old("1.20", "21.90", "0.30", "", "22.20")),
    "2.x, neighbor": (OTHERS, _new("0.50", "23.65", "0.02", _process("20.1", "Process 71") + _process("3.5"), "2.9", "0.1")),
    "2.x, container": (TOO_LARGE, _new("1.00", "79.15", "0.60", _process("78.50", "Process 9"), "77.50", "0.30")),
    "1.13, fraction": (LIMIT, _old("1.00", "11.20", "11.10", "11.82 GiB allowed; ", "11.50")),
    "a negative size": (LARGER, "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."),
    "cuBLAS": (OUTSIDE, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "Slurm": (HOST, "Epoch 3\nslurmstepd: error: Detected 1 oom_kill event in StepId=81.0. Some of the step tasks ..."),
    "4 ranks": (EVALUATION, "\n".join(_RANK.format(n) + _FULL for n in range(4))),
}  # fmt: skip
_SCRIPT: Final = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer, kept = torch.optim.AdamW(model.parameters()), []
{first}
for step in range(40):
    optimizer.zero_grad()
    output = model(torch.randn({batch}, 1024, device="cuda"))
    output.mean().backward()
    optimizer.step()
    {last}
model.eval()
with torch.no_grad():
    model(torch.randn({evaluated}, 1024, device="cuda"))
"""
SCRIPTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # on 2 GiB
    "outputs kept": (GROWTH, {"last": "kept.append(output.detach())", "batch": 16384}),
    "evaluation": (EVALUATION, {"evaluated": 250_000}),
    "batch": (TOO_LARGE, {"batch": 65536}),
    "attention matrix": (LARGER, {"last": "torch.zeros(24576, 24576, device='cuda')"}),
    "fraction": (LIMIT, {"first": "torch.cuda.set_per_process_memory_fraction(0.05)"}),
}


def unproved(path: Path, found: Any, card_bytes: int) -> list[str]:
    """Return the replayed changes of a history with which the simulator in Python runs out of memory."""
    ends = [any(entry["action"] == "oom" for entry in one) for one in read_snapshot(path)["device_traces"]]
    trace = vramcast.read_trace(path, ends.index(True) if any(ends) else None)
    card, last, size, lost = found.card, len(trace), card_bytes - CONTEXT, []
    if any(ends):
        last = int(np.flatnonzero(trace.action == Action.OOM)[-1])
        request: dict[str, Any] = {"size_bytes": trace.size_bytes[[last]], "stream": trace.stream[[last]]}
        trace = trace.insert([last], {"action": [Action.ALLOC], "block": [0], **request})
        size = card.live_bytes + card.holes_bytes + card.free_bytes * (found.cause != LIMIT)
    more = {"no memory fraction, no MPS limit": card.free_bytes, "no other process on the card": card.others_bytes or 0}
    for name in (one.change for one in found.changes if one.proof == "replayed"):
        played, room, at = trace, size + more.get(name, 0), last
        is_setting, is_growth = name.startswith("PYTORCH"), name.startswith("free what")
        settings = vramcast.Settings.parse(name.partition("=")[2] if is_setting else "")
        if is_growth:  # the seeded programs keep what they append; the final layout has it too
            keeps = [row for row in range(last) if trace.operator_at(row).name == "append"]
            at -= int(np.isin(trace.block[:last], keeps).sum())
            played = replace(trace.without_blocks(keeps), segments=None, blocks=None)
        if not is_setting and not is_growth and name not in more:
            room = 1 << 44
        result = vramcast.simulate(played, settings, vramcast.Card(room), engine="python")
        stopped = result.outcome.stopped_at
        if stopped is not None and result.requests.source[stopped] <= at:
            lost.append(f"{path.name}: {name}")
    return lost


def _traced(script: Path, card_bytes: int) -> Any:
    try:
        return vramcast.estimate_command([str(script)], device="rtx3060", memory=card_bytes, until="end")
    except vramcast.DoesNotFit as error:
        return error


def main() -> int:
    """Print the table; return 1 if fewer than 95 % of the causes are right, or a change is not proved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-scripts", action="store_true")
    options = parser.parse_args()
    rows, n_changes, lost = [], 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [("recorded", *one) for one in recorded(30)] + [("seeded", *one) for one in histories(folder)]
        cases += [("text", said, cause, text, 0) for said, (cause, text) in TEXTS.items()]
        for said, (cause, values) in {} if options.no_scripts else SCRIPTS.items():
            script = folder / f"{said}.py"
            script.write_text(_SCRIPT.format(**{"evaluated": 1024, "batch": 1024, "first": "", "last": "", **values}))
            cases.append(("script", said, cause, script, 2 << 30))
        for kind, said, cause, source, card in cases:
            try:
                given = _traced(source, card) if kind == "script" else source
                found = vramcast.explain(given, memory=card if card and given is source else None)
            except VramcastError as error:
                rows.append([kind, said, cause, f"{type(error).__name__}: {error}", "", "no"])
                continue
            lost += unproved(source, found, card) if kind in ("recorded", "seeded") else []
            n_changes += len(found.changes)
            sure = "" if found.is_certain else " (uncertain)"
            right = "yes" if found.cause == cause else "no"
            rows.append([kind, said, cause, f"{found.cause}{sure}", str(len(found.changes)), right])
    print(table(["kind", "failure", "cause", "found", "changes", "right"], rows))
    n_right = sum(row[-1] == "yes" for row in rows)
    print(f"\n{n_right} of {len(rows)} causes right; {n_changes} changes, of which a second replay refutes {len(lost)}: {lost}")
    return 0 if n_right >= 0.95 * len(rows) and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
