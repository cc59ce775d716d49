"""The warnings of an estimate, from an artificial observation."""

from __future__ import annotations

import pytest

from vramcast.estimates.remarks import remarks
from vramcast.estimates.runs.on_card import OnCard
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Command, Job, Training
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.observation import Observation


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, ["no training step was observed: no optimizer stepped after a backward pass"]),
        (2, ["the command ended after 2 of 3 training steps"]),
        (3, []),
    ],
)
def test_warns_of_missing_training_steps(steps: int, said: list[str]) -> None:
    card = device("h200")
    job = Job(card, command=Command(("train.py",)), training=Training(steps=3))
    trace = Trace.build({"action": [], "size_bytes": [], "block": []})
    context = context_bytes(card, 13, ("cublas",))
    seen = Observation(trace, "null", "2.11.0", steps=steps)
    on_card = OnCard(seen, Stack(), trace, 0, 0, 0, None, context, 13, None, {})
    assert [text for text in remarks(job, on_card) if "training step" in text] == said


def test_generation_lacks_no_training_step() -> None:
    job = Job(device("h200"), command=Command(("generate.py",)))
    trace = Trace.build({"action": [Action.ALLOC], "size_bytes": [512], "block": [0], "category": [Category.KV_CACHE]})
    seen = Observation(trace, "null", "2.11.0", steps=0)
    on_card = OnCard(seen, Stack(), trace, 0, 0, 0, None, context_bytes(job.device, 13, ("cublas",)), 13, None, {})
    assert not [text for text in remarks(job, on_card) if "training" in text]
