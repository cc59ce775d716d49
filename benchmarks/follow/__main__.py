"""Plans that are followed: python -m benchmarks.follow [jobs] [deviations] [requests] [faults] [fits] [cost]; default: all.

jobs        ten jobs: the device's footprint after each step, next to the plan's arena
deviations  what a job takes that does something else than planned, next to the native allocator
requests    1,000 seeded deviations of requests, judged by a checker that shares no code with the follower
faults      the same with a fault in the follower, which the checker must find
fits        a job on a card of 4 GiB, with and without its plan
cost        nanoseconds of a request, next to the native allocator
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.follow import cost, on_null, requests
from benchmarks.follow.jobs import JOBS, LARGE
from benchmarks.follow.on_null import CARD, MIB, Asked
from vramcast.hardware.cards import device
from vramcast.plans.runtime import library
from vramcast.plans.runtime.plan_file import PlanFile
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.client import NullGpuTracer

# Of deviations.py, which a job imports.
DEVIATIONS: Final = (
    "evaluates", "raises", "smaller", "clips", "prefetches", "before", "accumulates", "averages", "no workspaces",
    "varies", "skips", "generates", "keeps", "perturbs", "distills", "resumes", "unfreezes", "zeroes", "grows", "augments",
    "autocasts", "drops", "alternates", "goes_back_twice", "empties",
)  # fmt: skip
N_SEEDS: Final = 1000
FAULTS: Final = {
    "half of the check of what lives": (
        "arena.h", "if (next != live_.begin() && std::prev(next)->first", "if (false && std::prev(next)->first",
    ),
    "other streams are ignored": ("follow.cpp", "streams.push_back(stream.stream());", "(void)0;"),
}  # fmt: skip
SMALL_CARD: Final = (4096 - 473) * MIB  # 4 GiB, less the context (`vramcast doctor` measures it, rtx4090: 473 MiB)


def arena(plan: Path, rank: int = 0) -> int:
    """Return the size of a plan's pool."""
    pool = PlanFile.read(plan).of_rank(rank).pool
    assert pool is not None
    return pool.height_bytes


def jobs(folder: Path) -> bool:
    """Compare footprints with arenas; both are rounded up to torch's segments of 2 MiB."""
    is_right = True
    for name in JOBS:
        plan = on_null.plan(name, folder)
        for rank in (0, 1) if name == "ranks" else (0,):
            ran = on_null.run_script(name, on_null.N_TRACED + 1, plan, folder, rank=rank)
            wanted = -(-arena(plan, rank) // (2 * MIB)) * 2 * MIB
            stats = ran.found["stats"]
            true = stats["allocated_bytes.all.current"] == ran.found["in_snapshot"]["active_allocated"]
            is_right &= set(ran.device) == {wanted} and true
            print(f"{name:15} rank {rank}  arena {wanted / MIB:6,.0f}  device {[d // MIB for d in ran.device]}  {ran.counts}")
    return is_right


def deviations(folder: Path) -> bool:
    """Compare jobs that deviate with the native allocator: at most 5 % above it."""
    is_right = True
    without = NullGpuTracer(ask_cudnn=False)
    for name in ("transformer", "cnn"):
        plan = on_null.plan(name, folder)
        for deviation in DEVIATIONS:
            tracer = without if deviation == "no workspaces" else None
            what = "" if deviation == "no workspaces" else deviation
            native, followed = (on_null.run(Asked(name, 12, path, what), tracer=tracer).most // MIB for path in ("", str(plan)))
            is_right &= followed <= native * 1.05
            print(
                f"{name:12} {deviation:14} native {native:6,}  followed {followed:6,}  {followed / native - 1:+.1%}", flush=True
            )
    without.close()
    return is_right


def judged(plan: Path, seeds: range, *, is_slow: bool, source: str = "") -> tuple[Counter[str], int]:
    """Return the sums over seeds, and how many seeds have an error."""
    tracer, total, wrong = NullGpuTracer(ask_cudnn=False), Counter[str](), 0
    for seed in seeds:
        root = (str(Path(__file__).parents[2]),)
        found = tracer.run(Program(requests.__name__, (str(plan), seed, is_slow, source), device(CARD), False, root))
        total.update(found)
        wrong += bool(found["overlaps"] or found["requests lost"] or found["left over"])
    tracer.close()
    return total, wrong


def seeds(folder: Path) -> bool:
    """Judge seeded deviations, with fast and with slow side streams."""
    plans = [on_null.plan(name, folder) for name in ("cnn", "transformer")]
    errors = 0
    for number, (plan, is_slow) in enumerate((plan, is_slow) for plan in plans for is_slow in (False, True)):
        part = range(number * N_SEEDS // 4, (number + 1) * N_SEEDS // 4)
        total, wrong = judged(plan, part, is_slow=is_slow)
        errors += wrong
        print(
            f"{plan.stem} seeds {part.start} to {part.stop - 1}, slow {is_slow}: {dict(total)}, wrong seeds {wrong}", flush=True
        )
    return errors == 0


def faulty_source(fault: str, folder: Path) -> str:
    """Return a copy of the follower's source with a fault."""
    name, old, new = FAULTS[fault]
    copy = folder / fault.replace(" ", "-")
    shutil.copytree(Path(library.__file__).parent / "csrc", copy)
    text = (copy / name).read_text()
    if text.count(old) != 1:
        raise RuntimeError(f"{name} has changed: '{old}' occurs {text.count(old)} times")
    (copy / name).write_text(text.replace(old, new))
    return str(copy / "follow.cpp")


def faults(folder: Path) -> bool:
    """Judge followers with a planted fault."""
    plan = on_null.plan("transformer", folder)
    caught = []
    for fault in FAULTS:
        _, wrong = judged(plan, range(24), is_slow=True, source=faulty_source(fault, folder))
        caught.append(wrong > 0)
        print(f"{fault}: found by {wrong} of 24 seeds")
    return all(caught)


def fits(folder: Path) -> bool:
    """Run a job on a card of 4 GiB."""
    plan = on_null.plan(LARGE, folder)
    native, followed = (on_null.run(Asked(LARGE, 5, path), total_bytes=SMALL_CARD) for path in ("", str(plan)))
    print(f"without a plan: {native.found['out_of_memory'][:120]}")
    print(f"with its plan: {followed.most / MIB:,.0f} MiB, {followed.counts}")
    return bool(native.found["out_of_memory"]) and not followed.found["out_of_memory"]


def costs(folder: Path) -> bool:
    """Compare the time of requests; one from the plan takes at most as long as the native allocator's."""
    root = (str(Path(__file__).parents[2]),)
    tracer = NullGpuTracer.shared()
    kinds = ("native", "planned", "stray")
    found = {kind: tracer.run(Program(cost.__name__, kind, device(CARD), False, root)) for kind in kinds}
    print("ns a request and its free:", {kind: round(ns) for kind, ns in found.items()})
    return bool(found["planned"] <= found["native"])


SECTIONS: Final = {"jobs": jobs, "deviations": deviations, "requests": seeds, "faults": faults, "fits": fits, "cost": costs}


def main() -> int:
    """Run the sections of the command line; return 1 if one does not show what it should."""
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or SECTIONS:
            print(f"# {name}", flush=True)
            if not SECTIONS[name](Path(folder)):
                failed.append(name)
    print("failed:", ", ".join(failed) or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
