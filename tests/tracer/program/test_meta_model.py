"""Models without weights: the same structure, the same small values, no storage."""

from __future__ import annotations

import copy
import importlib
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.core.errors import UsageError  # noqa: E402
from vramcast.tracer.program import meta_model  # noqa: E402
from vramcast.tracer.program.meta_model import BIG_BYTES, HollowInit, loads  # noqa: E402
from vramcast.tracer.program.meta_pickle import dumps  # noqa: E402

Need = Callable[[str], Any]
BIG = BIG_BYTES // 4  # floats


def description(module: Any) -> list[tuple[Any, ...]]:
    """Return everything that memory can depend on: names, kinds, shapes, dtypes, strides, shared storage."""
    seen: dict[int, int] = {}
    rows = []
    for kind, items in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in items:
            shared = seen.setdefault(tensor.untyped_storage().data_ptr(), len(seen)) if tensor.numel() else -1
            rows.append((kind, name, tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.requires_grad, shared))
    return rows + [("module", name, type(child).__qualname__, child.training) for name, child in module.named_modules()]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 512)
        self.head = torch.nn.Linear(512, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(1000))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("none", None)
        self.frozen = torch.nn.Parameter(torch.full((5,), 3.0), requires_grad=False)
        self.view = self.embedding.weight.detach()[:10]

    def forward(self, x: Any) -> Any:
        return self.head(self.embedding(x))


# ------------------------------------------------------------------------------------------------ dumps and loads
def test_module_keeps_structure() -> None:
    before = Tied().eval()
    after = loads(dumps(before))
    assert description(after) == description(before)
    assert after.head.weight is after.embedding.weight
    assert after.view.untyped_storage().data_ptr() == after.embedding.weight.untyped_storage().data_ptr()
    assert after.positions.equal(before.positions)
    assert after.frozen.equal(before.frozen)


def test_big_weights_are_not_sent() -> None:
    assert len(dumps(torch.nn.Linear(4096, 4096))) < 50_000  # 64 MiB of weights; the bias of 16 KiB is sent
    assert len(dumps(torch.zeros(BIG))) < 5_000
    assert len(dumps(torch.zeros(BIG - 1024))) > BIG_BYTES - 8192


def test_many_small_tensors_are_sent_quickly() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(100)])  # 64 MB, each weight below the limit
    start_s = time.process_time()
    dumps(model)
    assert time.process_time() - start_s < 5  # takes 0.1 s; copying element by element takes ten minutes


@pytest.mark.parametrize("shape", [(512, 1024), (1024, 512)])
def test_builds_initializer_with_in_place_transpose(shape: tuple[int, int]) -> None:
    with HollowInit():
        assert torch.nn.init.orthogonal_(torch.empty(shape)).shape == shape


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_small_values_of_every_type_are_sent(dtype: Any) -> None:
    values = (torch.arange(12) % 2).to(dtype).reshape(3, 4).t()
    back = loads(dumps(values))
    assert (back.dtype, back.shape, back.stride()) == (values.dtype, values.shape, values.stride())
    assert back.equal(values)


def test_empty_and_scalar_tensors_are_sent() -> None:
    assert loads(dumps(torch.empty(0, 3))).shape == (0, 3)
    assert loads(dumps(torch.tensor(7))).item() == 7


def test_meta_module_arrives_with_untouched_storage() -> None:
    with torch.device("meta"):
        before = torch.nn.Sequential(*[torch.nn.Linear(16384, 16384) for _ in range(20)])  # 20 GiB
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    after = loads(dumps(before))
    assert [tuple(p.shape) for p in after.parameters()] == [tuple(p.shape) for p in before.parameters()]
    assert {p.device.type for p in after.parameters()} == {"cpu"}
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usage) < 500_000  # KiB


def test_tied_meta_weights_stay_tied() -> None:
    with torch.device("meta"):
        before = Tied()
    after = loads(dumps(before))
    assert after.head.weight is after.embedding.weight


@pytest.mark.integration
def test_class_of_main_is_sent_by_value() -> None:
    code = """
        import sys, subprocess, torch
        from vramcast.tracer.program.meta_pickle import dumps
        class Mine(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Linear(3, 4)
            def forward(self, x):
                return self.a(x) * SCALE
        SCALE = 2
        sys.stdout.buffer.write(dumps(Mine()))
    """
    data = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=120)
    assert data.returncode == 0, data.stderr.decode()
    model = loads(data.stdout)
    assert model(torch.zeros(2, 3)).shape == (2, 4)


def test_functions_and_closures_are_sent() -> None:
    width = 5
    assert loads(dumps(lambda: torch.nn.Linear(width, 2)))().in_features == 5


def test_unpicklable_object_suggests_callable() -> None:
    class Refuses(torch.nn.Module):
        def __reduce__(self) -> Any:
            raise ZeroDivisionError("no way")

    with pytest.raises(
        UsageError, match=r"Refuses cannot be sent to the tracer \(ZeroDivisionError: no way\): pass a callable"
    ):
        dumps(Refuses())
    with pytest.raises(UsageError, match="pass a callable"):
        dumps(threading.Lock())
    with pytest.raises(UsageError, match=r"sparse.*pass a callable"):
        dumps(torch.eye(3).to_sparse())


