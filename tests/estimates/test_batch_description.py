"""Batches of all common forms are moved and used as in a script, including objects of user-defined classes."""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from vramcast.core.errors import WorkerError
from vramcast.estimates.batch_description import described
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, Record, TensorSpec, map_batch, specs_in

SHAPE = TensorSpec((64, 256))
# No worker can import this module, so its classes must come with the job.
OWN = """
import dataclasses, torch
from typing import Any, NamedTuple

@dataclasses.dataclass
class Plain:
    x: Any
    scale: float = 1.0

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    nested: Plain

class Named(NamedTuple):
    x: Any
    n: int

class Movable:
    def __init__(self, x):
        self.x = x
    def to(self, device):
        return Movable(self.x.to(device))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
    def forward(self, batch=None, x=None):
        if x is None:
            x = getattr(batch, "x", batch)
        if hasattr(batch, "nested"):
            assert batch.nested.x.device == x.device and type(batch.nested).__name__ == "Plain"
        assert x.device == self.linear.weight.device
        return self.linear(x)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_batches.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import own_batches

        yield own_batches
    sys.modules.pop("own_batches", None)


def forms(own: Any, x: Any) -> dict[str, Any]:
    return {
        "tensor": x, "tuple": (x,), "dict": {"x": x}, "OrderedDict": OrderedDict(x=x), "UserDict": UserDict(x=x),
        "mapping": MappingProxyType({"x": x}), "array": x.numpy(), "dict of arrays": {"x": x.numpy()[::-1]},
        "dataclass": own.Plain(x), "frozen": own.Frozen(x, own.Plain(x.numpy())), "named tuple": own.Named(x, 3),
        "movable": own.Movable(x), "labels beside": (own.Plain(x), x),
    }  # fmt: skip


FORMS = (
    "tensor", "tuple", "dict", "OrderedDict", "UserDict", "mapping", "array", "dict of arrays", "dataclass", "frozen",
    "named tuple", "movable", "labels beside",
)  # fmt: skip


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.parametrize("tracer", ["nullgpu", "fake", "cpu"])
@pytest.mark.parametrize("form", FORMS)
def test_describes_common_batches(own: Any, form: str, tracer: str, request: pytest.FixtureRequest) -> None:
    import torch

    if tracer == "nullgpu":
        request.getfixturevalue("needs_null_gpu")
    batch = forms(own, torch.zeros(64, 256))[form]
    found = Estimator("t4", tracer).estimate(own.Model(), batch)
    assert found.allocated >= 4 * 4 * 256 * 257 + 64 * 256 * 4


@pytest.mark.torch
def test_keeps_shapes_dtypes_and_small_content(own: Any) -> None:
    import torch

    array = np.arange(6, dtype="int64").reshape(2, 3)[:, ::-1]
    spec = described(array)
    assert (spec.shape, spec.dtype) == ((2, 3), "int64")
    assert np.frombuffer(spec.content, dtype="int64").tolist() == [2, 1, 0, 5, 4, 3]
    found = described([own.Plain(torch.zeros(2, dtype=torch.int32)), {"a": own.Named(np.zeros(3, np.float16), 1)}])
    assert [(one.shape, one.dtype) for one in specs_in(found)] == [((2,), "int32"), ((3,), "float16")]


def test_resizes_record(make_job: Callable[..., Job]) -> None:
    job = make_job(target="torchvision:resnet18", batch=Record(b"", {"x": SHAPE, "n": 3}))
    resized = job.with_batch(8)
    assert resized.batch == Record(b"", {"x": TensorSpec((8, 256)), "n": 3})
    assert job.input_bytes == SHAPE.size_bytes
    assert map_batch(resized.batch, lambda leaf: leaf).fields["n"] == 3


@pytest.mark.torch
@pytest.mark.integration
def test_unreadable_job_fails_alone(needs_null_gpu: None, own: Any) -> None:
    from vramcast.tracer.nullgpu.client import NullGpuTracer
    from vramcast.tracer.protocol.run_options import RunOptions

    tracer = NullGpuTracer.shared()
    worker = tracer.pid
    job = Job(device("t4"), target="torchvision:resnet18", batch=own.Plain(1))
    with pytest.raises(WorkerError, match=r"cannot read the job \(ModuleNotFoundError: No module named 'own_batches'\)"):
        tracer.observe(job, RunOptions(), timeout_s=60)
    found: Estimate = Estimator("t4", "nullgpu").estimate(own.Model(), (SHAPE,))
    assert found.allocated
    assert tracer.pid == worker
