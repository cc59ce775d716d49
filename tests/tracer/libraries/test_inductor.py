"""torch.compile on the null GPU: every mode ends, takes a card's memory, and a second run gives the same result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core import cache
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.libraries import inductor, triton
from vramcast.tracer.protocol.messages import LENT

MIB = 1 << 20
Probe = Callable[..., Any]

NET = """
import os, warnings
import torch.nn as nn
torch.set_float32_matmul_precision("high")  # as Inductor's own warning recommends
def net(n=2, width=256):
    block = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(*(block() for _ in range(n))).cuda()
def train(model, steps=3):
    x, optimizer = torch.randn(512, 256, device="cuda"), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


# ------------------------------------------------------------------------------------------------ settings
def test_compilers_use_job_process_and_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.delenv(LENT, raising=False)
    monkeypatch.setattr(torch, "compile", torch.compile)  # restored after the test
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/the/users/own"}
    inductor.prepare(environ)
    assert environ == {
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_WORKER_START": "fork",
        "TRITON_CACHE_AUTOTUNING": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled" / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "compiled" / "triton"),
    }


def test_keeps_user_number_of_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch, "compile", torch.compile)
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    environ = {"TORCHINDUCTOR_COMPILE_THREADS": "8"}
    inductor.prepare(environ)
    assert environ["TORCHINDUCTOR_COMPILE_THREADS"] == "8"


