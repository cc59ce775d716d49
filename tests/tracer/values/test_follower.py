"""Values on a card that computes nothing: the host reads the same values as from a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.tracer.format.ledger import Code
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

# Each line: name | expression in D, the device. Shapes and numbers must agree.
CASES = """
item | ints(D)[2].item()
bool of any | bool((ints(D) > 2).any())
bool of all | bool((ints(D) > 2).all())
branch on a mask | 1 if ones(D).all() else 2
nonzero | (ints(D) > 2).nonzero()
nonzero as tuple | (ints(D) > 2).nonzero(as_tuple=True)
argwhere | torch.argwhere(ints(D) > 2)
where | torch.where(ints(D) > 2)
where, its columns | [column.tolist() for column in torch.where(ints(D).view(2, 5) > 2)]
where, then its own rows | rows(D)[torch.where(ints(D) > 2)[0]]
mask of unknown rows | large(D)[ints(D) > 2]
mask and number | rows(D)[ints(D) > 2, 0]
mask of two dimensions | rows(D)[(ints(D) > 2)[:, None] & (ints(D) > 0)[None]]
masked_select | torch.masked_select(ints(D), ints(D) > 2)
masked_select of unknown rows | large(D).masked_select((ints(D) > 2)[:, None])
number as index | rows(D)[ints(D)[0]]
numbers as bounds of slices | rows(D)[ints(D)[1] : ints(D)[2], : ints(D)[0]]
written between numbers | changed(ints(D), lambda x: x.__setitem__(slice(x[1], x[2]), torch.zeros(3, device=D))).nonzero()
boxes of each image | boxes(D).tolist()
unique | ints(D).unique()
unique with counts | torch.unique(ints(D), return_inverse=True, return_counts=True)
unique, its numbers and counts | [part.tolist() for part in torch.unique(ints(D), return_inverse=True, return_counts=True)]
unique_consecutive, its counts | [part.tolist() for part in torch.unique_consecutive(ints(D), return_counts=True)]
unique rows | torch.unique(ints(D).view(5, 2), dim=0)
unique_consecutive | torch.unique_consecutive(ints(D), return_counts=True)
repeat_interleave | torch.arange(10, device=D).repeat_interleave(ints(D))
repeat_interleave of unknown rows | large(D).repeat_interleave(ints(D), dim=0)
bincount | torch.bincount(ints(D))
one_hot | torch.nn.functional.one_hot(ints(D))
one_hot of a given width | torch.nn.functional.one_hot(ints(D), 12).sum(0).nonzero()
equal | torch.equal(ints(D), ints(D).clone())
tolist | ints(D).tolist()
to the host | ints(D).cpu().unique()
to the host in another type | ints(D).to("cpu", torch.float32).unique()
each element | [int(n) for n in ints(D)]
length of a range | len(range(ints(D)[2]))
arange to a number | torch.arange(ints(D)[5], device=D)
split by numbers | [len(part) for part in rows(D)[:9].split(ints(D)[:4].tolist())]
written by mask | changed(ints(D), lambda x: x.__setitem__(ints(D) > 2, 0)).nonzero()
written by mask with rows | changed(ints(D), lambda x: x.__setitem__(x > 4, torch.arange(4, device=D))).nonzero()
written through a view | changed(ints(D), lambda x: x.view(5, 2)[0].zero_()).nonzero()
copied to the host | torch.zeros(10, dtype=torch.int64).copy_(ints(D)).unique()
moved from the host | torch.arange(5).to(D).nonzero()
sorted | ints(D).sort().values.tolist()
histogram of integers | torch.histc(ints(D).float() if D == "cpu" else ints(D).int(), bins=3, min=1, max=9).tolist()
lists of an expert | [torch.where(hit)[0] for hit in torch.nn.functional.one_hot(ints(D) % 4, 4).T.bool()]
a copy | copy.deepcopy(ints(D)).tolist()
beginning of a buffer | changed(buffer(D), lambda x: x[:10].copy_(ints(D)))[:10].unique()
beginning of a buffer, in inference mode | torch.inference_mode()(lambda x: (x[:10].copy_(ints(D)), x[:10].unique()))(buffer(D))
in inference mode | torch.inference_mode()(lambda: (ints(D) > 2).nonzero())()
summed in inference mode | torch.inference_mode()(lambda total: total.add_(ints(D).sum()))(torch.zeros((), device=D)).item()
"""

MODULE = """
import copy, json, os
import torch

def ints(D): return torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3]).to(D)
def ones(D): return torch.ones(4, dtype=torch.bool, device=D)
def rows(D): return torch.zeros(10, 10, device=D)
def buffer(D): return torch.empty(20, dtype=torch.int64, device=D)
def large(D): return torch.empty(10, 200_000, device=D)

def boxes(D):
    "The boxes of a batch by image, as in the loss of Ultralytics 8.3."
    image, counts = ints(D).unique(return_counts=True)
    out = torch.zeros(10, counts.max(), dtype=torch.int64, device=D)
    for number in range(10):
        matches = ints(D) == number
        if found := matches.sum():
            out[number, :found] = ints(D)[matches]
    return out

def changed(tensor, change):
    change(tensor)
    return tensor

def shown(value):
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    return [shown(v) for v in value] if isinstance(value, (tuple, list)) else value

