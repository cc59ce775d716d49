"""AutoSwap's four scores alone, and their weighted sum, on the paper's models: the live peak that goes without any waiting.

    python -m benchmarks.simulator.swap_scores [CARD LINK]        default: t4 paper

Each job is traced on the null GPU for three steps with accesses; operator times are the card's roofline. A cell is the share
of the live peak that swapping removes at no predicted overhead:

    DOA, AOA, WDOA, SWDOA    blocks in the order of one score (vramcast/plans/swap.py)
    ours                     the searched weights, the plan checked by the independent simulator
    bound                    no plan of this kind does better: a linear program in which blocks come and go bit by bit
    link x2                  ours over a link twice as fast, or on a card that needs twice the time
    instant                  the bound if copies took no time: the rest is one operator's own blocks and workspace

The paper (arXiv 1903.06631) reports up to 34.2 % without overhead, on a card whose operators were slower than a roofline. The
exit code is 1 for a plan that is wrong or that predicts overhead.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from benchmarks import tables
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.plans import swap, swap_checker
from vramcast.plans.swap_schedule import Link, Scheduler, find_link
from vramcast.plans.swap_timeline import Candidates, SwapTimeline
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import RunOptions

_CLASSES: Final = 1000  # spec: ImageNet
# spec: the models of arXiv 1903.06631 and its code; arbitrary: batches that fill a T4 about half
_BATCHES: Final = {"alexnet": 256, "vgg16": 64, "resnet18": 100, "resnet50": 64, "resnet101": 32, "inception_v3": 32}
_STEPS: Final = 3  # arbitrary: the third repeats the second


def bounds(trace: Trace, link: Link) -> tuple[int, int]:
    """Return two peaks that no plan without waiting gets below: over `link`, and if copies took no time."""
    timeline = SwapTimeline.of(trace)
    c = Candidates.of(timeline)
    scheduler = Scheduler(timeline, c, link)
    n, m = len(c), len(timeline)
    sizes, load, durations = c.size_bytes / MIB, scheduler.load / MIB, scheduler.durations / 1e6
    place = np.arange(m + 1)[:, None]
    # Unknowns: the moved share of each block; MiB that are back, and MiB that are away, when each operator begins; the peak.
    moved, none, each = sparse.csr_array(sizes[None, :]), sparse.csr_array, sparse.eye_array(m + 1, format="csr")
    step = each[1:] - each[:-1]
    column = sparse.csr_array(np.ones((m, 1)))
    rows = [
        (-column @ moved, each[:-1], -each[:-1], -column, -load),
        ((c.needed <= place) * sizes, -each, None, None, np.zeros(m + 1)),
        (-((c.ready < place) * sizes), None, each, None, np.zeros(m + 1)),
        (moved, None, -each[-1:], None, np.zeros(1)),
        (none((m, n)), step, None, None, durations * link.in_bytes_per_s / MIB),
        (none((m, n)), None, step, None, durations * link.out_bytes_per_s / MIB),
        (none((m, n)), -step, None, None, np.zeros(m)),
        (none((m, n)), None, -step, None, np.zeros(m)),
    ]
    found = linprog(
        np.append(np.zeros(n + 2 * (m + 1)), 1.0),
        A_ub=sparse.block_array([list(row[:4]) for row in rows], format="csr"),
        b_ub=np.concatenate([row[4] for row in rows]),
        bounds=[*[(0.0, 1.0)] * n, *[(0.0, 0.0), *[(0.0, None)] * m] * 2, (0.0, None)],
    )
    return int(found.fun * MIB), int(scheduler.least_load(np.arange(n)).max())


def job(name: str, card: str) -> Job:
    """Return the training job of a torchvision model."""
    batch, side = _BATCHES[name], 299 if name == "inception_v3" else 224  # spec: torchvision's documentation of each model
    images, labels = TensorSpec((batch, 3, side, side)), TensorSpec((batch,), "int64", high=_CLASSES)
    training = Training(optimizer="sgd", steps=_STEPS)
    return Job(device(card), target=f"torchvision:{name}", batch=images, labels=labels, training=training)


def main(arguments: list[str]) -> int:
    """Trace, plan, check, and print."""
    card, link_name = arguments or ("t4", "paper")
    link = find_link(link_name)
    faster = replace(link, name="x2", out_bytes_per_s=2 * link.out_bytes_per_s, in_bytes_per_s=2 * link.in_bytes_per_s)
    heads = ("job", "step, ms", "live, MiB", *swap.NAMES, "ours", "bound", "link x2", "instant", "moved, MiB", "checked")
    print(tables.heading(heads, "l" + "r" * (len(heads) - 2) + "l"))
    is_wrong = False
    for name, batch in _BATCHES.items():
        trace = NullGpuTracer.shared().trace(job(name, card), RunOptions(limited=False, accesses=True)).trace
        assert trace is not None
        plans = [swap.plan(trace, link=one) for one in (link, faster)]
        faults = [fault for plan in plans for fault in swap_checker.check(trace, plan).faults]
        faults += [f"{plan.overhead_ms} ms longer" for plan in plans if plan.overhead_ms]
        is_wrong |= bool(faults)
        ours, twice = plans
        bound, instant = bounds(trace, link)
        peaks = (*swap.peaks_by_score(trace, link=link).values(), ours.peak_bytes, bound, twice.peak_bytes, instant)
        less = [f"{100 * (1 - peak / ours.peak_live_bytes):.1f} %" for peak in peaks]
        figures = (f"{ours.step_ms:.0f}", f"{ours.peak_live_bytes >> 20:,}", *less, f"{ours.moved_bytes >> 20:,}")
        print(tables.row(f"{name}, {batch}", *figures, faults[0] if faults else "yes"), flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
