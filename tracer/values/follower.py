"""Follows the values of tensors through a job on a card that computes nothing.

Every call of PyTorch's Python functions with known arguments runs twice: on the host's copies, and on the card as usual. Values
read during the host's run (a count of ones, an `.item()`) become the answers to the reads of the card's C++ code. So
`mask.all()`, `nonzero()` and loops over them take the same path as on a GPU, and PyTorch's own code requests the memory. Large
values, and values that depend on weights or activations, are worked out only when a decision depends on them (`recipes.py`).
Unknown inputs are then drawn (`unknown_values.py`), and these decisions are counted.

    attention_mask   known: it came from the host
    mask.all()       known: True                          -> bool() reads True
    scores.topk(2)   drawn scores                         -> one_hot(...).sum(0).nonzero() reads a plausible count

If a large value was drawn, or is too much work, the answer is one of several. Further runs of the job (`Answers`) give the
others: the largest result that the operator can return, or the opposite branch. A single drawn number tracks its own use
(`read_numbers.py`): if a decision depends on it, further runs cover the alternatives.

Known limitations: only calls from Python are seen, not C++ operators inside one call on unknown values, vmap, or compiled
graphs. Floats that the host copies many at a time are zeros, and decisions that Python makes on them are not seen.
nn.MultiheadAttention leaves its fast path while any function mode is active (inference only).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.hooks.replacement import ReplacedAttribute, when_imported
from vramcast.tracer.hooks.tensors import LEAVES, leaves_of, map_leaves, tensors_in
from vramcast.tracer.hooks.torch_api import (
    CHECKS_GRADIENTS,
    COMPILED_AHEAD,
    DisableTorchFunction,
    DispatchModeKey,
    default_device,
    device_constructors,
    dispatch_mode,
    function_modes,
    functorch_level,
    n_dispatch_modes,
    places,
)
from vramcast.tracer.program.meta_model import BIG_BYTES
from vramcast.tracer.protocol.run_options import Answers
from vramcast.tracer.ranks.simulated_peers import AbsentRanks
from vramcast.tracer.values import collectives, gate, max_shapes, unknown_values
from vramcast.tracer.values.followed_call import FollowedCall, derivation, most_elements, result_recipe
from vramcast.tracer.values.function_kinds import (
    BACKWARD,
    CHECKED,
    COPIES,
    FLOATS,
    PASSED,
    SCALARS,
    is_silent,
    is_view,
    kind_of,
    usual_tensors,
)
from vramcast.tracer.values.host_reads import masks, raw
from vramcast.tracer.values.host_weights import HostWeights, is_made
from vramcast.tracer.values.loop_exits import goes_on
from vramcast.tracer.values.read_numbers import LARGE_FLOAT, MAX_PER_STEP, Decisions, NumberOrigin, has_number, sizes_in, spoken
from vramcast.tracer.values.recipes import BOUNDED, LARGE_ELEMENTS, Origin, Recipe, RecipeStep, host_only
from vramcast.tracer.values.tensor_values import TensorValues

# The commonest optimizers; some others keep numbers on the card.
_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
# Modes, and types of tensors, with which a compiler tries out a graph: without storage, with sizes that are no numbers.
_COMPILING = (DispatchModeKey.FAKE, DispatchModeKey.PROXY, DispatchModeKey.FUNCTIONAL)
_TRIED = frozenset({"FakeTensor", "FunctionalTensor"})  # their modules may not be loaded
_NOTHING = object()  # the host did not make the call
_MAX_DRAWN_READS = MAX_PER_STEP  # a loop until convergence would never end: from here on it reads zeros
_DRAWN_ON_HOST = "vramcast_reading"  # an attribute of a host tensor that holds a drawn number
_PLAIN = frozenset({"__complex__", "__float__", "__index__", "__int__"})  # calls that return a plain Python number


class CardAnswers(Protocol):
    """The card's end of the protocol: it answers reads by C++ code."""

    def know(self, reads: list[bytes]) -> int:
        """Set the answers to the next reads, and discard those left from the last call; return how many were left."""