@pytest.mark.parametrize(("variable", "ends"), [("TORCHINDUCTOR_CACHE_DIR", True), ("TRITON_CACHE_DIR", False)])
def test_code_in_job_folder_is_out_of_reach_of_cards(
    variable: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(LENT, str(tmp_path / "lent"))
    for name, folder in inductor._own_caches().items():
        monkeypatch.setenv(name, folder)
    assert inductor._keeps_apart()
    monkeypatch.setenv(variable, str(tmp_path / "lent" / "vllm" / "its"))
    assert (inductor._keeps_apart(), inductor._ends_with_job()) == (True, ends)
    monkeypatch.setenv(variable, str(tmp_path / "the_users"))
    assert (inductor._keeps_apart(), inductor._ends_with_job()) == (False, False)


# ------------------------------------------------------------------------------------------------ modes
def test_second_run_hits_cache_with_same_result(probe: Probe, tmp_path: Path) -> None:
    source = (
        NET
        + f"""
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path)!r}
from torch._dynamo.utils import counters
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    train(torch.compile(net()))
note(hits=counters["inductor"]["fxgraph_cache_hit"], misses=counters["inductor"]["fxgraph_cache_miss"])
note(said=[str(w.message)[:60] for w in said if "hooks" in str(w.message)], reserved=torch.cuda.max_memory_reserved())
"""
    )
    first, one = probe(source)
    second, two = probe(source)
    assert one.status == two.status == "ok", one.message or two.message
    assert (first["hits"], first["misses"]) == (0, 2)
    assert (second["hits"], second["misses"]) == (2, 0)
    assert first["said"] == []
    assert first["reserved"] == second["reserved"]
    # Passes over the first run's graph evaluate their constants on the card: 48 blocks of 2 and 4 bytes.
    sizes = [[size for size in result.trace.size_bytes.tolist() if size > 4] for result in (one, two)]
    assert sizes[0] == sizes[1]


def test_pool_compilers_see_null_gpu(probe: Probe, tmp_path: Path) -> None:
    """Compile in a pool; it is used only once it is ready, so the job has to wait for it."""
    noted, result = probe(
        NET
        + f"""
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path)!r}
torch.zeros(1, device="cuda")  # the pool comes after the card
import torch._inductor.config
torch._inductor.config.compile_threads = 2
from torch._inductor.async_compile import AsyncCompile
AsyncCompile.wait_pool_ready()
note(ready=AsyncCompile.use_process_pool())
train(torch.compile(net(1)))
note(ended=True)
"""
    )
    assert result.status == "ok", result.message
    assert noted == {"ready": True, "ended": True}


def test_cuda_graphs_keep_memory_and_detect_overwrites(probe: Probe) -> None:
    noted, result = probe(
        NET
        + """
train(torch.compile(net(1), mode="reduce-overhead"), steps=4)
note(pools=len({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()} - {(0, 0)}))
double = torch.compile(lambda x: 2 * x + 1, mode="reduce-overhead")
x = torch.randn(1024, 1024, device="cuda")
with torch.no_grad():
    first, second = double(x), double(x)
    try:
        first + 1  # the example of PyTorch's documentation
    except RuntimeError as error:
        note(overwritten="overwritten by a subsequent run" in str(error))
    for _ in range(4):  # tried, recorded, replayed
        torch.compiler.cudagraph_mark_step_begin()
        kept = double(x).clone()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        kept = double(x).clone()
    note(grown=torch.cuda.memory_allocated() - before)
"""
    )
    assert result.status == "ok", result.message
    assert noted["pools"] == 1
    assert noted["overwritten"] is True
    assert noted["grown"] == 0


@pytest.mark.release
def test_kernel_benchmarks_end_and_leave_nothing(probe: Probe, tmp_path: Path) -> None:
    noted, result = probe(
        NET
        + f"""
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path)!r}
import triton.testing
x, w = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
x @ w  # cuBLAS takes its workspace
calls = []
before = torch.cuda.memory_allocated()
milliseconds = triton.testing.do_bench(lambda: calls.append(x @ w))
calls = len(calls)
note(calls=calls, milliseconds=milliseconds, left_by_triton=torch.cuda.memory_allocated() - before)
from torch._inductor import select_algorithm
chosen = []
def save(timings, name, *rest): chosen.append((len(timings), min(timings, key=timings.get).name))
select_algorithm.add_feedback_saver(save)
product = torch.compile(lambda x: x @ w, options=dict(max_autotune=True))
with torch.no_grad():
    y = product(x)
note(left=torch.cuda.memory_allocated() - before - y.nbytes, chosen=chosen)
""",
        device="h100",
    )
    assert result.status == "ok", result.message
    assert 100 < noted["calls"] < 10_000
    assert noted["left"] == 0
    [(choices, winner)] = noted["chosen"]
    assert choices > 1
    assert winner == "mm"  # all are equally fast, and PyTorch's own comes first


@pytest.mark.release
def test_other_ways_to_compile(probe: Probe) -> None:
    noted, result = probe(
        NET
        + """
# an optimizer, with blocks compiled one by one
model = net(2)
for block in model:
    block.compile()
adam = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randn(512, 256, device="cuda")).square().mean().backward()
    torch.compile(adam.step)()
    adam.zero_grad()
moments = [t for state in adam.state.values() for t in state.values() if t.is_cuda and t.dim()]
note(optimizer=sum(t.nbytes for t in moments) / sum(p.nbytes for p in model.parameters()), regions=True)

from torch.nn.attention.flex_attention import flex_attention
q = torch.randn(1, 2, 256, 64, device="cuda", requires_grad=True)
torch.compile(flex_attention)(q, q, q).sum().backward()
note(flex=list(q.grad.shape))

import triton, triton.language as tl
@triton.jit
def sine(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)
@torch.library.triton_op("vramcast_test::sine", mutates_args={})
def sine_op(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(sine)[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
@torch.library.custom_op("vramcast_test::attention", mutates_args=())
def attention(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)  # like FlashAttention's operators: results and data for backward
@attention.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)
x = torch.randn(512, 1024, device="cuda")
before = torch.cuda.memory_allocated()
def all_three(x):
    out, saved = attention(x)
    return sine_op(x), out, saved
kept = torch.compile(all_three)(x)
note(ops=torch.cuda.memory_allocated() - before)

x, w = (torch.randn(1024, 1024, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
one = torch.ones((), device="cuda")
multiply = lambda x: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
multiply(x)  # cuBLAS takes its workspace
before = torch.cuda.memory_allocated()
kept8 = torch.compile(multiply)(x)
note(fp8=torch.cuda.memory_allocated() - before)
""",
        device="h100",
    )
    assert result.status == "ok", result.message
    assert result.trace.header["course"]["ended"] == ""
    expected = {"optimizer": 2, "regions": True, "flex": [1, 2, 256, 64], "ops": 3 * 2 * MIB, "fp8": 2 * MIB}
    assert noted == expected


# ------------------------------------------------------------------------------------------------ choices
@pytest.mark.release
def test_configuration_search_takes_memory_of_first_benchmark(probe: Probe) -> None:
    source = (
        NET
        + """
import torch._inductor.config
from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
torch._inductor.config.coordinate_descent_tuning = True
theirs, bench, kernels = CoordescTuner.autotune, CachingAutotuner.bench, []
model = torch.compile(net(1))  # ours replaces it from here on
def counted(self, *args, **kwargs):
    kernels.append(id(self))
    return bench(self, *args, **kwargs)
CachingAutotuner.bench = counted
RESTORED
train(model)
note(benchmarks=len(kernels), kernels=len(set(kernels)))
note(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
"""
    )
    ours, one = probe(source.replace("RESTORED", ""))
    theirs, two = probe(source.replace("RESTORED", "CoordescTuner.autotune = theirs"))
    assert one.status == two.status == "ok", one.message or two.message
    assert 0 < ours["kernels"] == theirs["kernels"]
    assert ours["benchmarks"] < theirs["benchmarks"]
    assert (ours["allocated"], ours["reserved"]) == (theirs["allocated"], theirs["reserved"])


# ------------------------------------------------------------------------------------------------ large kernels
SORT = """
import os, torch
{}
order = torch.compile(lambda x: x.argsort(dim=-1, descending=True, stable=True))(torch.rand(8, 512, device="cuda"))
note(shape=list(order.shape), folder=os.environ["TRITON_CACHE_DIR"])
"""


def _kernels(folder: str) -> dict[str, str]:
    """Return the stored kernels in Triton's first IR."""
    return {path.name: path.read_text() for path in Path(folder).rglob("*.ttir")}


LOOP = "torch.compile(lambda x: x.sum(1))(torch.rand(8, 100_000, device='cuda'))"


def test_strips_bodies_of_kernels_that_decide_nothing(probe: Probe) -> None:
    noted, result = probe(NET + SORT.format(f"train(torch.compile(net(1)))\n{LOOP}"))
    assert result.status == "ok", result.message
    assert noted["shape"] == [8, 512]
    has_body = {name: "tt.store" in text for name, text in _kernels(noted["folder"]).items()}
    bare = [name for name, has in has_body.items() if not has]
    assert any(name.startswith("triton_poi") for name in bare)
    assert any(name.startswith("triton_per") for name in bare)
    assert all("sort" in name or name.startswith(("triton_poi", "triton_per")) for name in bare)


def test_kernel_without_body_requests_as_before(probe: Probe, tmp_path: Path) -> None:
    fresh = "import torch._inductor.config as config\nconfig.force_disable_caches = True\n"
    fresh += "os.environ['TRITON_ALWAYS_COMPILE'] = '1'\ntriton._FUSED = re.compile({!r})\n"
    source = f"import re\nfrom vramcast.tracer.libraries import triton\n{NET}{fresh}train(torch.compile(net(1)))\n{LOOP}\n"
    source += "note(peaks=(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_allocated()))"
    own = f"import os\nos.environ['TRITON_CACHE_DIR'] = {str(tmp_path)!r}\n"  # other tests read the shared folder
    (bare, one), (whole, other) = (
        probe(before + source.format(which)) for before, which in (("", triton._FUSED.pattern), (own, "$^"))
    )
    assert one.status == other.status == "ok", one.message or other.message
    assert bare == whole
    assert one.trace.size_bytes.tolist() == other.trace.size_bytes.tolist()


@pytest.mark.parametrize(
    ("name", "inside", "is_kept"),
    [
        ("triton_poi_fused_add_0", "tt.store", False),
        ("triton_per_fused_sum_1", "tt.store", False),
        ("triton_red_fused_sum_2", "tt.store", True),
        ("triton_poi_fused_mm_3", "tt.dot", True),
        ("triton_poi_fused_add_4", "tt.make_tensor_descriptor", True),
        ("_their_own_kernel", "tt.store", True),
    ],
)
def test_keeps_body_that_decides_something(name: str, inside: str, is_kept: bool) -> None:
    text = f"module {{\n  tt.func public @{name}(%arg0: i32) attributes {{noinline = false}} {{\n    {inside}\n  }}\n}}\n"
    bare = triton.without_body(text)
    assert (inside in bare) == is_kept
    assert bare == text if is_kept else "    tt.return\n  }\n}\n" in bare


def test_keeps_body_in_user_cache(probe: Probe, tmp_path: Path) -> None:
    """Store kernels in the job's own folder; the limit is lowered for a sort that compiles in a second."""
    own = f"os.environ['TRITON_CACHE_DIR'] = {str(tmp_path)!r}\nfrom vramcast.tracer.libraries import triton\n"
    noted, result = probe(SORT.format(own + "triton._MOST_LINES = 100").replace("512", "32"))
    assert result.status == "ok", result.message
    assert noted["folder"] == str(tmp_path)
    sorts = [text for name, text in _kernels(noted["folder"]).items() if "sort" in name]
    assert sorts
    assert all("tt.store" in text and text.count("\n") > 100 for text in sorts)


@pytest.mark.integration  # the import of torch._dynamo takes seconds
def test_graph_that_was_not_kept_is_compiled_again() -> None:
    def load() -> tuple[bool, bool]:
        return torch_api.functorch_config.strict_autograd_cache, torch_api.dynamo_config.strict_precompile

    with torch_api.functorch_config.patch(strict_autograd_cache=True):
        assert inductor._compiled_if_absent(load)() == (False, False)
        assert load()[0]


@pytest.mark.integration  # as above
@pytest.mark.parametrize("found", [None, "compiled"])
def test_description_without_code_is_no_result(found: str | None) -> None:
    """vLLM 0.19 raises 'The compiled artifact is not serializable' if a compilation has two results."""
    pytest.importorskip("torch._functorch._aot_autograd.autograd_cache")  # it defines the kind of result
    artifacts = torch_api.compiled_artifacts

    def load() -> str | None:
        artifacts.record_artifact("aot_autograd", "a graph", b"its description")
        return found

    with artifacts.with_fresh_cache():
        assert inductor._compiled_if_absent(load)() == found
        assert artifacts.need_serialize() == (found is not None)
