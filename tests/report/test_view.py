"""Views of estimates: the package's root registers them, so they work for every estimate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from vramcast.estimates import view
from vramcast.estimates.result import Estimate

ALONE = """
import sys
from vramcast.estimates.bounds.public import PublicBound
from vramcast.hardware.context import context_bytes
from vramcast.hardware.cards import device
from vramcast.estimates.estimator import Estimator
from vramcast.jobs.job import Job
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.trace import Trace

card, context = device("t4"), context_bytes("t4", 13, ())
empty = Trace.build({"action": [], "size_bytes": [], "block": []})
bound = PublicBound(0, frozenset())
found = Estimate(Job(card), empty, 0, 0, context.bytes, None, context, Estimator(), bound, "nullgpu", "2.11.0", 13, 0)
print("vramcast.report" in sys.modules, str(found).startswith("fits: "), "vramcast.report" in sys.modules)
"""


def test_registered_view_draws(make: Callable[..., Estimate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_views", [])
    view.register(
        lambda: SimpleNamespace(text=lambda estimate: f"{estimate.reserved} bytes", to_dict=lambda estimate: {"a": 1})
    )
    assert (str(make()), make().to_dict(), make().to_json()) == (f"{500 * 2**20} bytes", {"a": 1}, '{"a": 1}')


def test_ipython_shows_text(make: Callable[..., Estimate]) -> None:
    assert pytest.importorskip("IPython.lib.pretty").pretty(make()) == str(make())


@pytest.mark.integration
def test_prints_estimate_without_importing_report() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False True True\n", done.stderr
