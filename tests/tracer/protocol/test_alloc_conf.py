"""The source of the allocator settings in force, and rejected settings that no tracer can follow."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import CannotEstimate, OtherAllocator, UsageError
from vramcast.estimates.estimator import Estimator
from vramcast.jobs.job import Command
from vramcast.simulator.replay import recorded_settings
from vramcast.tracer.protocol.alloc_conf import VARIABLES, AllocConf, of_environment
from vramcast.tracer.protocol.job_result import Result

Run = Callable[..., Result]
EXPANDABLE = "expandable_segments:True"


@pytest.fixture
def mlp(tiny_models: Path, make_job: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that creates a small job."""
    return functools.partial(make_job, target=f"{tiny_models}:mlp", batch="8x16", search_path=tuple(sys.path))


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Command]:
    """Return a function that writes a script, for `Job.command`."""

    def write(source: str) -> Command:
        (tmp_path / "job.py").write_text(source + "\ntorch.empty(1000, device='cuda')\n")
        return Command((str(tmp_path / "job.py"),))

    return write


def in_force(result: Result) -> tuple[AllocConf, bool]:
    """Return the settings in the result, and whether torch's own allocator had expandable segments."""
    assert result.trace is not None
    return result.alloc_conf, recorded_settings(result.trace).expandable_segments


@pytest.mark.parametrize("name", VARIABLES)
def test_callers_environment_is_in_force(
    trace: Run, script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, EXPANDABLE)
    found = trace(command=script("import torch"), alloc_conf=None)
    assert in_force(found) == (AllocConf(EXPANDABLE, "environment"), True)


@pytest.mark.parametrize(
    "lines",
    [
        f"import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{EXPANDABLE}'; import torch",
        f"import os, torch; torch.cuda.is_available(); os.environ['PYTORCH_ALLOC_CONF'] = '{EXPANDABLE}'",
        f"import torch; torch.cuda.memory._set_allocator_settings('{EXPANDABLE}')",
        f"import torch; torch.cuda.init(); torch.cuda.memory._set_allocator_settings('{EXPANDABLE}')",
    ],
)
def test_scripts_own_lines_are_in_force(trace: Run, script: Callable[[str], Any], lines: str) -> None:
    found = trace(command=script(lines), alloc_conf=None, fresh=True)
    assert in_force(found) == (AllocConf(EXPANDABLE, "script"), True)
    assert found.was_expandable


def test_line_after_cuda_init_is_too_late(trace: Run, script: Callable[[str], Any]) -> None:
    late = f"import os, torch; torch.cuda.init(); os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{EXPANDABLE}'"
    assert in_force(trace(command=script(late), alloc_conf=None)) == (AllocConf(), False)


