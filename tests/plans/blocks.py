"""Random blocks, as traces and as lifetimes; the place of a block in a plan."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.pool import PoolPlan
from vramcast.tracer.format.trace import Action, Trace

Event = tuple[Action, int, int]  # action, bytes, block


def trace_of(events: list[Event], **columns: Any) -> Trace:
    """Return the trace of (action, bytes, block) rows."""
    names = ("action", "size_bytes", "block")
    return Trace.build({name: [event[i] for event in events] for i, name in enumerate(names)} | columns)


@st.composite
def traces(draw: st.DrawFn, max_blocks: int = 40, max_size_bytes: int = 20_000) -> Trace:
    """Draw traces with allocations and frees in any order, some blocks never freed, and some frees late."""
    events: list[Event] = []
    live: list[int] = []
    waiting: list[int] = []
    for _ in range(draw(st.integers(0, max_blocks))):
        for _ in range(draw(st.integers(0, 3))):
            if live and draw(st.booleans()):
                block = live.pop(draw(st.integers(0, len(live) - 1)))
                events.append((Action.FREE_REQUESTED, events[block][1], block))
                waiting.append(block)
            if waiting and draw(st.integers(0, 3)):
                block = waiting.pop()
                events.append((Action.FREE_COMPLETED, events[block][1], block))
        live.append(len(events))
        events.append((Action.ALLOC, draw(st.integers(0, max_size_bytes)), len(events)))
    return trace_of(events)


def lifetimes(max_blocks: int = 40, max_size_bytes: int = 20_000) -> st.SearchStrategy[Lifetimes]:
    """Draw the lifetimes of such traces."""
    return traces(max_blocks, max_size_bytes).map(Lifetimes.of)


def offset_of(plan: PoolPlan, number: int) -> int | None:
    """Return the place of the job's block `number`, from 0, by the rules of `PoolPlan.to_dict`; None: it has none."""
    period = plan.period
    if period is not None and number >= period.end_block:
        k = (number - period.first_block) % period.n_blocks
        return None if k in period.unplanned else int(plan.offset_bytes[period.first_block + k])
    return int(plan.offset_bytes[number]) if number < len(plan.offset_bytes) else None


def training(n_steps: int, *, n_layers: int = 30, kept: int = 2, leak: bool = False) -> Trace:
    """Return the trace of a small training job, with step marks.

    Parameters, then steps: the outputs of the previous step die late in the next one's forward pass, activations die in the
    backward pass, gradients at the next step's start; the optimizer's state is created in step 0. The rows before the first
    step and each layer's own small repeats could be mistaken for an iteration.

    Args:
        n_steps: Number of steps.
        n_layers: Layers of the model.
        kept: Outputs that the next step frees.
        leak: Whether each step keeps one block permanently.
    """
    events: list[Event] = []
    steps: list[int] = []
    step = -1

    def malloc(size_bytes: int) -> int:
        events.append((Action.ALLOC, size_bytes, len(events)))
        steps.append(step)
        return len(events) - 1

    def free(block: int) -> None:
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            events.append((action, events[block][1], block))
            steps.append(step)

    for layer in range(n_layers):
        malloc(4096 * (layer % 5 + 1))
        free(malloc(700))
    gradients: list[int] = []
    outputs: list[int] = []
    for step in range(n_steps):
        for gradient in gradients:
            free(gradient)
        activations = []
        for layer in range(n_layers):
            for _ in range(3):
                free(malloc(2000))
            activations.append(malloc(10_000 + 512 * (layer % 3)))
        new = [malloc(50_000) for _ in range(kept)]
        for output in outputs:
            free(output)
        outputs = new
        gradients = []
        for layer in reversed(range(n_layers)):
            gradients.append(malloc(4096 * (layer % 5 + 1)))
            free(activations[layer])
        for layer in range(n_layers):
            if step == 0:
                malloc(8192 * (layer % 5 + 1))
            free(malloc(4096 * (layer % 5 + 1)))
        if leak:
            malloc(4)
    return trace_of(events, step=steps)
