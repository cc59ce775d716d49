"""A wrong keyword argument of a public function is answered with the one that was meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import vramcast
from vramcast.jobs.other_names import suggests

MEANT = {
    "criterion": "loss=", "loss_fn": "loss=", "quantile": "level=", "gpu": "on=", "dtype": "precision=", "step": "steps=",
    "bf16": 'precision="bf16"', "learning_rate": "lr=", "gradient_checkpointing": "checkpointing=", "seq_len": "seq=",
    "num_gpus": "world_size=", "vram": "memory=", "timeout": "timeout_s=", "optimzer": "optimizer=", "dataloader": "batch=",
}  # fmt: skip


@pytest.mark.parametrize("wrong", MEANT)
def test_estimate_answers_the_names_of_other_tools(wrong: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument") as raised:
        vramcast.estimate(None, None, **{wrong: 1})  # type: ignore[arg-type]
    assert isinstance(raised.value, vramcast.UsageError)
    assert str(raised.value).endswith(f"'{wrong}': did you mean {MEANT[wrong]}?")


def test_error_lists_the_arguments_if_none_is_close() -> None:
    with pytest.raises(vramcast.UnknownArgument, match="'xyzzy': use one of device, tracer, level"):
        vramcast.Estimator(xyzzy=1)  # type: ignore[call-arg]


def test_methods_and_options_are_covered() -> None:
    with pytest.raises(TypeError, match=r"Estimator\(\) .*'on': did you mean device=\?"):
        vramcast.Estimator(on="t4")  # type: ignore[call-arg]
    estimator = vramcast.Estimator()
    with pytest.raises(TypeError, match=r"Estimator.estimate\(\) .*did you mean loss=\?"):
        estimator.estimate(None, None, criterion=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"did you mean level=\?"):
        estimator.changed(quantile=0.9)
    with pytest.raises(TypeError, match=r"estimate_command\(\) .*did you mean on=\?"):
        vramcast.estimate_command("train.py", gpu="t4")  # type: ignore[call-arg]


def test_a_name_of_another_function_is_not_suggested() -> None:
    @suggests("level")
    def answer(*, device: str = "", **options: object) -> object:
        return device, options

    with pytest.raises(TypeError, match=r"'criterion': use one of device, level\."):
        answer(criterion=1)  # type: ignore[call-arg]
    assert answer(level=1) == ("", {"level": 1})


def test_signatures_stay_readable() -> None:
    names = list(inspect.signature(vramcast.estimate).parameters)
    assert names[:2] == ["model", "batch"]
    assert {"loss", "optimizer", "on", "batch_size", "lora"} <= set(names)
    assert next(iter(inspect.signature(vramcast.Estimator).parameters)) == "device"


@pytest.mark.parametrize(
    "wrong", [{"parallel": "ddp"}, {"batch_size": 3}, {"mode": "infer", "zero_grad": "after-step"}, {"ranks": "0"}]
)
def test_errors_name_arguments_and_no_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(vramcast.UsageError) as raised:
        vramcast.estimate(torch.nn.Linear(8, 8), vramcast.TensorSpec((2, 8)), **wrong)
    assert "--" not in str(raised.value)
    assert [name for name in wrong if name in str(raised.value)]
