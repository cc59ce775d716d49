"""A sample of the list on the null GPU, whose peaks are spread as intended."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.workload_list import PROPORTIONS, workloads
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import RunOptions

NEEDS = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}
GIB = 2**30


def _sample() -> dict[str, list[Workload]]:
    """Return the first four workloads of each family."""
    entries = [workload for _, workload in workloads(20, 0, 100)]
    return {family: [w for w in entries if w.family == family][:4] for family in PROPORTIONS}


@pytest.mark.release
@pytest.mark.parametrize("family", PROPORTIONS)
def test_sample_of_each_family_runs(family: str, tracer: Callable[[], NullGpuTracer]) -> None:
    if family in NEEDS and find_spec(NEEDS[family]) is None:
        pytest.skip(f"needs {NEEDS[family]}")
    peaks = []
    for workload in _sample()[family]:
        result = tracer().trace(workload.job(device("h200")), RunOptions(limited=False))
        assert result.status == "ok", workload
        assert result.steps == workload.steps
        assert result.trace is not None
        peaks.append(int(result.trace.reserved_bytes().max()) / GIB)
    assert all(0.02 < peak < 200 for peak in peaks), peaks
    assert max(peaks) > 1.5 * min(peaks), peaks