def test_model_is_only_read() -> None:
    model = Tied()
    model(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
    calls: list[str] = []
    model.register_forward_hook(lambda *a: calls.append("forward"))
    model.embedding.weight.register_hook(lambda g: calls.append("grad"))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {name: p.grad.clone() if p.grad is not None else None for name, p in model.named_parameters()}
    addresses = [p.data_ptr() for p in model.parameters()]
    random = torch.get_rng_state()
    dumps(model)
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in state.items())
    assert all(g is None or dict(model.named_parameters())[name].grad.equal(g) for name, g in gradients.items())
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert torch.get_rng_state().equal(random)
    assert calls == []


def test_gradients_are_not_sent() -> None:
    model = torch.nn.Linear(3, 3)
    model(torch.zeros(1, 3)).sum().backward()
    assert loads(dumps(model)).weight.grad is None


# ------------------------------------------------------------------------------------------------ building
def own_model() -> Any:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(256, 4, 1024)
            self.layers = torch.nn.ModuleList([copy.deepcopy(self.layer) for _ in range(3)])
            self.register_buffer("mask", torch.triu(torch.ones(300, 300), 1).bool())
            self.table = torch.nn.Parameter(torch.linspace(0, 1, 64).repeat(64, 1).t())
            self.rate = [x.item() for x in torch.linspace(0, 0.3, 4)]
            with torch.no_grad():
                self.layer.linear1.weight.mul_(0.5).add_(1)
                torch.nn.init.orthogonal_(self.layer.linear2.weight)
            self.weight = torch.nn.Parameter(torch.cat([torch.randn(1024, 512), torch.zeros(1024, 512)], 1))
            self.norm = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(1024, 1024))

    return Own()


def torchvision_model(name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module("torchvision").models.get_model(
        name, weights=None, **({"weights_backbone": None} if "rcnn" in name else {})
    )


def transformers_model(name: str, **config: Any) -> Callable[[], Any]:
    def build() -> Any:
        transformers = importlib.import_module("transformers")
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **config))

    return build


OF_TRANSFORMERS = ("gpt2", "llama")
BUILDERS = {
    "own": own_model,
    "resnet18": torchvision_model("resnet18"),
    "mobilenet_v3_small": torchvision_model("mobilenet_v3_small"),
    "swin_t": torchvision_model("swin_t"),
    "vit_b_16": torchvision_model("vit_b_16"),
    "fasterrcnn": torchvision_model("fasterrcnn_resnet50_fpn"),
    "gpt2": transformers_model("gpt2", n_layer=2),
    "llama": transformers_model("llama", num_hidden_layers=2, hidden_size=512, intermediate_size=1024, vocab_size=5000),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.integration if name in OF_TRANSFORMERS else ())  # its import takes seconds
        for name in sorted(BUILDERS)
    ],
)
def test_meta_build_has_real_structure(name: str, need: Need) -> None:
    if name in OF_TRANSFORMERS:
        need("transformers")
    elif name != "own":
        need("torchvision")
    torch.manual_seed(0)
    real = BUILDERS[name]()
    with HollowInit():
        made = BUILDERS[name]()
    assert description(made) == description(real)
    for (path, expected), (_, found) in zip(real.named_buffers(), made.named_buffers(), strict=True):
        if not expected.is_floating_point():
            assert found.equal(expected), path
        elif expected.nbytes < BIG_BYTES:  # running means, anchors, frequencies: computed, not drawn
            assert torch.allclose(found, expected), path


def test_numbers_from_small_tensors_are_real() -> None:
    with HollowInit():
        assert own_model().rate == pytest.approx([0.0, 0.1, 0.2, 0.3])
        assert torch.arange(5).sum().item() == 10


@pytest.mark.integration
def test_huge_model_costs_almost_nothing() -> None:
    code = """
        import resource, torch
        from vramcast.tracer.program.meta_model import HollowInit
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with HollowInit():
            layer = torch.nn.TransformerEncoderLayer(8192, 64, 32768)  # 3 GiB
            model = torch.nn.TransformerEncoder(layer, 8)              # deep copies
            model = model.to(torch.bfloat16)
        print(sum(p.numel() for p in model.parameters()), {str(p.dtype) for p in model.parameters()},
              (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    count, dtypes, mib = said.stdout.replace("{'", "").replace("'}", "").split()
    assert int(count) > 6_000_000_000
    assert dtypes == "torch.bfloat16"
    assert int(mib) < 600


def test_values_are_real_outside_mode() -> None:
    with HollowInit():
        torch.ones(10)
    assert torch.ones(BIG).sum().item() == BIG


def test_copied_layer_is_not_tied() -> None:
    with HollowInit():
        layer = torch.nn.Linear(1024, 1024)
        copied = copy.deepcopy(layer)
    assert copied.weight.data_ptr() != layer.weight.data_ptr()
    assert copied.weight.shape == layer.weight.shape


def test_leaves_other_devices_alone() -> None:
    with HollowInit():
        meta = torch.randn(BIG, device="meta") + 1
    assert meta.device.type == "meta"


def test_small_result_of_big_tensors_is_zero() -> None:
    with HollowInit():
        total = torch.randn(BIG).sum()
    assert total.item() == 0.0
    assert meta_model.is_big(torch.empty(BIG))
    assert not meta_model.is_big(torch.empty(BIG - 1))
