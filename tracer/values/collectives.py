"""Results of collectives in small tensors, which the library's own code does not show.

In a group of one rank, the result is the rank's own input. With several ranks, the others are simulated peers, and each
contributes the same as this rank (single program, multiple data). Integers that the ranks exchange (tokens for experts) are
spread evenly over all ranks. Data that one rank sends to others (a broadcast, a message) comes from ranks that ran earlier.
Unknown contents are forgotten: the old contents of the tensor are never reused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.ranks.simulated_peers import AbsentRanks
from vramcast.tracer.values.recipes import Origin
from vramcast.tracer.values.tensor_values import TensorValues

# The output and input parameters of each collective in torch.distributed. spec: its signatures.
_PARAMETERS: Final = {
    "all_reduce": ("tensor", "tensor"),
    "broadcast": ("tensor", "tensor"),
    "reduce": ("tensor", "tensor"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather": ("tensor_list", "tensor"),
    "reduce_scatter_tensor": ("output", "input"),
    "all_to_all_single": ("output", "input"),
    "scatter": ("tensor", "scatter_list"),  # the results of this one and those below are not worked out
    "gather": ("gather_list", "tensor"),
    "all_to_all": ("output_tensor_list", "input_tensor_list"),
    "reduce_scatter": ("output", "input_list"),
}
_REDUCTIONS: Final = ("all_reduce", "reduce", "reduce_scatter_tensor")
# spec: torch >= 2.15 has the function under a new name, and one under the old name that calls it
_RENAMED: Final = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}
_SPLITS: Final = ("output_split_sizes", "input_split_sizes")
# spec: the operators called by torch.distributed's functional collectives, including DTensor's.
_FUNCTIONAL: Final = ("_c10d_functional", "_c10d_functional_autograd")
_FUNCTIONAL_KINDS: Final = frozenset({
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
})  # fmt: skip
_BROADCAST: Final = "broadcast of a tensor"
_MESSAGE: Final = "message of a tensor"


@contextmanager
def followed(values: TensorValues, others: AbsentRanks | None = None) -> Iterator[None]:
    """Report the contents of tensors to `values` after each collective that runs inside."""
    distributed: Any = torch.distributed
    if not distributed.is_available():
        yield
        return
    module = distributed.distributed_c10d
    places = {_RENAMED.get(name, name) if hasattr(module, _RENAMED.get(name, name)) else name: name for name in _PARAMETERS}
    made = {place: _recording(getattr(module, place), name, values, others) for place, name in places.items()}
    replaced = [
        ReplacedAttribute(owner, name, lambda _, instead=instead: instead)  # type: ignore[misc]
        for owner in (distributed, module)  # the same function in both: dynamo recognizes collectives by identity
        for name, instead in made.items()
    ]
    if others is not None:
        group = module.ProcessGroup
        replaced.append(ReplacedAttribute(group, "send", functools.partial(_sent, values=values, others=others)))
        replaced.append(ReplacedAttribute(group, "recv", functools.partial(_received, values=values, others=others)))
    try:
        yield
    finally:
        for place in reversed(replaced):
            place.remove()


def _recording(original: Callable[..., Any], name: str, values: TensorValues, others: AbsentRanks | None) -> Callable[..., Any]:
    """Return a collective that records its result in `values`."""
    parameters = tuple(inspect.signature(original).parameters)
    output, source = _PARAMETERS[name]

    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        named = {**dict(zip(parameters, args, strict=False)), **kwargs}
        outputs: Any = named.get(output) or () if output.endswith("list") else (named.get(output),)
        group = named.get("group")
        size, place = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        if size == 1 and isinstance(named.get(source), torch.Tensor):
            done = original(*args, **kwargs)
            values.same(outputs[0], named[source])
            return done
        is_uneven = any(named.get(splits) is not None for splits in _SPLITS)
        given = None if is_uneven else _given(values, name, named.get(source))
        done = original(*args, **kwargs)
        if place < 0:
            return done
        if name == "broadcast":
            given = _broadcast(others, group, _source(named), given)
        operation = named.get("op", torch.distributed.ReduceOp.SUM)
        result = None if given is None else result_of(name, given[0], size, place, operation)
        for tensor in outputs:
            _note(values, tensor, result, given)
        return done

    return collective


def is_functional(func: Any) -> bool:
    """Return whether a call is an operator of the functional collectives."""
    return type(func).__module__ == torch_api.OPERATORS and str(func).partition(".")[0] in _FUNCTIONAL


def functional(values: TensorValues, func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator of the functional collectives, and record its result in `values`."""
    name = str(func).split(".")[1]
    if name not in _FUNCTIONAL_KINDS:
        return func(*args, **kwargs)
    group = torch_api.group_of_name(kwargs.get("group_name", args[-1]))
    size, place = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    splits = args[1:3] if name == "all_to_all_single" else ()
    is_uneven = any(one not in (None, [args[0].shape[0] // size] * size) for one in splits)
    operation = getattr(torch.distributed.ReduceOp, str(args[1]).upper(), None)
    given = None if is_uneven else _given(values, name, args[0])
    result = func(*args, **kwargs)
    if name == "broadcast" and args[1] != place:
        given = None
    _note(values, result, None if given is None else result_of(name, given[0], size, place, operation), given)
    return result


def _note(values: TensorValues, output: Any, result: torch.Tensor | None, given: tuple[torch.Tensor, Origin] | None) -> None:
    if result is not None and given is not None:
        values.holds(output, result, max(given[1], Origin.DRAWN))  # the peers' data was not seen
    elif isinstance(output, torch.Tensor):
        values.forget(output)


def _given(values: TensorValues, name: str, tensor: Any) -> tuple[torch.Tensor, Origin] | None:
    """Return this rank's contribution and its origin. Integers are worked out, because shapes may depend on them."""
    if not isinstance(tensor, torch.Tensor):
        return None
    found = values.value(tensor)
    if found is None and not tensor.is_floating_point():
        found = values.guess(name, tensor)
    return None if found is None else (found[0].clone(), found[1])


def _broadcast(
    others: AbsentRanks | None, group: Any, source: int, given: tuple[torch.Tensor, Origin] | None
) -> tuple[torch.Tensor, Origin] | None:
    if others is None:
        return None
    if source == torch.distributed.get_rank():
        others.record_tensor(_BROADCAST, group, (source,), None if given is None else given[0])
        return given
    received = others.received_tensor(_BROADCAST, group, (source,))
    return None if received is None else (received, Origin.DRAWN)


def _sent(original: Any, values: TensorValues, others: AbsentRanks) -> Callable[..., Any]:
    def send(group: Any, tensors: Any, place: int, *args: Any, **kwargs: Any) -> Any:
        given = values.value(tensors[0])
        others.record_tensor(_MESSAGE, group, _ends(group, place), None if given is None else given[0])
        return original(group, tensors, place, *args, **kwargs)

    return send


def _received(original: Any, values: TensorValues, others: AbsentRanks) -> Callable[..., Any]:
    """Return a receive that records the contents of the message."""

    def receive(group: Any, tensors: Any, place: int, *args: Any, **kwargs: Any) -> Any:
        done = original(group, tensors, place, *args, **kwargs)
        received = others.received_tensor(_MESSAGE, group, _ends(group, place)[::-1])
        _note(values, tensors[0], received, None if received is None else (received, Origin.DRAWN))
        return done

    return receive


def _ends(group: Any, place: int) -> tuple[int, int]:
    """Return the number of this rank, and of the rank at a place in the group."""
    return torch.distributed.get_rank(), torch.distributed.get_process_group_ranks(group)[place]


def result_of(name: str, given: torch.Tensor, size: int, place: int, operation: Any) -> torch.Tensor | None:
    """Return the contents of a rank's result after a collective in which every rank contributed the same.

    Args:
        name: Name of the collective.
        given: This rank's contribution, [...].
        size: Number of ranks in the group.
        place: Place of this rank in the group.
        operation: Operation of a reduction.
    Returns:
        The contents, or None if they are unknown.
    """
    if name in _REDUCTIONS:
        if name == "reduce_scatter_tensor":
            given = given.reshape(size, -1)[place]
        return _reduced(given, size, operation)
    if name == "all_gather_into_tensor":
        return torch.cat([given.reshape(-1)] * size)
    if name == "all_to_all_single":
        parts = given.reshape(size, -1)
        even = parts[place] if parts.is_floating_point() else (parts.double().mean(0) + 0.5).floor().to(parts.dtype)
        return torch.cat([even] * size)
    return given  # a broadcast; all_gather's list


def _reduced(given: torch.Tensor, size: int, operation: Any) -> torch.Tensor | None:
    operations = torch.distributed.ReduceOp
    if operation == operations.SUM:
        return given * size
    if operation in (operations.AVG, operations.MIN, operations.MAX, operations.BAND, operations.BOR):
        return given
    return None


def _source(named: dict[str, Any]) -> int:
    if named.get("src") is not None:
        return int(named["src"])
    return int(torch.distributed.get_process_group_ranks(named.get("group"))[named["group_src"]])