@pytest.mark.parametrize("option", ["", "max_split_size_mb:64"])
def test_option_wins_over_script_and_environment(
    trace: Run, script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", EXPANDABLE)
    lines = f"import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{EXPANDABLE}'; import torch\n"
    lines += f"torch.cuda.memory._set_allocator_settings('{EXPANDABLE}')"
    found = trace(command=script(lines), alloc_conf=option, fresh=True)
    assert in_force(found) == (AllocConf(option, "option"), False)


@pytest.mark.integration
@pytest.mark.parametrize("tracer_name", ["auto", "fake", "cpu"])
def test_every_tracer_reports_environments_settings(
    tiny_models: Path, make_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tracer_name: str
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:2")
    asked = {
        "target": f"{tiny_models}:wide",
        "batch": "100x1024",
        "labels": "100x1024",
        "steps": 1,
        "search_path": tuple(sys.path),
    }
    pinned = Estimator(tracer=tracer_name).estimate_job(make_job(**asked))
    followed = Estimator(tracer=tracer_name).estimate_job(make_job(**asked, alloc_conf=None))
    assert pinned.to_dict()["alloc_conf"] == {"value": "", "source": "option"}
    assert followed.to_dict()["alloc_conf"] == {"value": "roundup_power2_divisions:2", "source": "environment"}
    assert followed.allocated != pinned.allocated  # 100 x 1024 floats are rounded up to 512 KiB


def test_first_variable_wins() -> None:
    assert of_environment({VARIABLES[0]: "a:1", VARIABLES[1]: "b:2"}) == AllocConf("a:1", "environment")
    assert of_environment({VARIABLES[0]: ""}) == of_environment({}) == AllocConf()


@pytest.mark.parametrize(("torch", "value"), [("2.6.0", ""), ("2.9.1+cu128", ""), ("2.10.0", "b:2"), (None, "b:2")])
def test_reads_second_variable_since_2_10(torch: str | None, value: str) -> None:
    # measured: with expandable_segments:True in it, 5 MiB on the null GPU: no expandable segment under 2.9.1, one under
    # 2.10.0
    assert of_environment({VARIABLES[1]: "b:2"}, torch).value == value


# ------------------------------------------------------------------------------------------------ rejected settings
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0"),  # torch checks only whether it is set
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, backend : cudaMallocAsync"),
    ],
)
@pytest.mark.parametrize("tracer_name", ["auto", "fake"])
def test_rejects_other_allocator_in_environment(
    mlp: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tracer_name: str, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(OtherAllocator, match=r"caching allocator|another allocator"):
        Estimator(tracer=tracer_name).estimate_job(mlp(alloc_conf=None))


@pytest.mark.parametrize(
    "lines",
    [
        "import os; os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] = '1'; import torch",
        "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'; import torch",
        "import torch\ntry: torch.cuda.memory.change_current_allocator(type('A', (), {'allocator': lambda self: None})())\n"
        "except Exception: pass",
    ],
)
def test_rejects_other_allocator_in_script(trace: Run, script: Callable[[str], Any], lines: str) -> None:
    with pytest.raises(OtherAllocator):
        trace(command=script(lines), alloc_conf=None, fresh=True)


@pytest.mark.parametrize("value", ["max_split_size_mb:-5", "max_split_size_mb:99999999999999999999", "expandable_segments:yes"])
def test_wrong_value_is_usage_error_everywhere(mlp: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(UsageError, match="alloc_conf is"):
        Estimator().estimate_job(mlp(alloc_conf=value))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", value)
    with pytest.raises(UsageError, match="the environment's PYTORCH_CUDA_ALLOC_CONF is"):
        Estimator().estimate_job(mlp(alloc_conf=None))


def test_torch_rejects_unknown_key(tracer: object, mlp: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"'no_such_key:1' is rejected by torch \d"):
        Estimator().estimate_job(mlp(alloc_conf="no_such_key:1"))


# ------------------------------------------------------------------------------------------------ the history
def test_resets_and_second_history_lose_nothing(trace: Run, script: Callable[[str], Any]) -> None:
    source = """
import torch
torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.reset_peak_memory_stats(); torch.cuda.memory.reset_accumulated_memory_stats()
torch.accelerator.memory.reset_peak_memory_stats(); torch.accelerator.memory.reset_accumulated_memory_stats()
torch.cuda.memory._record_memory_history(max_entries=1); torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.empty_cache(); torch.accelerator.empty_cache()
"""
    found = trace(command=script(source)).trace
    assert found is not None
    assert found.header["peaks"]["requested"] == found.live(found.size_bytes).max() == 100 << 20
    assert found.header["peaks"]["reserved"] == 100 << 20
    assert len(found) == 11  # two blocks with their segments (8), one released, two marks of empty_cache


def test_uncached_allocator_is_error(trace: Run, script: Callable[[str], Any]) -> None:
    with pytest.raises(CannotEstimate, match="bytes in all"):
        trace(command=script("import torch; torch.cuda.init(); torch.cuda.caching_allocator_enable(False)"), fresh=True)
