"""Outcomes in the form of a check's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.cli.project.outcomes import JobOutcome

MIB = 1 << 20


@pytest.fixture
def outcome() -> Callable[..., JobOutcome]:
    """Return a function that makes an outcome of a job with this process peak; without a peak, of a failed estimate."""

    def make(
        process_mib: int | None = 1024, *, code: int = 0, verdict: str = "fits", torch: str = "2.11.0", **asked: Any
    ) -> JobOutcome:
        if process_mib is None:
            return JobOutcome({"device": "t4", **asked}, code, verdict)
        estimate = {
            "device": "t4", "memory_bytes": 15360 * MIB, "torch": torch, "tracer": "nullgpu", "artifact": None,
            "peaks": {"process": process_mib * MIB}, "upper_bound": {"level": 0.99, "bytes": (process_mib + 512) * MIB},
        }  # fmt: skip
        return JobOutcome({"device": "t4", **asked}, code, verdict, estimate)

    return make
