"""The training loop as plain PyTorch: models by name, losses by kind of output, optimizers, precision, order of operations.

Runs on the CPU: nothing here needs the null GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.core.errors import JobError, UsageError  # noqa: E402
from vramcast.jobs.job import Job, TensorSpec  # noqa: E402
from vramcast.tracer.program import meta_model, meta_pickle, model_program  # noqa: E402

MakeJob = Callable[..., Job]
Need = Callable[[str], Any]
CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------------------ targets
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("resnet50", "is not understood: did you mean torchvision:resnet50"),
        ("", "is not understood"),
        ("torchvision:", "is not understood"),
        ("nofile.py:f", "The file 'nofile.py' does not exist"),
        ("no.such.module:f", r"No module named 'no'.*package.module:factory"),
        ("json:nothing_there", "'json' has no 'nothing_there': write json:factory"),
    ],
)
def test_wrong_target_lists_valid_ones(make_job: MakeJob, target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_program.build_model(make_job(target=target))


def test_misspelt_name_gets_suggestion(make_job: MakeJob, need: Need) -> None:
    need("torchvision")
    with pytest.raises(UsageError, match=r"torchvision has no model 'resnet5': did you mean .*resnet50"):
        model_program.build_model(make_job(target="torchvision:resnet5"))
    need("timm")
    with pytest.raises(UsageError, match=r"timm has no model 'resnett50': did you mean .*resnet50"):
        model_program.build_model(make_job(target="timm:resnett50"))


def test_named_models_take_number_of_classes(make_job: MakeJob, need: Need) -> None:
    need("torchvision")
    assert model_program.build_model(make_job(target="torchvision:resnet18", num_classes=7)).fc.out_features == 7
    need("timm")
    assert model_program.build_model(make_job(target="timm:resnet18", num_classes=7)).fc.out_features == 7
    need("transformers")
    assert model_program.build_model(make_job(target="hf:vit", num_classes=7)).classifier.out_features == 7


def test_target_takes_keyword_arguments(make_job: MakeJob, need: Need, tiny_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text(
        "import torch\ndef net(depth, width=8): return torch.nn.Sequential(*[torch.nn.Linear(width, width)] * depth)"
    )
    assert len(model_program.build_model(make_job(target=f'{path}:net?{{"depth": 3}}'))) == 3  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="are not a JSON object"):
        model_program.build_model(make_job(target=f"{path}:net?depth=3"))
    need("torchvision")
    assert model_program.build_model(make_job(target='torchvision:resnet18?{"num_classes": 5}')).fc.out_features == 5
    with pytest.raises(UsageError, match="torchvision's resnet18 does not accept these arguments"):
        model_program.build_model(make_job(target='torchvision:resnet18?{"classes": 5}'))
    need("timm")
    assert model_program.build_model(make_job(target='timm:resnet18?{"num_classes": 5}')).fc.out_features == 5
    need("transformers")
    assert len(model_program.build_model(make_job(target='hf:gpt2?{"n_layer": 2, "n_embd": 96}')).transformer.h) == 2  # type: ignore[union-attr, arg-type]


def test_model_type_is_not_folder_of_same_name(
    make_job: MakeJob, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("transformers")
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_program.build_model(make_job(target='hf:gpt2?{"n_layer": 1}')).transformer is not None


def test_hugging_face_config_sets_class_and_dtype(make_job: MakeJob, tmp_path: Path, need: Need) -> None:
    need("transformers")
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64,'
        ' "architectures": ["BertForSequenceClassification"], "dtype": "bfloat16"}'
    )
    model = model_program.build_model(make_job(target=f"hf:{config}"))
    assert type(model).__name__ == "BertForSequenceClassification"
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    assert type(model_program.build_model(make_job(target=f"hf:{tmp_path}"))).__name__ == "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "has no model_type"),
        ("not json", "cannot be read"),
        (None, "cannot be read"),
        ('{"model_type": "nope"}', "no model type 'nope'"),
    ],
)
def test_names_wrong_config(make_job: MakeJob, tmp_path: Path, text: str | None, message: str, need: Need) -> None:
    need("transformers")
    config = tmp_path / "config.json"
    if text is not None:
        config.write_text(text)
    with pytest.raises(UsageError, match=message):
        model_program.build_model(make_job(target=f"hf:{config}"))


def test_factory_in_file_must_return_model(make_job: MakeJob, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert len(model_program.build_model(make_job(target=f"{tiny_models}:mlp"))) == 3
    with pytest.raises(UsageError, match="factory returned a str"):
        model_program.build_model(make_job(target=f"{tiny_models}:returns_text"))
    with pytest.raises(UsageError, match="The model is a int"):
        model_program.build_model(make_job(target=f"{tiny_models}:not_a_model"))
    with pytest.raises(UsageError, match=r"has no 'mpl': write .*did you mean mlp"):
        model_program.build_model(make_job(target=f"{tiny_models}:mpl"))


def test_missing_package_names_install_command(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"Cannot import the package 'timm'.*pip install timm"):
        model_program.build_model(make_job(target="timm:resnet18"))


def test_precision_format_and_mode_reach_model(make_job: MakeJob) -> None:
    data = meta_pickle.dumps(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)))
    half = model_program.build_model(make_job(model=data, precision="bf16", channels_last=True, mode="infer"))
    assert half[0].weight.dtype == torch.bfloat16
    assert half[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not half.training
    assert model_program.build_model(make_job(model=data, precision="amp-bf16"))[0].weight.dtype == torch.float32


def test_checkpointing_needs_switch(make_job: MakeJob, need: Need) -> None:
    with pytest.raises(UsageError, match=r"Linear has no switch for gradient checkpointing.*without --checkpointing"):
        model_program.build_model(make_job(model=meta_pickle.dumps(torch.nn.Linear(2, 2)), checkpointing=True))
    need("transformers")
    model = model_program.build_model(make_job(target="hf:gpt2", checkpointing=True))
    assert any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


# ------------------------------------------------------------------------------------------------ optimizers
def parameters() -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3), requires_grad=False)]


@pytest.mark.parametrize(
    ("given", "class_name", "options"),
    [
        ("adam", "Adam", {}),
        ("AdamW", "AdamW", {}),
        ("SGD", "SGD", {"momentum": 0}),
        ("sgdm", "SGD", {"momentum": 0.9}),
        ("adamw:fused=true", "AdamW", {"fused": True}),
        ("adam:amsgrad=true,weight_decay=0.5", "Adam", {"amsgrad": True, "weight_decay": 0.5}),
        ("sgdm:momentum=0.5", "SGD", {"momentum": 0.5}),
        ("adagrad", "Adagrad", {}),
        ("rmsprop:momentum=0.1", "RMSprop", {"momentum": 0.1}),
    ],
)
def test_optimizer_by_name_and_options(make_job: MakeJob, given: str, class_name: str, options: dict[str, Any]) -> None:
    optimizer = model_program.build_optimizer(make_job(optimizer=given, lr=0.25), parameters())
    assert type(optimizer).__name__ == class_name
    assert {key: optimizer.defaults[key] for key in options} == options
    assert optimizer.defaults["lr"] == 0.25
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]  # the frozen one is left out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("adamm", "Optimizer 'adamm' is unknown: did you mean adam.*use one of .*adamw.*sgdm"),
        ("", "is unknown"),
        ("adam:fused", "'fused' is not key=value"),
        ("adam:fused=True", "is not key=value with a JSON value"),
        ("adam:warmth=1", "does not take these options.*warmth"),
        ("optimizer", "is unknown"),
    ],
)
def test_wrong_optimizer_lists_valid_ones(make_job: MakeJob, given: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_program.build_optimizer(make_job(optimizer=given), parameters())


def test_optimizer_may_be_class_or_callable(make_job: MakeJob) -> None:
    by_class = model_program.build_optimizer(make_job(optimizer=meta_pickle.dumps(torch.optim.SGD), lr=0.5), parameters())
    assert by_class.defaults["lr"] == 0.5
    by_call = model_program.build_optimizer(
        make_job(optimizer=meta_pickle.dumps(lambda p: torch.optim.Adam(p, lr=0.125))), parameters()
    )
    assert by_call.defaults["lr"] == 0.125


# ------------------------------------------------------------------------------------------------ losses and batches
SCORES = torch.zeros(4, 10, requires_grad=True)
LABELS = torch.zeros(4, dtype=torch.int64)


def test_models_own_loss_comes_first() -> None:
    own = torch.tensor(3.0, requires_grad=True)
    assert model_program.default_loss(SimpleNamespace(loss=own, logits=SCORES), None) is own


def test_sums_dict_of_losses() -> None:
    losses = {"a": torch.tensor(1.0, requires_grad=True), "b": torch.tensor(2.5, requires_grad=True)}
    assert model_program.default_loss(losses, None).item() == 3.5


def test_integer_labels_mean_cross_entropy() -> None:
    assert model_program.default_loss(SCORES, LABELS).grad_fn.name() == "NllLossBackward0"
    images = torch.zeros(2, 5, 8, 8, requires_grad=True)
    assert (
        model_program.default_loss({"out": images}, torch.zeros(2, 8, 8, dtype=torch.int64)).grad_fn.name()
        == "NllLoss2DBackward0"
    )
    tokens = torch.zeros(2, 6, 30, requires_grad=True)
    assert model_program.default_loss(tokens, torch.zeros(2, 6, dtype=torch.int64)).grad_fn.name() == "NllLossBackward0"


def test_floating_labels_mean_squared_error() -> None:
    assert model_program.default_loss(SCORES, torch.zeros(4, 10)).grad_fn.name() == "MseLossBackward0"


def test_without_labels_trains_on_mean() -> None:
    assert model_program.default_loss(SCORES, None).grad_fn.name() == "MeanBackward0"
    assert model_program.default_loss((LABELS, [SCORES]), None).grad_fn.name() == "MeanBackward0"
    assert model_program.default_loss(SimpleNamespace(loss=None, logits=SCORES), None).grad_fn.name() == "MeanBackward0"
    assert not model_program.default_loss(torch.zeros(3, dtype=torch.complex64, requires_grad=True), None).is_complex()


def test_unfitting_labels_report_both_shapes() -> None:
    with pytest.raises(UsageError, match=r"labels \(7,\) .*int64.* do not fit the output \(4, 10\)"):
        model_program.default_loss(SCORES, torch.zeros(7, dtype=torch.int64))


def test_output_without_floats_needs_loss() -> None:
    with pytest.raises(JobError, match="holds no floating tensor to train on: give a loss"):
        model_program.default_loss({"ids": LABELS}, None)


class Takes(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class TakesTwo(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a


class TakesAny(torch.nn.Module):
    def forward(self, *inputs: Any) -> Any:
        return inputs


def test_last_tuple_element_may_be_labels() -> None:
    a, b, c = TensorSpec((1,)), TensorSpec((2,)), TensorSpec((3,))
    assert model_program.split_labels(Takes(), (a, b)) == (a, b)
    assert model_program.split_labels(TakesTwo(), (a, b)) == ((a, b), None)
    assert model_program.split_labels(TakesTwo(), (a, b, c)) == ((a, b), c)
    assert model_program.split_labels(TakesAny(), (a, b)) == ((a, b), None)
    assert model_program.split_labels(Takes(), a) == (a, None)
    assert model_program.split_labels(Takes(), {"x": a}) == ({"x": a}, None)


def test_host_batch_has_jobs_dtype_and_format(make_job: MakeJob) -> None:
    job = make_job(precision="bf16", channels_last=True)
    batch = model_program.host_batch(
        job, {"x": TensorSpec((2, 3, 4, 4)), "ids": TensorSpec((2,), "int64"), "d": TensorSpec((1,), "float64"), "n": 5}
    )
    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].is_contiguous(memory_format=torch.channels_last)
    assert batch["ids"].tolist() == [0, 0]
    assert batch["d"].dtype == torch.float64
    assert batch["n"] == 5


# ------------------------------------------------------------------------------------------------ the loop
class Told(torch.nn.Linear):
    """A layer that records its events, in order."""

    events: list[str] = []  # noqa: RUF012

    def forward(self, x: Any) -> Any:
        Told.events.append(
            "forward"
            + ("" if self.weight.grad is None else " with gradient")
            + ("" if torch.is_grad_enabled() else " without graph")
        )
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda g: Told.events.append("backward" + ("" if self.weight.grad is None else " with gradient")))
        return out


TELLING = model_program.Hooks(build_model=lambda job: Told(3, 2))


@pytest.fixture
def told() -> list[str]:
    Told.events = []
    return Told.events


@pytest.mark.parametrize(
    ("zero_grad", "expected"),
    [
        ("step-start", ["forward", "backward", "forward", "backward"]),
        ("after-step", ["forward", "backward", "forward", "backward"]),
        ("before-backward", ["forward", "backward", "forward with gradient", "backward"]),
    ],
)
def test_drops_gradients_where_job_does(make_job: MakeJob, told: list[str], zero_grad: str, expected: list[str]) -> None:
    model_program.run(make_job(batch="4x3", zero_grad=zero_grad, steps=2), CPU, TELLING)
    assert told == expected


def test_gradients_stay_until_next_step(make_job: MakeJob) -> None:
    model = Told(3, 2)
    hooks = model_program.Hooks(build_model=lambda job: model)
    model_program.run(make_job(batch="4x3", zero_grad="step-start", steps=1), CPU, hooks)
    assert model.weight.grad is not None
    model_program.run(make_job(batch="4x3", zero_grad="after-step", steps=1), CPU, hooks)
    assert model.weight.grad is None


def test_inference_has_no_graph_and_no_backward(make_job: MakeJob, told: list[str]) -> None:
    model_program.run(make_job(batch="4x3", mode="infer", steps=2), CPU, TELLING)
    assert told == ["forward without graph"] * 2


def test_users_loss_gets_labels_or_batch(make_job: MakeJob, told: list[str]) -> None:
    seen: list[Any] = []
    loss_with = {"loss": b"x"}
    original = meta_model.loads
    hollow_loads = lambda data: (lambda out, other: (seen.append(other), out.sum())[1]) if data == b"x" else original(data)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_model, "loads", hollow_loads)
        model_program.run(make_job(batch="4x3", steps=1, **loss_with), CPU, TELLING)
        model_program.run(make_job(batch="4x3", labels="4:int64", steps=1, **loss_with), CPU, TELLING)
    assert [tuple(other.shape) for other in seen] == [(4, 3), (4,)]


def test_amp_casts_inside_and_bf16_everywhere(make_job: MakeJob) -> None:
    dtypes: list[Any] = []

    class Watched(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            out = super().forward(x)
            dtypes.append((self.weight.dtype, out.dtype))
            return out

    hooks = model_program.Hooks(build_model=lambda job: Watched(3, 2))
    model_program.run(make_job(batch="4x3", precision="amp-bf16", steps=1), CPU, hooks)
    assert dtypes == [(torch.float32, torch.bfloat16)]
