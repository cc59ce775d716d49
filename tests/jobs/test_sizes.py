"""Sizes of a batch: as asked, as taken, and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Inputs, Sizes
from vramcast.jobs.text import JobText

CARD = device("a100-40gb")
TAKEN = Sizes(batch_size=8, seq=512, defaults=("batch_size",), text="8 x 512 tokens")


def test_name_alone_leaves_the_inputs_to_the_tracer() -> None:
    job = JobText(target="hf:gpt2", seq=512).job(CARD)
    assert (job.batch, job.labels, job.sizes) == (None, None, Sizes(seq=512))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (JobText(target="hf:gpt2", batch=("8x3",), seq=9), "--batch gives each tensor, and --seq asks for the usual ones"),
        (
            JobText(target="net.py:make", batch_size=4),
            "--batch-size is for the models of torchvision, timm, hf",
        ),
        (JobText(target="net.py:make"), "--batch is missing"),
        (JobText(target="hf:gpt2", labels="8:int64"), "--labels needs --batch"),
        (JobText(target="hf:gpt2", image_size=0), r"image_size \(--image-size\) is 0: at least 1"),
        (JobText(command=("train.py",), seq=9), "--seq: this describes a model"),
    ],
)
def test_wrong_sizes_name_the_next_step(text: JobText, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        text.job(CARD)


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ((), "8 x 512 tokens"),
        (("seq",), "8 x 512 tokens (default length)"),
        (("seq", "batch_size"), "8 x 512 tokens (default batch and length)"),
        (("batch_size", "seq", "image_size"), "8 x 512 tokens (default batch, length and size)"),
    ],
)
def test_words_say_what_was_taken_by_default(defaults: tuple[str, ...], words: str) -> None:
    assert replace(TAKEN, defaults=defaults).words == words


def test_another_batch_size_makes_the_inputs_again(make_job: Callable[..., Job]) -> None:
    job = make_job(target="hf:gpt2", sizes=Sizes(seq=512))
    made = job.with_inputs(Inputs({"input_ids": TensorSpec((8, 512), "int64")}, None, TAKEN))
    assert made.batch is not None
    again = made.with_batch(32)
    assert (again.batch, again.sizes) == (None, Sizes(batch_size=32, seq=512))
    assert made.with_sizes(seq=64).sizes == Sizes(seq=64)


def test_batch_of_tensors_has_no_sizes_to_change(make_job: Callable[..., Job]) -> None:
    with pytest.raises(UsageError, match="--seq is for a model's name alone"):
        make_job(target="hf:gpt2", batch="8x3").with_sizes(seq=9)
