"""Every public object prints as one short line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import vramcast
from vramcast.core.brief import LIMIT
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate


def reached(one: Any, path: str, depth: int, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of vramcast's classes that attributes of `one` lead to, each with its path."""
    if id(one) in seen:
        return
    seen[id(one)] = one
    if isinstance(one, list | tuple | dict):
        for place, part in list(one.items() if isinstance(one, dict) else enumerate(one))[:8]:
            yield from reached(part, f"{path}[{place!r}]", depth, seen)
    if not type(one).__module__.startswith("vramcast"):
        return
    yield path, one
    names = [name for name in dir(one) if not name.startswith("_")] if depth else ()
    for name in names:
        yield from reached(getattr(one, name, None), f"{path}.{name}", depth - 1, seen)


def check(one: Any, path: str) -> int:
    """Check every object reached from `one`, and return their number."""
    found = list(reached(one, path, 3, {}))
    for where, part in found:
        text = repr(part)
        assert len(text) <= LIMIT, f"{where}: {text[:200]}"
        assert "\n" not in text, where
        assert "array(" not in text, where
        assert re.search(r"\bb'", text) is None, where
    return len(found)


@pytest.mark.torch
@pytest.mark.integration
def test_estimates_and_what_they_lead_to_are_short() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(57_600, 10))
    found: Estimate = Estimator("rtx4090", "fake").estimate(model, torch.zeros(8, 3, 32, 32))
    assert repr(found).startswith("<Estimate rtx4090: ")
    assert repr(found).endswith(" of 23.64 GiB: fits>")
    assert check(found, "est") > 30
    for part in (found.what_if(), found.fragmentation(), found.margin(), found.need(), vramcast.advise(found)):
        assert check(part, type(part).__name__)
    for part in (vramcast.plan_pool(found.trace), vramcast.simulate(found.trace, vramcast.Settings()), found.estimator):
        assert check(part, type(part).__name__)


def test_every_public_default_is_short() -> None:
    for one in (vramcast.Settings(), vramcast.RunOptions(), Estimator(), vramcast.TensorSpec((8, 128), "int64", high=30522)):
        assert check(one, type(one).__name__)
    assert all(check(card, name) for name, card in vramcast.devices.DEVICES.items())


def test_representation_shows_the_fields_that_differ() -> None:
    assert repr(Estimator("t4")) == "Estimator(device='t4')"
    card = repr(vramcast.devices.DEVICES["t4"])
    assert card.startswith("Device(key='t4', name=")
    assert card.endswith(", ...)")
