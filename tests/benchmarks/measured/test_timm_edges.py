"""Tests of the judge of timm's edges: its screens and its summary."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.accuracy.timm_edges import (
    CARDS,
    HALVES,
    Edge,
    Step,
    check_indexing,
    edges_of,
    key_of,
    summary,
    tried_before,
    widths,
)
from benchmarks.measured.measured_run import EDGE, MeasuredRun
from vramcast import TensorSpec, estimate
from vramcast.core.errors import JobError

RUN = MeasuredRun(
    "huggingface/pytorch-image-models", "0" * 40, "a.csv", "Apache-2.0", "benchmark.py", "resnet50", EDGE, None, "samples",
    "repeatable", batch=512, failed_batch=768, sizes="224", precision="amp", options={"layout": "nchw"}, card="rtx4090",
    torch="2.9.1",
)  # fmt: skip


def verdicts(ran: str, failed: str, *, ran_runs: bool = True, failed_runs: bool = False) -> dict[str, Any]:
    known = {"card": "rtx4090", "torch": "2.9.1", "layout": "nchw"}
    need = {"need": CARDS["rtx4090"].total_bytes}
    return {
        **known,
        "ran": {"verdict": ran, "verdict at 0.9": "fits", "runs": ran_runs, **need},
        "failed": {"verdict": failed, "verdict at 0.9": "fits", "runs": failed_runs, **need},
    }


def test_eager_edges_are_judged() -> None:
    [edge] = edges_of([RUN, replace(RUN, traits="compiled"), replace(RUN, figure="allocated peak", value_bytes=1)])
    assert edge == Edge("resnet50", 224, 512, 768, "amp", "nchw", "rtx4090", "2.9.1")
    assert edge.device is CARDS["rtx4090"]
    assert len({key_of(one) for one in (edge, replace(edge, torch="2.4.0"))}) == 2


def test_batch_that_fails_on_twice_the_memory_failed_for_another_reason() -> None:
    larger = replace(RUN, card="rtx pro 6000 max-q")
    assert edges_of([RUN, larger]) == []
    assert len(edges_of([RUN, replace(larger, failed_batch=2048)])) == 2
    assert len(edges_of([RUN, replace(RUN, card="rtx5090")])) == 2
    assert len(edges_of([RUN, replace(larger, precision="bf16")])) == 2


def test_batch_that_is_small_for_the_card_failed_for_another_reason() -> None:
    larger = replace(RUN, card="rtx pro 6000 max-q", torch="2.4.0", batch=1024, failed_batch=1536)
    [edge] = edges_of([RUN, larger])  # 512 images took at most 24 GB, so 1536 take at most 72 GB
    assert edge == Edge.of(RUN)
    assert len(edges_of([RUN, replace(larger, failed_batch=3072)])) == 2
    assert edges_of([RUN, replace(RUN, torch="2.4.0", batch=256, failed_batch=384)]) == [Edge.of(RUN)]
    assert len(edges_of([RUN, replace(RUN, torch="2.4.0", batch=384, failed_batch=512)])) == 2


def test_step_makes_its_images_once_and_keeps_no_output() -> None:
    outputs = []

    class Model(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert images.shape == (2, 3, 8, 8)
            outputs.append((images.data_ptr(), weakref.ref(output := images + 1)))
            return output

    step = Step(Model(), (2, 3, 8, 8), (3, 3, 8, 8), torch.channels_last)
    for _ in range(2):
        assert step(torch.zeros(1)).shape == (1,)
    assert outputs[0][0] == outputs[1][0]
    assert [output() for _, output in outputs] == [None, None]
    assert step.images is not None
    assert step.images.is_contiguous(memory_format=torch.channels_last)


class Depthwise(torch.nn.Module):
    """A depthwise convolution as in EfficientNet, with the indexing of a release of torch."""

    def __init__(self, release: str, layout: torch.memory_format) -> None:
        super().__init__()
        self.layout = layout
        self.convolution = torch.nn.Conv2d(144, 144, 3, stride=2, padding=1, groups=144)
        self.convolution.register_forward_hook(partial(check_indexing, release))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the convolution of as many images, made on the card: the host need not hold 11 GB."""
        made = torch.empty(len(images), 144, 160, 160, device=images.device, memory_format=self.layout)
        return self.convolution(made)  # type: ignore[no-any-return]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("release", "fails", "runs"),
    [("2.4.0", torch.contiguous_format, torch.channels_last), ("2.9.1", torch.channels_last, torch.contiguous_format)],
)
def test_torch_indexes_depthwise_convolutions_with_32_bits(
    release: str, fails: torch.memory_format, runs: torch.memory_format
) -> None:
    """2.4.0 does in its own layout alone, 2.9.1 in channels-last alone."""
    options: dict[str, Any] = {"mode": "infer", "precision": "amp-fp16", "on": "h200"}
    assert estimate(partial(Depthwise, release, fails), TensorSpec((512,)), **options).allocated
    with pytest.raises(JobError, match="canUse32BitIndexMath"):
        estimate(partial(Depthwise, release, fails), TensorSpec((768,)), **options)
    assert estimate(partial(Depthwise, release, runs), TensorSpec((768,)), **options).allocated


def test_batch_follows_the_next_larger_one() -> None:
    assert [tried_before(batch, 1024) for batch in (1024, 768, 512, 3, 2, 1)] == [None, 1024, 768, 4, 3, 2]


def test_half_depends_on_the_model_alone() -> None:
    one, other = Edge.of(RUN), Edge.of(replace(RUN, card="rtx3090", torch="2.4.0"))
    assert one.half == other.half
    assert {Edge.of(replace(RUN, model=f"resnet{n}")).half for n in range(20)} == set(HALVES)


def test_summary_counts_unsafe_and_useless_verdicts() -> None:
    lines = [
        verdicts("fits", "does not fit"),
        verdicts("uncertain", "fits", failed_runs=True),
        verdicts("does not fit", "uncertain", ran_runs=False),
        verdicts("uncertain", "does not fit"),
        verdicts("none", "does not fit"),
    ]
    text = summary(lines)
    assert "| all | 4 | 25 % | 25 % | 38 % | 50 % | 25 % | 25 % |" in text
    assert "| all, at level 0.9 | 4 | 100 % | 0 % | 0 % | 50 % | 25 % | 25 % |" in text
    assert "1 edges left out" in text


def test_width_is_that_of_the_failed_batches_with_most_room() -> None:
    def line(ran: float, failed: float) -> dict[str, Any]:
        card_bytes = CARDS["rtx4090"].total_bytes
        return {"card": "rtx4090", "ran": {"need": card_bytes / ran}, "failed": {"need": card_bytes / failed}}

    lines = [line(1.2, 0.9)] * 97 + [line(1.01, 1.04), line(1.02, 1.5)]
    assert "not known from 98 edges" in widths(lines[:-1])
    assert "'fits': must be 1.500" in widths(lines)
    assert "'fits': must be 1.040" in widths([line(1.2, 0.9)] * 100 + lines)
    assert "10% uncertain: 1.200" in widths(lines)
