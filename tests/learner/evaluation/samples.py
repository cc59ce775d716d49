"""Runs to evaluate, written by hand and drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from vramcast.learner.evaluation.scored_run import Scored

GB = 10**9
LEVELS = (0.5, 0.9, 0.99)


def run(measured_bytes: int, estimated_bytes: int, survives: bool | None = None, **values: Any) -> Scored:
    """Return a run; `survives` is the outcome of a second round, capped at the estimate."""
    if survives is not None:
        values["ran_at" if survives else "died_at"] = estimated_bytes
    named = {"id": "a", "group": "resnet", "family": "cnn", "gpu": "rtx3060", "optimizer": "sgd", **values}
    return Scored(measured_bytes=measured_bytes, estimated_bytes=estimated_bytes, **named)


def drawn_runs(n: int, seed: int = 0, *, n_models: int = 8) -> list[Scored]:
    """Return jobs of a few models, each with a bias of its own; bounds are true quantiles of the noise around it."""
    random = np.random.default_rng(seed)
    optimizers = ("sgd", "adam", "adamw")
    found = []
    for number in range(n):
        model = int(random.integers(n_models))
        measured = int(random.uniform(1, 11) * GB)
        ratio = float(np.exp(0.04 * (model - n_models / 2) / n_models + random.normal(0, 0.02)))
        estimated = round(measured / ratio)
        found.append(
            run(
                measured,
                estimated,
                id=f"run {number}",
                group=f"model {model}",
                family=("cnn", "transformer")[model % 2],
                gpu=("rtx3060", "rtx4060")[int(random.integers(2))],
                optimizer=optimizers[int(random.integers(3))],
                bounds={0.5: estimated, 0.9: round(estimated * 1.04), 0.99: round(estimated * 1.09)},
                card_bytes=12 * GB,
                batch_size=int(2 ** random.integers(1, 9)),
            )
        )
    return found


@st.composite
def scored_runs(draw: st.DrawFn, *, min_size: int = 0) -> list[Scored]:
    sizes = st.integers(1, 40 * GB)
    found = []
    for number in range(draw(st.integers(min_size, 12))):
        bounds = sorted(draw(st.lists(sizes, min_size=len(LEVELS), max_size=len(LEVELS))))
        found.append(
            run(
                draw(sizes),
                draw(sizes),
                id=f"run {number}",
                group=draw(st.sampled_from(["a", "b", "c"])),
                family=draw(st.sampled_from(["cnn", "mlp", ""])),
                gpu=draw(st.sampled_from(["rtx3060", "a100-40gb"])),
                optimizer=draw(st.sampled_from(["sgd", "adam", ""])),
                bounds=dict(zip(LEVELS, bounds, strict=True)),
                card_bytes=draw(st.none() | sizes),
                ran_out_of_memory=draw(st.booleans()),
                said_out_of_memory=draw(st.booleans()),
                survives=draw(st.none() | st.booleans()),
                censored=draw(st.booleans()),
                batch_size=draw(st.integers(0, 64)),
            )
        )
    return found
