"""Jobs and tensor specs: accepted forms, and errors for wrong ones."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.jobs.job import (
    CHOICES,
    DTYPE_BYTES,
    TRAINING_FIELDS,
    Job,
    KnownTraining,
    TensorSpec,
    Training,
    map_batch,
    parse_batch,
)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("32x3x224x224", TensorSpec((32, 3, 224, 224))),
        ("32", TensorSpec((32,))),
        ("0x5", TensorSpec((0, 5))),
        ("8x128:int64", TensorSpec((8, 128), "int64")),
        ("8x128:int64<30522", TensorSpec((8, 128), "int64", 30522)),
        ("4:bool", TensorSpec((4,), "bool")),
        ("8x16..128:int64<9", TensorSpec((8, 128), "int64", 9, least=(8, 16))),
        ("8x128..128", TensorSpec((8, 128))),
        (" 2x2:bfloat16 ", TensorSpec((2, 2), "bfloat16")),
    ],
)
def test_parses_shape_dtype_and_limit(text: str, spec: TensorSpec) -> None:
    assert TensorSpec.parse(text) == spec


def test_varying_batch_makes_job_vary() -> None:
    spec = TensorSpec((8, 128), "int64", least=(8, 16))
    job = Job(device("t4"), target="m:f", batch={"ids": spec}, labels=TensorSpec((8,), "int64"))
    assert job.varies
    assert not dataclasses.replace(job, batch={"ids": dataclasses.replace(spec, least=None)}).varies
    assert job.with_batch(4).batch["ids"] == TensorSpec((4, 128), "int64", least=(4, 16))
    with pytest.raises(UsageError, match=r"smallest shape is \(8, 129\), and the largest \(8, 128\): write 8x16..128"):
        TensorSpec((8, 128), least=(8, 129))
    with pytest.raises(UsageError, match="smallest shape"):
        TensorSpec((8, 128), least=(8,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8x..128",
        "8x1..2..3",
        "8x16..",
        "x",
        "3x",
        "x3",
        "3 x 4",
        "-3x4",
        "3,4",
        "3x4:",
        "3x4:int64<",
        "3x4<5",
        "3x4:int64<-1",
        "3x4:int64:int64",
        "3.5x2",
        "ax3",
        "3X4",
    ],
)
def test_rejects_malformed_spec(text: str) -> None:
    with pytest.raises(UsageError) as error:
        TensorSpec.parse(text)
    assert repr(text) in str(error.value) or f"'{text}'" in str(error.value)
    assert "32x3x224x224" in str(error.value)


def test_unknown_dtype_lists_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'float33' is unknown: did you mean float32\? Else use one of float64, float32"):
        TensorSpec.parse("3x4:float33")
    with pytest.raises(UsageError, match="'quint8' is unknown"):
        TensorSpec((1,), "quint8")


def test_rejects_negative_dimension() -> None:
    with pytest.raises(UsageError, match=r"\(3, -1\) has a negative dimension"):
        TensorSpec((3, -1))


def test_accepts_torch_dtype() -> None:
    assert TensorSpec((2,), "torch.float16").dtype == "float16"
    assert TensorSpec([2, 3]).shape == (2, 3)  # type: ignore[arg-type]


def test_distinguishes_integers_from_floats() -> None:
    integers = {name for name in DTYPE_BYTES if TensorSpec((1,), name).is_integer}
    assert integers == {"int64", "int32", "int16", "int8", "uint8", "bool"}


shapes = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


@given(shapes, st.sampled_from(sorted(DTYPE_BYTES)), st.one_of(st.none(), st.integers(0, 2**40)))
def test_spec_round_trip(shape: list[int], dtype: str, high: int | None) -> None:
    text = "x".join(map(str, shape)) + f":{dtype}" + (f"<{high}" if high is not None else "")
    try:
        spec = TensorSpec.parse(text)
    except UsageError:
        # Only a limit out of range, or beyond an int64, may be rejected.
        assert high is not None or math.prod(max(n, 1) for n in shape) * DTYPE_BYTES[dtype] > 2**63 - 1
        return
    assert spec == TensorSpec(tuple(shape), dtype, high)


@given(st.text(alphabet="0123456789x:<ifnloat64 -", max_size=14))
def test_any_text_parses_or_raises_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(n >= 0 for n in TensorSpec.parse(text).shape)


def test_with_batch_sets_first_dimension() -> None:
    assert TensorSpec.parse("32x3x8:int64<9").with_batch(5) == TensorSpec((5, 3, 8), "int64", 9)


class Pair(NamedTuple):
    a: Any
    b: Any


def test_batch_keeps_containers() -> None:
    def double(leaf: int) -> int:
        return 2 * leaf

    assert map_batch({"a": 1, "b": [2, (3, 4)]}, double) == {"a": 2, "b": [4, (6, 8)]}
    assert map_batch(7, double) == 14
    assert map_batch(Pair(1, 2), lambda leaf: leaf) == Pair(
        1, 2
    )  # a named tuple is a leaf: its class may need its own arguments


@pytest.mark.parametrize(("name", "value"), [("precision", "fp8"), ("mode", "test"), ("zero_grad", "never")])
def test_unknown_choice_lists_known_ones(name: str, value: str) -> None:
    with pytest.raises(UsageError) as error:
        Training(**{name: value})
    assert str(error.value) == f"{name} '{value}' is unknown: use one of {', '.join(CHOICES[name])}."


@pytest.mark.parametrize("steps", [0, -1])
def test_rejects_zero_steps(steps: int) -> None:
    with pytest.raises(UsageError, match=f"steps is {steps}: at least 1"):
        Training(steps=steps)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_classes", -1, "at least 0"),
        ("num_classes", 10, "file.py:factory?"),
        ("memory_bytes", 0, "at least 1"),
        ("memory_bytes", True, "a whole number is expected"),
        ("memory_bytes", 1.5, "a whole number is expected"),
        ("alloc_conf", True, "PYTORCH_CUDA_ALLOC_CONF"),
        ("stack", "torch==2.8.0", "versions as text"),
    ],
)
def test_rejects_wrong_job_value(name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as error:
        Job(device("h200"), **{"target": "file.py:model", name: value})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("steps", "3", "a whole number is expected"),
        ("steps", True, "a whole number is expected"),
        ("steps", 10**19, "at most"),
        ("lr", math.nan, "a finite number is expected"),
        ("lr", -1, "at least 0 is needed"),
        ("checkpointing", "no", "use True or False"),
    ],
)
def test_rejects_wrong_training_value(name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as error:
        Training(**{name: value})  # type: ignore[arg-type]
    assert words in str(error.value)


def test_accepts_whole_floats_and_numpy_numbers() -> None:
    job = Job(device("h200"), memory_bytes=1.5e9)  # type: ignore[arg-type]
    training = Training(steps=np.int32(2), lr=np.float32(0.5))  # type: ignore[arg-type]
    assert (job.memory_bytes, training.steps, training.lr) == (1_500_000_000, 2, 0.5)
    assert (type(job.memory_bytes), type(training.steps), type(training.lr)) == (int, int, float)


def test_known_training_fills_in_defaults() -> None:
    assert {*TRAINING_FIELDS, "lr"} == {field.name for field in dataclasses.fields(Training)}
    assert KnownTraining().training() == Training()
    known = KnownTraining(optimizer="sgd", overlap_inputs=False).training()
    assert known == Training(optimizer="sgd", overlap_inputs=False)


def test_with_training_changes_nothing_else() -> None:
    job = Job(device("h200"), target="torchvision:resnet18", training=Training(steps=2))
    changed = job.with_training(precision="bf16")
    assert (changed.training, changed.target) == (Training(steps=2, precision="bf16"), job.target)
    with pytest.raises(UsageError, match="precision 'fp8' is unknown"):
        job.with_training(precision="fp8")


def test_rejects_device_given_as_text() -> None:
    with pytest.raises(UsageError, match=r"device is None: .*a100-40gb"):
        Job(None)  # type: ignore[arg-type]


def test_job_is_frozen_and_picklable() -> None:
    job = Job(device("h200"), target="torchvision:resnet18", batch={"x": TensorSpec((1, 2))})
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.training = Training()  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(job)) == job


def test_given_memory_replaces_device_memory() -> None:
    assert Job(device("h200"), memory_bytes=5 << 30).total_bytes == 5 << 30
    assert Job(device("h200")).total_bytes == device("h200").total_bytes


def test_rejects_cuda_malloc_async() -> None:
    with pytest.raises(UsageError, match="backend:native"):
        Job(device("t4"), target="x:y", alloc_conf="backend:cudaMallocAsync")


def test_parses_fill_value() -> None:
    assert TensorSpec.parse("8x128:int64=1") == TensorSpec((8, 128), "int64", fill=1)
    assert TensorSpec.parse("4:float32=-0.5").fill == -0.5
    assert (TensorSpec.parse("4:float32=0").fill, TensorSpec.parse("4:float32").fill) == (0, None)  # stated, and not
    assert TensorSpec.parse("8:int64<10=3") == TensorSpec((8,), "int64", high=10, fill=3)
    with pytest.raises(UsageError, match="8x128:int64=x"):
        TensorSpec.parse("8x128:int64=x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2:int64=1.5", "a whole number is expected"),
        ("2:uint8=-1", "at least 0"),
        ("2:uint8=256", "at most 255"),
        ("2:bool=2", "at most 1"),
        ("2:int64=9223372036854775808", "at most 9223372036854775807"),
        ("8:int64<10=10", "at most 9 is possible in int64<10"),
        ("8:int64<0", "at least 1"),
        ("8:int8<1000", "at most 128"),
        ("8x16:float32<5", "it is for integers"),
        ("4294967296x4294967296", "more than 2^63 bytes"),
        ("0x9223372036854775807x9223372036854775807", "more than 2^63 bytes"),
        ("9" * 5000, "characters cut"),
        ("8:int64=" + "9" * 400, "is not understood"),
    ],
)
def test_rejects_value_out_of_dtype_range(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        TensorSpec.parse(text)
    assert words in str(error.value)
    assert len(str(error.value)) < 300


def test_fill_is_exact_at_dtype_limits() -> None:
    assert TensorSpec.parse("2:int64=9223372036854775807").fill == 2**63 - 1
    assert TensorSpec.parse("2:int8=-128").fill == -128
    assert TensorSpec((2,), fill=-math.inf).fill == -math.inf  # values of a float mask
    assert TensorSpec((2,), "int64", fill=3.0).fill == 3


@pytest.mark.parametrize("shape", [3, "3x4", (2.5,), ("3",), (True,), None])
def test_rejects_invalid_shape(shape: object) -> None:
    with pytest.raises(UsageError, match=r"a whole number is expected|give a tuple of dimensions"):
        TensorSpec(shape)  # type: ignore[arg-type]


def test_returns_declared_integers() -> None:
    assert TensorSpec((3,), "int16", content=b"\x01\x00\xff\xff\x01\x00").integers() == {1, -1}
    assert TensorSpec((3,), "int64", fill=7).integers() == {7}
    assert TensorSpec((0,), "int64", fill=7).integers() == TensorSpec((3,)).integers() == set()


def test_rejects_duplicate_input() -> None:
    with pytest.raises(UsageError, match="gives 'x' twice"):
        parse_batch(["x=2x3", "x=2x4"])


def test_rejects_content_of_other_size() -> None:
    assert TensorSpec((2, 3), "int16", content=bytes(12)).size_bytes == 12
    with pytest.raises(UsageError, match=r"Content has 11 bytes, but \(2, 3\) of int16 has 12"):
        TensorSpec((2, 3), "int16", content=bytes(11))


def test_with_batch_repeats_or_cuts_content() -> None:
    spec = TensorSpec((2, 2), "uint8", content=b"abcd")
    assert spec.with_batch(1).content == b"ab"
    assert spec.with_batch(5).content == b"abcdabcdab"
    assert spec.with_batch(0).content == b""
    assert TensorSpec((0, 2), "uint8", content=b"").with_batch(3).content is None
