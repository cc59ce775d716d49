"""The types that editors show: a typical use of the Python API passes mypy, and mistakes do not."""

from __future__ import annotations

import inspect
from importlib import resources
from pathlib import Path

import pytest

import vramcast

ROOT = Path(__file__).parents[1]
TYPICAL = """
import torch
import vramcast

model = torch.nn.Linear(64, 10)
batch = torch.zeros(4, 64), torch.zeros(4, dtype=torch.long)
optimizer, loss = torch.optim.AdamW(model.parameters()), torch.nn.CrossEntropyLoss()
est = vramcast.estimate(model, batch, optimizer=optimizer, loss=loss, on="t4")
reveal_type(est.upper_bound)
reveal_type(vramcast.estimate("hf:gpt2", batch_size=4, seq=512, lora="r=16", precision="bf16", on="rtx4090").fits())
estimator = vramcast.Estimator(device="rtx4090", level=0.9)
found = estimator.estimate(model, vramcast.TensorSpec((8, 64)), optimizer=torch.optim.SGD, mode="train")
reveal_type(estimator.sweep(found.job, [1, 2]).rows())
vramcast.estimate_command(["train.py"], on="t4", until="end", steps=2)
"""
MISTAKES = """
import vramcast

vramcast.estimate("hf:gpt2", criterion=1)
vramcast.estimate("hf:gpt2", precision="fp31")
vramcast.Estimator().estimate("hf:gpt2", seq="long")
vramcast.estimate_command("train.py", until="later")
"""


@pytest.mark.integration
def test_typical_use_passes_mypy_and_mistakes_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    for name, text in {"typical.py": TYPICAL, "mistakes.py": MISTAKES}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(ROOT)  # the cache of `make typecheck` is there
    said, trouble, _ = api.run([str(tmp_path / name) for name in ("typical.py", "mistakes.py")])
    lines = said.splitlines()
    shown = [line.split('"')[1] for line in lines if "Revealed type" in line]
    wrong = [Path(line.split(": error")[0]).name for line in lines if ": error" in line]
    assert [one.replace("builtins.", "") for one in shown] == ["int", "bool", "list[dict[str, Any]]"], said + trouble
    assert sorted(wrong) == [f"mistakes.py:{line}" for line in (4, 5, 6, 7)], said


def test_package_says_that_it_is_typed() -> None:
    assert resources.files("vramcast").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", ["estimate", "estimate_command"])
def test_signature_names_each_argument_with_its_type(name: str) -> None:
    function = getattr(vramcast, name)
    parameters = inspect.signature(function).parameters.values()
    assert all(one.annotation is not one.empty for one in parameters)
    assert all(f"    {one.name}: " in function.__doc__ for one in parameters)
    assert ">>> " in function.__doc__