class Values(TensorValues, TorchFunctionMode):
    """A mode that follows values while it is active.

    Args:
        card: Receives the answers to reads.
        on_card: Whether a tensor lies on the card.
        devices: Device types that stand for the card.
        answers: Answers to give for large drawn values.
        host_weights: Tracks host tensors without meaningful values; None: all values are meaningful.
    Attributes:
        drawn: By name of the call, how often a shape, or a branch on a large tensor, depended on a drawn value.
        reads: How often a single number was read that was drawn or derived from drawn numbers.
        call: The name of the call currently running on the card.
    """

    def __init__(
        self, card: CardAnswers, *, on_card: Callable[[torch.Tensor], bool] | None = None, devices: tuple[str, ...] = ("cuda",),
        answers: Answers = "drawn", host_weights: HostWeights | None = None,
    ) -> None:  # fmt: skip
        super().__init__(on_card, devices)
        self.drawn: Counter[str] = Counter()
        self.reads = self._reads_of_step = 0
        self.call = ""
        self._card = card
        self._answers = answers
        self._host_weights = host_weights
        self._of_large: Counter[tuple[CallHandling, str]] = Counter()  # by kind of ledger entry and name of the call
        self._compiles = False  # the job compiles code
        self._decisions = Decisions(answers)
        self._is_on_host = False  # whether any host tensor holds a drawn number
        self._drawn_float = LARGE_FLOAT if answers == "largest" else 0.5  # of the host's weights
        if on_card is None:
            vars(self).update(gate.before(self, 0 if host_weights is None else BIG_BYTES))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind.name == "__get__":  # the most frequent one: a shape, a gradient
            return self._passed(func, kind.name, args, kwargs)
        if n_dispatch_modes() and any(dispatch_mode(key) is not None for key in _COMPILING):
            return func(*args, **kwargs)
        tensors = usual_tensors(args, kwargs)
        is_at_length = kind.is_at_length or (kind.is_constructor and default_device.CURRENT_DEVICE is not None)
        if tensors is None or is_at_length or functorch_level() is not None:
            return self._at_length(func, kind.name, args, kwargs)
        if kind.is_passed:
            return self._passed(func, kind.name, args, kwargs)
        if kind.is_computing:
            return self._on_host(func, args, kwargs)
        if not any(map(self.on_card, tensors)):
            return self._of_host(func, kind.name, args, kwargs, tensors, has_numbers=False)
        is_quiet = is_silent(kind.name, args, kwargs, tensors)
        if is_quiet or (kind.is_derivation and (kind.name != "__getitem__" or len(tensors) == 1)):
            recipes = [*map(self.recipe, tensors)]
            if not all(recipe.is_known for recipe in recipes):
                if kind.is_derivation:
                    return self._derived(func, kind.name, args, kwargs, tensors, recipes)
            elif is_quiet and not recipes[0].origin and is_view(kind.name, args):
                return func(*args, **kwargs)  # the host's copy lies under it, too
            elif is_quiet and (mirrored := self._mirrored(func, kind.name, args, kwargs, tensors, recipes)) is not None:
                result = func(*args, **kwargs)
                with torch.no_grad():
                    self._shadows.keep_all(_pairs(result, mirrored[0]), mirrored[1])
                return result
        return self._at_length(func, kind.name, args, kwargs)

    def _mirrored(
        self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor], recipes: list[Recipe]
    ) -> tuple[Any, Origin] | None:
        """Return the host's result of a call that reads nothing and changes no argument; None: it needs a closer look."""
        origin = max(recipe.origin for recipe in recipes)
        if (origin and name in BOUNDED) or most_elements(name, (args, kwargs), tensors) > LARGE_ELEMENTS:
            return None
        known = {id(tensor): recipe.known() for tensor, recipe in zip(tensors, recipes, strict=True) if recipe.known}
        try:
            with host_only():
                return func(*map_leaves(lambda value: known.get(id(value), value), args, slice), **kwargs), origin
        except Exception:  # the host may lack what the card supports
            return None

    def _derived(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor], recipes: list[Recipe]) -> Any:
        """Make a call with unknown arguments, whose code reads nothing from the card, and keep the recipes of its results."""
        step = None if unknown_values.is_drawn_afresh(name) else derivation(func, name, args, kwargs, tensors, recipes)
        outer, self.call = self.call, name
        try:
            result = func(*args, **kwargs)
        finally:
            self.call = outer
        if step is not None:
            self._keep_recipes(step, leaves_of(result), result_recipe)
        return result

    def _keep_recipes(
        self, step: RecipeStep, results: list[Any], recipe: Callable[[RecipeStep, int, torch.Tensor], Recipe]
    ) -> None:
        """Keep the recipes of a step's results on the card with contents that are not known."""
        for place, tensor in enumerate(results):
            if not isinstance(tensor, torch.Tensor) or not self.on_card(tensor) or tensor.layout != torch.strided:
                continue
            if self._shadows.find(tensor) is None:
                self._shadows.keep_recipe(tensor, recipe(step, place, tensor))

    def _at_length(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make any other call."""
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._with_bounds_read(args[1]), *args[2:])
        has_numbers = self._decisions.are_there and has_number((*args, *kwargs.values()))
        if has_numbers:
            self._decisions.sized(name, sizes_in(name, args, kwargs))
        if func in BACKWARD:
            return self._backward(func, args, kwargs)
        if name == "to" and len(args) == 2 and not kwargs and args[1] == args[0].device:  # as for each norm when one clips them
            return func(*args)
        if name in PASSED or functorch_level() is not None:
            result = self._passed(func, name, args, kwargs)
            if name == "__deepcopy__":
                self.copied(result, args[0])
            return result
        if unknown_values.is_computing(name):
            return (
                self._answered(FollowedCall(self, func, name, args, kwargs, []), [b"\1"])
                if name in CHECKED
                else self._on_host(func, args, kwargs)
            )
        default = default_device.CURRENT_DEVICE
        if default is not None and kwargs.get("device") is None and func in device_constructors():
            kwargs = {**kwargs, "device": default}
        tensors = tensors_in(args, kwargs)
        if any(is_lazy(t) or type(t).__name__ in _TRIED for t in tensors if type(t) not in LEAVES) or not (
            any(map(self.on_card, tensors)) or name == "cuda" or any(map(self.is_card, (*args, kwargs.get("device"))))
        ):
            return self._of_host(func, name, args, kwargs, tensors, has_numbers=has_numbers)
        if name == CHECKS_GRADIENTS:
            return self._finite(func, args, kwargs)
        if name.startswith("_foreach") and any(self.value(tensor) is None for tensor in tensors):
            return func(*args, **kwargs)  # hundreds of weights; step counters are known
        if collectives.is_functional(func):
            return collectives.functional(self, func, args, kwargs)
        call = FollowedCall(self, func, name, args, kwargs, tensors)
        call.origin = max(call.origin, Origin.DRAWN) if has_numbers else call.origin
        if name in FLOATS | COPIES:
            call.draw_float()
        if call.known and name != "_grouped_mm":  # a product, but the host reads its offsets
            return self._known(call)
        return self._unknown(call)

    def _with_bounds_read(self, index: Any) -> Any:
        """Return an index with numbers in place of tensors that bound a slice: Python's slicing reads them."""
        if isinstance(index, tuple):
            return tuple(map(self._with_bounds_read, index))
        if not isinstance(index, slice):
            return index

        def read(bound: Any) -> Any:
            return self.__torch_function__(torch.Tensor.item, (), (bound,)) if isinstance(bound, torch.Tensor) else bound

        return slice(read(index.start), read(index.stop), read(index.step))

    def _passed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs) if self._host_weights is None else self._host_weights.passed(func, name, args, kwargs)

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a call that is not followed: no tensor lies on the card, or its result is never read."""
        return func(*args, **kwargs) if self._host_weights is None else self._host_weights.run(func, args, kwargs)

    def _of_host(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor], *, has_numbers: bool) -> Any:
        """Make a call without card tensors; it may read a drawn number that was copied to the host."""
        is_hollow = self._is_hollow(*tensors) and not is_made(name)
        result = self._on_host(func, args, kwargs)
        drawn = [t for t in tensors if hasattr(t, _DRAWN_ON_HOST)] if self._is_on_host else []
        if not drawn and not has_numbers and not is_hollow:
            return result
        has_most = bool(drawn) and all(getattr(t, _DRAWN_ON_HOST) for t in drawn)
        if name in SCALARS:
            return self._read(name, self._drawn_float if is_hollow and type(result) is float else result, has_most=has_most)
        if is_hollow and self._is_hollow(*max_shapes.deciding(name, args, kwargs, tensors)):
            self.drawn[name] += 1
        is_new = is_hollow and isinstance(result, torch.Tensor) and not self._is_hollow(result)
        if is_new and result.is_floating_point():
            result.data.fill_(self._drawn_float)
        if is_new or (isinstance(result, torch.Tensor) and result.numel() == 1 and not is_hollow):
            self._mark(result, has_most=has_most and name in BOUNDED)
        return result

    def _is_hollow(self, *tensors: torch.Tensor) -> bool:
        return self._host_weights is not None and self._host_weights.holds(tensors)

    def _mark(self, tensor: torch.Tensor, *, has_most: bool) -> None:
        """Note that a host tensor holds a drawn number."""
        self._is_on_host = True
        vars(self).pop("__torch_function__", None)  # no call on the host passes from now on
        setattr(tensor, _DRAWN_ON_HOST, has_most)

    def _finite(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Check that gradients are finite, as they are assumed to be; the earlier result stays valid."""
        is_known = self._shadows.find(args[1]) is not None
        result = func(*args, **kwargs)
        if is_known:
            self._shadows.changed(args[1])
        return result

    def step_over(self) -> None:
        """Note that an optimizer has stepped."""
        self._decisions.step_over()
        self._reads_of_step = 0
        self._budget.renew()

    def ledger(self) -> list[Entry]:
        """Return the ledger entries for drawn values."""
        entries = [
            Entry.of(CallHandling.ASSUMED, Code.DRAWN_SHAPE, hits, name=name) for name, hits in sorted(self.drawn.items())
        ]
        self._decisions.settle()
        entries += [
            Entry(kind, name, hits) for (kind, name), hits in sorted((self._of_large + self._decisions.entries).items())
        ]
        return entries + ([Entry(CallHandling.DRAWN, "single numbers", self.reads)] if self.reads else [])

    def unseen_by(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.compile` whose compiled code runs outside this mode, which would otherwise be compiled with it."""

        @functools.wraps(compile_)
        def compile_unseen(model: Any = None, **options: Any) -> Any:
            self._compiles = True
            if model is None:
                return lambda model: compile_unseen(model, **options)
            compiled = compile_(model, **options)
            if isinstance(compiled, torch.nn.Module):
                compiled.forward = self._unseen(compiled.forward)
                return compiled
            return self._unseen(compiled)

        return compile_unseen

    def _unseen(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compiled)
        def run(*args: Any, **kwargs: Any) -> Any:
            if function_modes()[-1:] != [self]:
                return compiled(*args, **kwargs)
            super(Values, self).__exit__(None, None, None)
            try:
                return compiled(*args, **kwargs)
            finally:
                super(Values, self).__enter__()

        if ahead := getattr(compiled, "aot_compile", None):  # vLLM compiles by calling it
            vars(run)["aot_compile"] = self._unseen(ahead)
        return run

    def apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an optimizer's function that runs outside this mode if it touches only tensors with unknown values."""
        unseen = self._unseen(function)

        @functools.wraps(function)
        def run(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            is_plain = not args and all(value is True for value in kwargs.values())  # no closure; set_to_none
            is_plain &= self._host_weights is None and _is_usual(optimizer)
            if self._answers == "otherwise" and isinstance(optimizer, torch.optim.LBFGS):
                for group in optimizer.param_groups:  # a loss that stays would end it, by plain floats that cannot be followed
                    group["tolerance_grad"] = group["tolerance_change"] = -1.0
            return (unseen if is_plain else function)(optimizer, *args, **kwargs)

        return run

    def again(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward pass that is still followed when it runs again, even in a thread of autograd's engine."""

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self in function_modes() or not self._compiles:
                return forward(*args, **kwargs)
            with self:
                return forward(*args, **kwargs)

        return run

    def _backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a backward pass with this mode active inside the engine, where a checkpointed forward pass runs again."""
        if self._compiles:  # a compiled graph's backward pass is compiled on its first run: `again` follows the others
            return func(*args, **kwargs)
        autograd: Any = torch.autograd
        run = autograd._engine_run_backward

        def run_followed(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run(*args, **kwargs)

        autograd._engine_run_backward = run_followed
        try:
            return func(*args, **kwargs)
        finally:
            autograd._engine_run_backward = run

    # -------------------------------------------------------------------------------------------- the two runs
    def _known(self, call: FollowedCall) -> Any:
        try:
            with host_only():
                mirrored, reads = call.on_host() if call.result_elements() <= LARGE_ELEMENTS else (None, None)
        except Exception:  # the host may lack what the card supports: the values are then unknown
            return self._recorded(call)
        return self._recorded(call) if reads is None else self._both(call, mirrored, reads)

    def _unknown(self, call: FollowedCall) -> Any:
        """Make a call with unknown arguments; the values that the card's code reads may still be worked out."""
        if not call.work_out():  # too much work
            call.origin = Origin.LARGE
            most = self._most(call)
            if most is None and call.args and max_shapes.is_branch(call.name, call.args[0]):
                is_own = call.name in ("__bool__", "is_nonzero", "item")  # others read a flag that they compute
                return self._recorded(call, [bytes(call.args[0].element_size() if is_own else 1)])  # false: `_otherwise`
            if most is None:
                self._of_large[CallHandling.OPEN, spoken(call.name)] += 1
            return self._recorded(call, *(most or ()))
        if call.deciding and call.known and not call.has_selection:
            try:
                with self._budget.spent(), host_only():
                    mirrored, reads = call.on_host()
            except Exception:  # as above, or too much work
                return self._recorded(call)
            return self._recorded(call, reads, mirrored)
        return self._recorded(call)

    def _recorded(self, call: FollowedCall, reads: list[bytes] | None = None, mirrored: Any = _NOTHING) -> Any:
        step = call.step() if call.name not in SCALARS else None
        result = self._both(call, mirrored, call.selection() if reads is None else reads)
        if step is not None:
            self._keep_recipes(step, [call.args[0]] if call.name == "__setitem__" else leaves_of(result), call.recipe)
        return result

    def _both(self, call: FollowedCall, mirrored: Any, reads: list[bytes]) -> Any:
        """On the card, make the call that was made on the host, with the answers `reads`."""
        most = None
        if call.origin == Origin.LARGE and reads and not _reads_floats(call):
            most = self._most(call)
            reads, mirrored = self._otherwise(call, reads, mirrored, most)
        elif call.origin and reads:
            reads, mirrored = self._another_number(call, reads, mirrored)
        is_bounded = mirrored is not _NOTHING and call.origin and call.name in BOUNDED and call.on_card
        bounds = call.step() if is_bounded else None
        result = self._answered(call, reads, most is not None)
        if mirrored is _NOTHING:
            return result
        for tensor in call.on_card:
            if tensor is not call.overwritten:
                self._shadows.changed(tensor)
        if bounds is not None:
            self._keep_bounds(call, bounds, result)
        return self._settle(call, result, mirrored)

    def _keep_bounds(self, call: FollowedCall, step: Any, result: Any) -> None:
        """Keep the recipe of known integers derived from drawn ones, because their maximum is needed."""
        for place, tensor in enumerate(leaves_of(result)):
            if isinstance(tensor, torch.Tensor) and self.on_card(tensor) and not tensor.is_floating_point():
                self._shadows.keep_recipe(tensor, call.recipe(step, place, tensor))

    def _answered(self, call: FollowedCall, reads: list[bytes], has_most: bool = False) -> Any:
        outer, self.call = self.call, call.name
        try:
            is_exhausted = call.origin and call.name in SCALARS and self._reads_of_step >= _MAX_DRAWN_READS
            if is_exhausted:
                self._decisions.exhausted()
            if not reads or is_exhausted:
                return call.func(*call.args, **call.kwargs)
            return self._reading(call, reads, has_most)
        finally:
            self.call = outer

    def _reading(self, call: FollowedCall, reads: list[bytes], has_most: bool) -> Any:
        self._card.know(reads)
        try:
            result = call.func(*call.args, **call.kwargs)
        finally:
            taken = len(reads) - self._card.know([])
            if taken and call.origin:
                self._count(call, taken, has_most)
        if taken:
            self._tell_backward(call, result, reads)
        return result

    def _count(self, call: FollowedCall, taken: int, has_most: bool) -> None:
        is_number = call.name in SCALARS or _reads_floats(call)
        self.reads += taken if is_number else 0
        self._reads_of_step += taken if is_number else 0
        is_shape = call.origin == Origin.LARGE and not _reads_floats(call)
        if is_shape or not is_number:
            self.drawn[call.name] += 1
        if is_shape:
            is_branch = not has_most and max_shapes.is_branch(call.name, call.args[0])
            kind = CallHandling.LARGEST if has_most else CallHandling.BRANCH if is_branch else CallHandling.OPEN
            self._of_large[kind, spoken(call.name)] += 1
        elif max_shapes.is_branch(call.name, call.args[0]):
            self._decisions.branched(call.name)

    def _tell_backward(self, call: FollowedCall, result: Any, reads: list[bytes]) -> None:
        """Answer the reads of masks and offsets that autograd repeats in the backward pass."""
        if call.name == "_grouped_mm":
            tensor, reads = result, 2 * reads  # for the gradient of each factor
        elif call.name in ("__getitem__", "__setitem__") and masks(call.args[1]):
            tensor, reads = result if call.name == "__getitem__" else call.args[0], reads[-len(masks(call.args[1])) :]
        else:
            return
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(lambda gradients: self._tell(reads))
            tensor.grad_fn.register_hook(lambda inputs, outputs: self._tell([]))

    def _tell(self, reads: list[bytes]) -> None:
        self._card.know(reads)

    def _settle(self, call: FollowedCall, result: Any, mirrored: Any) -> Any:
        if call.name in SCALARS:
            lasting = not call.origin or self._reads_of_step < _MAX_DRAWN_READS
            value = mirrored if lasting and type(mirrored) is type(result) else result
            is_counted = call.origin == Origin.LARGE and not _reads_floats(call)
            if not call.origin or not lasting or is_counted or max_shapes.is_branch(call.name, call.args[0]):
                return value
            return self._read(call.name, value, has_most=self._most(call) is not None)
        pairs = _pairs(result, mirrored)
        with torch.no_grad():
            for tensor, value in pairs:
                if not self.on_card(tensor) and tensor.shape == value.shape and call.name in COPIES:
                    tensor.copy_(value)
                    if call.origin == Origin.DRAWN and tensor.numel() == 1:
                        self._mark(tensor, has_most=self._most(call) is not None)
            self._shadows.keep_all([pair for pair in pairs if self.on_card(pair[0])], call.origin)
        return result

    def _read(self, name: str, value: Any, *, has_most: bool) -> Any:
        """Return a value read by the host as a number that tracks its use; a list of integers without a maximum stays plain."""
        if isinstance(value, bool):
            return self._decisions.compared(value, NumberOrigin(self._decisions, "", has_most=False))
        if name in _PLAIN:
            self._decisions.read_plain(has_most=has_most)
            return value
        if isinstance(value, list):
            return [self._read("tolist", one, has_most=has_most) for one in value]
        if name == "tolist" and isinstance(value, int) and not has_most:
            return value
        return self._decisions.number(value, has_most=has_most, is_alone=name != "tolist")

    # -------------------------------------------------------------------------------------------- other answers
    def _another_number(self, call: FollowedCall, reads: list[bytes], mirrored: Any) -> tuple[list[bytes], Any]:
        """Return the answer for a single drawn number in a run with other answers."""
        if max_shapes.is_branch(call.name, call.args[0]):
            return self._otherwise(call, reads, mirrored, None)
        if self._answers not in ("largest", "smallest") or call.name not in max_shapes.NUMBERS | FLOATS:
            return reads, mirrored
        source, most = call.args[1] if call.name == "copy_" else call.args[0], self._most(call)
        if source.numel() > 1 and not (call.name == "tolist" and (source.is_floating_point() or most is not None)):
            return reads, mirrored
        if most is not None and self._answers == "largest":
            return most
        known = call.host_value(source)
        larger = torch.full_like(known, LARGE_FLOAT) if known.is_floating_point() else 2 * known + 1
        value = larger if self._answers == "largest" else torch.zeros_like(known)
        return [raw(value)], _like(call.name, value, mirrored)

    def _most(self, call: FollowedCall) -> tuple[list[bytes], Any] | None:
        """Return the reads that make the call's result the largest, and the host's result; None if there is no largest."""
        reads = max_shapes.most(call.name, call.args, call.kwargs)
        if reads is not None:
            return reads, _NOTHING
        counted = call.args[0] if call.args else None
        if call.name not in max_shapes.NUMBERS or not isinstance(counted, torch.Tensor) or not self.on_card(counted):
            return None
        recipe = self._shadows.recipe(counted)
        each = recipe.most_counted() if recipe is not None else None
        if each is None:
            return None
        value = torch.full(counted.shape, each, dtype=counted.dtype, device="cpu")
        return [raw(value)], value.tolist() if call.name in SCALARS else value

    def _otherwise(self, call: FollowedCall, reads: list[bytes], mirrored: Any, most: Any) -> tuple[list[bytes], Any]:
        """Return the answers to the card's reads, and a substitute for the host's result, in a run with other answers."""
        if self._answers == "drawn":
            return reads, mirrored
        if most is not None:
            return most
        if (
            self._answers == "otherwise"
            and max_shapes.is_branch(call.name, call.args[0])
            and self._reads_of_step < _MAX_DRAWN_READS
        ):
            answer = not any(reads[0]) if (on := goes_on()) is None else on
            return [bytes([answer]) + bytes(len(reads[0]) - 1)], _NOTHING if mirrored is _NOTHING else answer
        return reads, mirrored


def _pairs(result: Any, mirrored: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors among a call's results with those among the host's; none if the two differ in number."""
    ours, theirs = leaves_of(result), leaves_of(mirrored)
    both = zip(ours, theirs, strict=True) if len(ours) == len(theirs) else ()
    return [(a, b) for a, b in both if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]


def _like(name: str, value: torch.Tensor, mirrored: Any) -> Any:
    """Return the result of a call that hands `value` to the host, in the type of its earlier result."""
    if isinstance(mirrored, torch.Tensor):
        return value.to(mirrored.dtype).reshape(mirrored.shape)
    return value.tolist() if name == "tolist" else type(mirrored)(value.item())


def _reads_floats(call: FollowedCall) -> bool:
    """Return whether a call hands floats to the host unchanged: they are logged, or compared where it is not seen."""
    return call.name in max_shapes.COPIES | {"__float__", "__complex__"} and not call.deciding


def _is_usual(optimizer: Any) -> bool:
    """Return whether an optimizer is a usual one with lists of tensors, and all its numbers are the host's."""
    if type(optimizer) not in _OPTIMIZERS or default_device.CURRENT_DEVICE is not None:
        return False
    options = [value for group in optimizer.param_groups for name, value in group.items() if name != "params"]
    special = [
        group.get("capturable") or group.get("fused") or group.get("foreach") is False for group in optimizer.param_groups
    ]
    with DisableTorchFunction():
        steps = [state.get("step") for state in optimizer.state.values()]  # on the card after some checkpoints
        return not any(special) and not any(isinstance(one, torch.Tensor) and one.is_cuda for one in (*options, *steps))


@contextmanager
def patched(values: Values, others: AbsentRanks | None = None) -> Iterator[None]:
    """Hide code compiled inside from `values`, and let collectives return the data of equal ranks, or of `others`."""
    replaced = [
        ReplacedAttribute(torch, "compile", values.unseen_by),
        ReplacedAttribute(torch.UntypedStorage, "copy_", lambda original: _writing(original, values)),
        ReplacedAttribute(torch.optim.Optimizer, "zero_grad", values.apart),
        ReplacedAttribute(torch.optim.Optimizer, "profile_hook_step", lambda hook: lambda step: hook(values.apart(step))),
    ]
    replaced += [ReplacedAttribute(*place, lambda original: _laid(original, values)) for place in places("tensor_of_storage")]
    replaced += [
        ReplacedAttribute(*place, lambda original: _followed_again(original, values)) for place in places("checkpointed")
    ]

    def hide_compiled_ahead() -> None:  # what `aot_compile` returns, or a cache of such code, is called by itself
        replaced.extend(ReplacedAttribute(*place, values._unseen) for place in places("run_compiled_ahead"))

    try:
        with collectives.followed(values, others), when_imported(COMPILED_AHEAD, hide_compiled_ahead):
            yield
    finally:
        for place in replaced:
            place.remove()


def _writing(original: Callable[..., Any], values: Values) -> Callable[..., Any]:
    """Return a storage copy that records its result: it involves no tensor, so no mode sees it."""

    def copy(storage: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(storage, source, *args, **kwargs)
        if isinstance(source, torch.UntypedStorage):
            values.written(storage, source)
        return result

    return copy


def _laid(original: Callable[..., Any], values: Values) -> Callable[..., Any]:
    """Return a function that makes a tensor from a loaded storage, and records that tensor."""

    def rebuild(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        values.laid(tensor)
        return tensor

    return rebuild


def _followed_again(original: Callable[..., Any], values: Values) -> Callable[..., Any]:
    return lambda forward, *args, **kwargs: original(values.again(forward), *args, **kwargs)