class Cases(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        answers = {}
        for line in CASES.strip().splitlines():
            name, _, expression = line.partition(" | ")
            try:
                on_card = shown(eval(expression, {**globals(), "D": "cuda"}))
            except Exception as error:
                on_card = repr(error)
            answers[name] = [on_card, shown(eval(expression, {**globals(), "D": "cpu"}))]
        with open(os.environ["VRAMCAST_TEST_ANSWERS"], "w") as file:
            json.dump(answers, file)
        return self.linear(x)

class Checkpointed(torch.nn.Module):
    "A layer that selects rows by drawn scores, and runs again in the backward pass."
    def __init__(self):
        super().__init__()
        self.router, self.expert = torch.nn.Linear(16, 4), torch.nn.Linear(16, 16)

    def route(self, x):
        chosen = self.router(x).topk(1).indices[:, 0]
        rows = [x[chosen == expert] for expert in range(4)]
        return torch.cat([self.expert(r) for r in rows])

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.route, x, use_reentrant=False)

class Converges(torch.nn.Module):
    "A loop that ends when an unknown number is small."
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        while (self.linear(x) > 0.25).any():
            pass
        return self.linear(x)

class Compiled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.compiled = torch.compile(self.linear, backend="eager")

    def forward(self, x):
        return self.compiled(x) * (1 if bool(x.sum() >= 0) else 2)

class CompiledAhead(Compiled):
    "As vLLM compiles: ahead, and what that returns is called by itself."
    def forward(self, x):
        with torch._dynamo.config.patch(enable_aot_compile=True):
            double = torch.compile(lambda x: 2 * x, backend="eager", fullgraph=True)
            ahead = double.aot_compile(((x,), {}))
        return self.linear(ahead(x)) * (1 if bool(x.sum() >= 0) else 2)

class TriedOut(Compiled):
    "As a compiler tries out a graph, also when it loads one, and what it leaves over."
    def forward(self, x):
        from torch._dynamo.source import ConstantSource
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
        sizes = StatelessSymbolicContext([DimDynamic.DYNAMIC] * x.dim())
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fake = mode.from_tensor(x, source=ConstantSource("x"), symbolic_context=sizes)
        with mode:
            torch.empty(fake.shape[0], device=x.device)[1:].add_(1)
        fake[1:].add(1)
        return self.linear(x) * (1 if bool(x.sum() >= 0) else 2)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "value_models.py"
    path.write_text(f'CASES = """{CASES}"""\n{MODULE}')
    return path


NAMES = [line.partition(" | ")[0] for line in CASES.strip().splitlines()]


def job(models: Path, name: str, batch: str = "8x4", **options: Any) -> Job:
    options = {"device": device("a100-40gb"), "search_path": tuple(sys.path), **options}
    return Job(target=f"{models}:{name}", batch=TensorSpec.parse(batch), training=Training(steps=1), **options)


def answers(path: Path, run: Callable[[], Result]) -> tuple[dict[str, Any], Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VRAMCAST_TEST_ANSWERS", str(path))
        result = run()
    return json.loads(path.read_text()), result


@pytest.fixture(scope="module")
def on_fake(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Result]:
    return answers(tmp_path_factory.mktemp("fake") / "answers.json", lambda: FAKE.trace(job(models, "Cases")))


@pytest.fixture(scope="module")
def on_null_gpu(needs_null_gpu: None, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Result]:
    def run() -> Result:
        with_environment = NullGpuTracer()  # the shared worker has the environment of its own start
        try:
            return with_environment.trace(job(models, "Cases"), RunOptions(follow_values=True))
        finally:
            with_environment.close()

    return answers(tmp_path_factory.mktemp("null") / "answers.json", run)


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors_match_host(name: str, on_fake: tuple[dict[str, Any], Result]) -> None:
    on_card, on_host = on_fake[0][name]
    assert on_card == on_host


@pytest.mark.parametrize("name", NAMES)
def test_null_gpu_matches_host(name: str, on_null_gpu: tuple[dict[str, Any], Result]) -> None:
    on_card, on_host = on_null_gpu[0][name]
    assert on_card == on_host


def test_known_values_leave_no_ledger_entries(
    on_fake: tuple[dict[str, Any], Result], on_null_gpu: tuple[dict[str, Any], Result]
) -> None:
    for _, result in (on_fake, on_null_gpu):
        assert result.reads == 0
        assert not [e for e in result.ledger if e.kind == "drawn" or e.code is Code.DRAWN_SHAPE]


def test_reruns_reading_job_with_values(models: Path, tracer: Callable[[], NullGpuTracer]) -> None:
    result = tracer().trace(job(models, "Checkpointed", "32x16"))
    assert result.status == "ok"
    assert result.reads == 0
    assert "__getitem__" in {e.name for e in result.ledger if e.code is Code.DRAWN_SHAPE}


@pytest.mark.integration
def test_checkpointed_layer_selects_same_rows(models: Path) -> None:
    result = FAKE.trace(job(models, "Checkpointed", "32x16"))
    assert result.status == "ok"
    assert result.reads == 0


def test_loop_until_convergence_ends(models: Path, tracer: Callable[[], NullGpuTracer]) -> None:
    followed = tracer().trace(job(models, "Converges"), RunOptions(follow_values=True))
    for result in (FAKE.trace(job(models, "Converges")), followed):
        assert result.status == "ok"
        assert [e.hits for e in result.ledger if e.kind == "drawn"] == [1000]
        assert result.reads > 0


@pytest.mark.parametrize("name", ["Compiled", "CompiledAhead", "TriedOut"])
def test_follows_code_around_compiled_code(name: str, models: Path, tracer: Callable[[], NullGpuTracer]) -> None:
    result = tracer().trace(job(models, name), RunOptions(follow_values=True))
    assert result.status == "ok", result.message
    assert result.reads == 0
