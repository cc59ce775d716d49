"""The gate in front of the follower: only calls that are the functions' own pass it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from vramcast.core.errors import CompilerError  # noqa: E402
from vramcast.tracer.values import follower, gate  # noqa: E402
from vramcast.tracer.values.host_reads import KnownReads  # noqa: E402
from vramcast.tracer.values.read_numbers import Decisions  # noqa: E402

functional: Any = torch.nn.functional


class Sub(torch.Tensor):  # type: ignore[misc]
    """A tensor of another kind."""


PASSING: dict[str, Callable[[Any], Any]] = {
    "number": lambda x: x * 2, "attribute": lambda x: x.shape, "slices": lambda x: x[1:, None],
    "list": lambda x: torch.cat([x, x]), "read": lambda x: x.sum().item(),
    "made": lambda x: torch.tensor([1, 2, 3], dtype=torch.float32), "written": lambda x: x.__setitem__(0, 1),
    "named": lambda x: functional.interpolate(x.view(1, 1, -1), scale_factor=2.0, mode="nearest"),
}  # fmt: skip
SEEN: dict[str, Callable[[Any], Any]] = {
    "device": lambda x: x.to("cpu"), "card": lambda x: torch.zeros(2, device="meta"),
    "foreach": lambda x: torch._foreach_add([x], 1), "subclass": lambda x: torch.add(x, x.as_subclass(Sub)),
    "tracked number": lambda x: x + Decisions("drawn").number(3), "tracked bound": lambda x: x[: Decisions("drawn").number(1)],
    "backward": lambda x: (x.requires_grad_() * 2).sum().backward(),
}  # fmt: skip


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the functions whose calls arrive at the follower."""
    if gate.load() is None:
        pytest.skip("there is no C compiler here")
    names: list[str] = []
    follows: Any = follower.Values.__torch_function__

    def noted(self: Any, func: Any, *rest: Any) -> Any:
        names.append(func.__name__)
        return follows(self, func, *rest)

    monkeypatch.setattr(follower.Values, "__torch_function__", noted)
    return names


@pytest.mark.parametrize("use", [*PASSING.values(), *SEEN.values()], ids=[*PASSING, *SEEN])
def test_only_calls_of_their_own_pass(use: Callable[[Any], Any], seen: list[str]) -> None:
    first, second, third = (torch.ones(4) for _ in range(3))
    bare = use(third)
    with follower.Values(KnownReads()):
        use(first)  # the follower sees a function once
        seen.clear()
        found = use(second)
    assert (not seen) == (use in PASSING.values())
    if isinstance(bare, torch.Tensor) and not bare.is_meta:
        assert torch.equal(found, bare)


def test_default_device_stops_only_calls_that_make(seen: list[str]) -> None:
    with follower.Values(KnownReads()):
        x = torch.tensor([1.0])
        torch.set_default_device("cpu")
        try:
            seen.clear()
            (x * 2).sum()
            assert not seen
            torch.tensor([1.0])
        finally:
            torch.set_default_device(None)
    assert seen == ["tensor"]


def test_nothing_passes_once_host_holds_drawn_number(seen: list[str]) -> None:
    values = follower.Values(KnownReads())
    with values:
        x = torch.ones(1)
        x * 2
        values._mark(x, has_most=False)
        seen.clear()
        assert isinstance(x.item(), float)
    assert seen == ["item"]


def test_function_raises_as_without_gate(seen: list[str]) -> None:
    with follower.Values(KnownReads()), pytest.raises(IndexError, match="out of range"):
        torch.ones(4).sum(dim=7)


def test_follower_sees_all_calls_without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any, **__: Any) -> Path:
        raise CompilerError("there is none")

    monkeypatch.setattr(gate, "shared_library", fails)
    monkeypatch.setattr(gate, "load", gate.load.__wrapped__)
    assert gate.before(follower.Values(KnownReads())) == {}
