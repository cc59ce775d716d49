"""The watcher of ranges: the same facts as PyTorch's profiler, which stands in for it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import CompilerError
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.library.build import build_watcher, find_torch
from vramcast.tracer.recording import watcher

SCRIPTS = {
    "checkpoints, hooks and a caught error": """
        from torch.utils.checkpoint import checkpoint
        class Fails(torch.nn.Module):
            def forward(self, x):
                x = x.clone() + 1
                raise ValueError
        blocks = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3)).cuda()
        fails = Fails()
        blocks[1].register_full_backward_hook(lambda module, grad, other: torch.ones(1000, device="cuda") and None)
        optimizer = torch.optim.Adam(blocks.parameters(), foreach=False)
        for _ in range(3):
            x = torch.randn(64, 256).cuda().requires_grad_()
            try: fails(x)
            except ValueError: pass
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False).relu()
            x.norm().backward()
            torch.nn.utils.clip_grad_norm_(blocks.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        """,
    "ranges of its own and a thread": """
        import threading
        model = torch.nn.LayerNorm(512).cuda()  # without cuBLAS, which has a workspace for each thread
        def work():
            with torch.autograd.profiler.record_function("work"):
                torch.empty(5000, device="cuda").normal_()
                model(torch.zeros(8, 512, device="cuda")).sum().backward()
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            work()
        """,
    "a double backward pass": """
        model = torch.nn.Linear(512, 512).cuda()
        for _ in range(2):
            x = torch.ones(8, 512, device="cuda", requires_grad=True)
            grad, = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
            grad.pow(2).sum().backward()
        """,
}


def facts(trace: Trace) -> list[tuple[Any, ...]]:
    """Return the facts about each row that come from the ranges."""
    columns = (trace.action, trace.size_bytes, trace.step, trace.phase, trace.category)
    named = [[table[i] if i >= 0 else "" for i in at] for table, at in ((trace.ops, trace.op), (trace.modules, trace.module))]
    return list(zip(*(column.tolist() for column in columns), *named, strict=True))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_watcher_and_profiler_agree_on_scripts(probe: Callable[..., Any], script: str) -> None:
    source = textwrap.dedent(script)
    (_, watched), (_, profiled) = probe(source), probe(source, shapes=True)
    *others, modules = zip(*facts(watched.trace), strict=True)
    *same, known = zip(*facts(profiled.trace), strict=True)
    assert others == same
    # The profiler's tree lists some nodes of the backward pass before their forward operators, which then have no module.
    assert [name or module for name, module in zip(known, modules, strict=True)] == list(modules)
    assert watched.trace.header.get("warnings") == profiled.trace.header.get("warnings")


def test_watcher_and_profiler_agree_on_model(trace: Callable[..., Any]) -> None:
    job = {"target": "torchvision:resnet18", "batch": "4x3x64x64", "labels": "4:int64<1000", "precision": "amp-fp16"}
    assert facts(trace(**job).trace) == facts(trace(**job, shapes=True).trace)


def test_worker_has_watcher_where_it_compiles(probe: Callable[..., Any], needs_null_gpu: None) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler here")
    said, _ = probe("from vramcast.tracer.recording.watcher import Watcher; note(has_watcher=Watcher.is_loaded())")
    assert said["has_watcher"]


def test_missing_library_leaves_recording_to_profiler(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("no library")
    for library in ("", str(tmp_path / "absent.so"), str(tmp_path / "broken.so")):
        watcher.load(library)
        assert not watcher.Watcher.is_loaded()


def test_missing_compiler_leaves_recording_to_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_null_gpu: None
) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(CompilerError):
        build_watcher(find_torch())
