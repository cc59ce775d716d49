"""Shortcuts of the follower: they answer as the long way does, and are taken for usual arguments only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from vramcast.tracer.values import follower  # noqa: E402
from vramcast.tracer.values.followed_call import most_elements  # noqa: E402
from vramcast.tracer.values.function_kinds import is_pointwise, kind_of, usual_tensors  # noqa: E402
from vramcast.tracer.values.host_reads import KnownReads  # noqa: E402
from vramcast.tracer.values.read_numbers import Decisions  # noqa: E402

# Results from known numbers x, and from unknown ones u of the same shape.
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "row": lambda x, u: x[1:, :2], "sum": lambda x, u: (x * 2 + 1).sum(), "in place": lambda x, u: x.clone().add_(3),
    "compared": lambda x, u: x == 3, "sorted": lambda x, u: x.sort(dim=1, descending=True),
    "joined": lambda x, u: torch.cat([x, x]), "parts": lambda x, u: x.view(2, -1).chunk(2), "cast": lambda x, u: x.float(),
    "derived": lambda x, u: (u * 10 + x).transpose(0, 1)[0], "of unknown": lambda x, u: (u.reshape(-1) * 3).split(4),
    "moved": lambda x, u: u.clone().mul_(2), "softmax": lambda x, u: u.softmax(-1) * 2, "rounded": lambda x, u: (u * 9).long(),
    "expanded": lambda x, u: x[:, None].expand(4, 2, 3), "of rows": lambda x, u: x.sum(dim=1, keepdim=True),
    "joined rows": lambda x, u: torch.cat([x, x], dim=1), "largest": lambda x, u: torch.topk(x, k=2, dim=-1),
    "views": lambda x, u: (x.t()[1].unsqueeze(0).view(-1), x[[0, 2]], x.clone()[1, ..., None].add_(1), x.detach()[True]),
}  # fmt: skip


def contents(use: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the shape, the origin and the host's values of each result, with meta tensors for those on the card."""
    values = follower.Values(KnownReads(), on_card=lambda tensor: tensor.is_meta, devices=("meta",))
    with values:
        known = torch.tensor([[3, 1, 4], [1, 5, 9], [2, 6, 5], [3, 5, 8]]).to("meta")
        unknown = torch.nn.functional.linear(torch.empty(4, 2, device="meta"), torch.empty(3, 2, device="meta"))
        made = use(known, unknown)
    results = made if isinstance(made, tuple) else (made,)
    found = [values.value(result) or values.work_out(result, "item") for result in results]
    return [(one[0].shape, one[1], one[0].tolist()) for one in found if one is not None]


@pytest.mark.parametrize("use", CASES.values(), ids=CASES.keys())
def test_shortcut_answers_as_long_way(use: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    short = contents(use)
    monkeypatch.setattr(follower, "usual_tensors", lambda args, kwargs: None)
    assert short == contents(use)
    assert short


@pytest.mark.parametrize(
    "args",
    [
        (torch.zeros(2), "cuda"), (torch.zeros(2), torch.device("cpu")), ([Decisions("drawn").number(3)],),
        (torch.zeros(2), slice(Decisions("drawn").number(3))), (torch.nn.UninitializedParameter(),), ([[torch.zeros(2), {}]],),
    ],
)  # fmt: skip
def test_unusual_arguments_take_long_way(args: Any) -> None:
    assert usual_tensors(args, {}) is None
    assert usual_tensors((), {"other": args}) is None
    assert usual_tensors((torch.zeros(2), 1, [2, None], slice(1, 2)), {"approximate": "none"}) is not None


def test_reading_calls_are_no_derivations() -> None:
    reading = [torch.nonzero, torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.__setitem__, torch.masked_select, torch.unique]
    assert not any(kind_of(func).is_derivation for func in reading)
    assert kind_of(torch.mul).is_derivation


@pytest.mark.parametrize("name", ["add", "__eq__", "clamp", "where", "masked_fill", "__rsub__"])
def test_pointwise_result_has_largest_dimensions(name: str) -> None:
    first, second = torch.ones(300, 1, 7), torch.ones(40, 1)
    made_by: Any = torch if name == "where" else torch.Tensor
    whole = first.expand(300, 40, 7)
    arguments = {"where": (first > 0, first, second), "masked_fill": (whole, second > 0, 1.0)}.get(name, (first, second))
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    assert most_elements(name, (arguments, {}), tensors) == getattr(made_by, name)(*arguments).numel() == 300 * 40 * 7


@pytest.mark.parametrize("name", ["cat", "stack", "__getitem__", "repeat", "name", ""])
def test_other_functions_are_not_pointwise(name: str) -> None:
    assert not is_pointwise(name)
