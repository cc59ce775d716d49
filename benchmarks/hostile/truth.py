"""Checks that a trace is complete and used the right settings: other allocators, all sources of settings, impossible jobs.

The commands run in this process, on its warm workers: no case is about how a process ends.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import Case, Verdict
from benchmarks.hostile.command import judge
from vramcast.cli.main import main

EXPANDABLE = "expandable_segments:True"
_CARD = ("--device", "a100-40gb")
_LOOP = """
import os, sys, torch
{before}
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    {each}
    optimizer.zero_grad()
    model(torch.randn(512, 2048, device="cuda")).sum().backward()
    optimizer.step()
"""
_MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, then, read=False, layer=None):
        super().__init__()
        self.first, self.layer, self.then, self.read = nn.Linear(64, 64), layer, then, read
    def forward(self, x):
        y = self.first(x)
        if self.read:
            float(y.sum().item())
        return self.then(self, y)

def plain(): return nn.Linear(64, 64)
def norm(): return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
def mixed(): return Net(lambda m, y: m.layer(y), layer=nn.Linear(64, 64).half())
def mixed_after_a_read(): return Net(lambda m, y: m.layer(y), True, nn.Linear(64, 64).half())
def double(): return Net(lambda m, y: y @ torch.ones(64, 64, dtype=torch.float64, device=y.device))
def other_card(): return Net(lambda m, y: y.to("cuda:1"))
def other_card_after_a_read(): return Net(lambda m, y: y.cuda(1), True)
def lazy(): return Net(lambda m, y: m.layer(y), layer=nn.LazyLinear(8))
"""
_REFUSED = frozenset({3})
# Ways in which a script chooses settings: before torch is imported, after, and by a call; each line is in force.
_OWN_LINES = {
    "os.environ": f'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{EXPANDABLE}"',
    "os.environ, the new name": f'os.environ["PYTORCH_ALLOC_CONF"] = "{EXPANDABLE}"',
    "after a look for a card": f'torch.cuda.is_available(); os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{EXPANDABLE}"',
    "a call": f'torch.cuda.memory._set_allocator_settings("{EXPANDABLE}")',
}
_PAST_THE_ALLOCATOR = {
    "no caching, by the script": 'os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"',
    "another back end, by the script": 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"',
    "caching switched off": "torch.cuda.init(); torch.cuda.caching_allocator_enable(False)",
}
_MEMORY_OF_ANOTHER = (
    "import ctypes; torch.cuda.init(); "
    'ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 30))'
)
_RESETS = {
    "peaks reset at each step": "torch.cuda.reset_peak_memory_stats()",
    "counts reset at each step": "torch.cuda.memory.reset_accumulated_memory_stats()",
    "resets of torch.accelerator": "torch.accelerator.memory.reset_peak_memory_stats()",
    "a memory history of its own": "torch.cuda.memory._record_memory_history(max_entries=2)",
    "the memory history ended": "torch.cuda.memory._record_memory_history(enabled=None)",
}
_BAD_SETTINGS = (
    *("max_split_size_mb:-5", "max_split_size_mb:99999999999999999999", "max_split_size_mb:1", "max_split_size_mb:x"),
    *("expandable_segments:yes", "expandable_segments", "roundup_power2_divisions:3", "garbage_collection_threshold:2"),
    *("garbage_collection_threshold:nan", "no_such_key:1", ":::", "backend:nobody", "backend:cudaMallocAsync"),
)


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases; write files to `folder`."""
    (folder / "models.py").write_text(_MODELS)
    models = str(folder / "models.py")
    plain = ("estimate", f"{models}:plain", "--batch", "8x64", *_CARD, "--json")

    def script(name: str, *, before: str = "", each: str = "pass") -> str:
        path = folder / f"{name.replace(' ', '-').replace(',', '').replace('.', '')}.py"
        path.write_text(textwrap.dedent(_LOOP).format(before=before, each=each))
        return str(path)

    def case(kind: str, name: str, *arguments: str, codes: Iterable[int] = (0,), **options: Any) -> Case:
        return Case(kind, name, functools.partial(_vramcast, arguments, codes=frozenset(codes), **options))

    for name, each in {"": "pass", **_RESETS}.items():
        path = script(name or "calm", each=each)
        yield case("torch.cuda.* calls in a script", name or "none", "run", *_CARD, "--json", "--", path, check=_is_calm)
    for name, line in _OWN_LINES.items():
        path, said = script(name, before=line), _settings(EXPANDABLE, "script")
        yield case("environment", f"settings by the script: {name}", "run", *_CARD, "--json", "--", path, check=said)
        wins = _settings("max_split_size_mb:64", "option")
        option = ("--alloc-conf", "max_split_size_mb:64")
        yield case("environment", f"option against {name}", "run", *_CARD, *option, "--json", "--", path, check=wins)
    for name, line in _PAST_THE_ALLOCATOR.items():
        yield case("environment", name, "run", *_CARD, "--json", "--", script(name, before=line), codes=_REFUSED)
    path = script("memory of another library", before=_MEMORY_OF_ANOTHER)
    yield case("environment", "memory of another library", "run", *_CARD, "--json", "--", path, check=_is_counted)
    yield from _by_environment(case, plain)
    for value in _BAD_SETTINGS:
        yield case("alloc-conf values", value, *plain, "--alloc-conf", value, codes={2})
    for name in ("mixed", "mixed_after_a_read", "double", "other_card", "other_card_after_a_read"):
        for tracer in ("auto", "fake"):
            job = ("check", f"{models}:{name}", "--batch", "8x64", "--on", "h100", "--tracer", tracer, "--json")
            yield case("unusual models", f"{name}, {tracer}", *job, codes=_REFUSED)
    yield case("unusual models", "lazy", "estimate", f"{models}:lazy", "--batch", "8x64", *_CARD, "--json", check=_by_null_gpu)
    for n in (10**9, 10**15):
        job = (f"{models}:plain", "--batch", f"{n}x64", "--labels", f"{n}x64", *_CARD, "--json")
        for verb in ("check", "estimate"):
            yield case("CLI values", f"{verb}, a batch of {n:.0e}", verb, *job, codes={1}, says="does not fit")
    sweep = ("sweep", f"{models}:norm", "--batch", "1x64", *_CARD, "--json", "--batch-sizes", "1..8")
    yield case("CLI values", "a sweep whose first size raises", *sweep, check=_one_row_says_why)


def _vramcast(
    arguments: tuple[str, ...], *, codes: frozenset[int], environment: Mapping[str, str | None] | None = None, **judged: Any
) -> Verdict:
    """Run one command here and return the verdict; `environment` changes variables for it, None removes one."""
    saved, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    try:
        for name, value in (environment or {}).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
    finally:
        os.environ.clear()
        os.environ.update(saved)
    return judge(code, out.getvalue(), err.getvalue(), codes=codes, is_json="--json" in arguments, **judged)


def _by_environment(case: Callable[..., Case], plain: tuple[str, ...]) -> Iterable[Case]:
    def settings(said: Mapping[str, str | None], **options: Any) -> Case:
        names = ", ".join(f"{name}={value}" for name, value in said.items())
        return case("environment", names, *plain, environment=said, **options)

    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        yield settings({name: EXPANDABLE}, check=_settings(EXPANDABLE, "environment"))
        yield settings({name: "backend:cudaMallocAsync"}, codes=_REFUSED)
        yield settings({name: "max_split_size_mb:-5"}, codes={2})
    for value in ("1", "0", ""):
        yield settings({"PYTORCH_NO_CUDA_MEMORY_CACHING": value}, codes=_REFUSED)
    yield settings({"VRAMCAST_CUDNN_DIR": "/nonexistent"})
    for variable in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        yield settings({variable: None})


def _settings(value: str, source: str) -> Callable[[dict[str, Any]], str]:
    def check(found: dict[str, Any]) -> str:
        said, wanted = found["alloc_conf"], {"value": value, "source": source}
        return "" if said == wanted else f"settings in force: {said}, not {wanted}"

    return check


def _is_calm(found: dict[str, Any]) -> str:
    parameters = 4 * (2048 * 2048 + 2048) * 4
    least = 4 * parameters  # with gradients and Adam's two averages
    return "" if found["peaks"]["allocated"] >= least else f"allocated {found['peaks']['allocated']}, below {least}"


def _is_counted(found: dict[str, Any]) -> str:
    beside = found["peaks"]["process"] - found["peaks"]["reserved"]
    return "" if beside > 1 << 30 else f"{beside} bytes outside the allocator, not more than 1 GiB"


def _by_null_gpu(found: dict[str, Any]) -> str:
    return "" if found["tracer"] == "nullgpu" else f"traced by {found['tracer']}"


def _one_row_says_why(found: dict[str, Any]) -> str:
    said = ["error" in row for row in found["rows"]]
    return "" if said == [True, False, False, False] else f"rows with an error: {said}"
