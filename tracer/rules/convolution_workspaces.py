"""cuDNN's workspace of a convolution, for tracers that run no CUDA code of PyTorch's: the same decision in plain Python.

    with ConvolutionWorkspaces(device, total_bytes) as workspaces:
        workspaces.ask(Convolution(...), "forward", settings, thread=0)

cuDNN itself gives the size of a plan (the null GPU's oracle, with the same cache). This module decides, without torch, which
operation PyTorch requests, which of cuDNN's suggestions it skips and which plan it takes. If no cuDNN can answer (none is
installed, no C compiler, a system other than Linux) the answer is None, and `ledger` gives the reason.

spec: torch 2.11, ATen/native/Convolution.cpp (`use_cudnn`, `use_cudnn_depthwise`) and ATen/native/cudnn/Conv_v8.cpp; for
`is_avoided` torch 2.9.1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal, Self

from vramcast.core.errors import CompilerError, NullGpuError, WorkerError
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.nullgpu.cudnn.answer_cache import answers_file
from vramcast.tracer.nullgpu.cudnn.backend import EngineConfig, PlanSize
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle, OracleError, PlanDoesNotBuild
from vramcast.tracer.nullgpu.cudnn.graph import convolution_graph
from vramcast.tracer.nullgpu.cudnn.libraries import choose, completed, is_avoided
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries

Operation = Literal["forward", "backward_data", "backward_filter"]

_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}  # spec: cudnnDataType_t
_INSTANT, _FALLBACK = 0, 2  # spec: cudnnBackendHeurMode_t
_TENSOR_CORE, _DOWN_CONVERTED, _NONDETERMINISTIC = 0, 1, 4  # spec: cudnnBackendNumericalNote_t
_MAX_ALIGNMENT = 32  # spec: Conv_v8.cpp, getAlignment; measured: its result for a block of the allocator
_HALF_BYTES = 2  # spec: float16, bfloat16
_INT32_LIMIT = 1 << 31  # spec: canUse32BitIndexMath
_DEPTHWISE_CHANNELS = 32  # spec: use_cudnn_depthwise
_DEPTHWISE_WIDTH = 7  # spec: check_cudnn_depthwise_workload_with_filter
# spec: torch 2.14, Conv_v8.cpp, plan_errata_exception; they multiply with cuBLASLt, whose kernels fail there
_SM_120, _AVOIDED_ON_SM_120 = (12, 0), {"forward": 58, "backward_data": 63, "backward_filter": 63}
_NATIVE = "PyTorch's own kernels run instead of cuDNN's"


@dataclass(frozen=True, slots=True)
class CudnnSettings:
    """The job's torch.backends.cudnn; `deterministic` is also set by torch.use_deterministic_algorithms."""

    enabled: bool = True
    benchmark: bool = False
    deterministic: bool = False
    allow_tf32: bool = True


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution, forward and backward; a 1-d one becomes 2-d with a height of 1, as in PyTorch.

    Attributes:
        input: Sizes, (batch, channels, *space); for a transposed convolution, too, the input of its forward pass.
        weight: Sizes in PyTorch's layout: (out, in / groups, *space), transposed (in, out / groups, *space).
        output: Sizes, (batch, channels, *space).
        dtype: torch's name for it, "float32".
        channels_last: Whether cuDNN receives all tensors in that format.
        offsets_bytes: Offsets of input, weight and output (backward: its gradient) in their blocks; a copy has 0.
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    dtype: str = "float32"
    channels_last: bool = False
    offsets_bytes: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to compute."""
        return 0 in (*self.input, *self.weight, *self.output)

    @property
    def is_depthwise(self) -> bool:
        """Return whether PyTorch has its own kernels for it."""
        channels = self.input[1]
        known = len(self.input) in (4, 5) and not self.transposed
        return known and channels == self.groups > 1 and self.weight[0] % channels == 0

    @property
    def takes_columns(self) -> bool:
        """Return whether PyTorch itself would compute it, if it is 3-D, by one call of `slow_conv_dilated3d`."""
        return self.groups == 1 and not self.transposed

    @property
    def columns_bytes(self) -> int:
        """Return the size of the copy of one sample that `slow_conv_dilated3d` multiplies with the weight."""
        return _HALF_BYTES * math.prod((*self.weight[1:], *self.output[2:]))

    @property
    def uses_depthwise_kernel(self) -> bool:
        """Return whether PyTorch's own depthwise kernel, which takes no workspace, runs if cuDNN is enabled."""
        return self.is_depthwise and not self._cudnn_is_better()

    @property
    def uses_cudnn(self) -> bool:
        """Return whether cuDNN runs it, if cuDNN is enabled."""
        if self.is_depthwise:
            return self._cudnn_is_better()
        return not any(extra >= s for extra, s in zip(self.output_padding, self.stride, strict=False))

    def _cudnn_is_better(self) -> bool:
        if self.channels_last or max(math.prod(self.input), math.prod(self.weight)) >= _INT32_LIMIT:
            return True
        square = len(self.input) == 4 and (self.stride[0] == self.stride[1] or self.input[2] == 1)
        plain = self.dtype == "float16" and set(self.dilation) == {1} and self.input[1] >= _DEPTHWISE_CHANNELS
        return square and plain and self._is_worth_cudnn()

    def _is_worth_cudnn(self) -> bool:
        batch, channels, height, width = self.input
        stride, taps = self.stride[1], self.weight[3]
        if height == 1 and stride == 1:
            return True
        if self.weight[2] != taps or taps not in (1, 3, 5) or width < _DEPTHWISE_WIDTH:
            return False
        if stride != 2:
            return stride == 1
        if taps == 1:
            return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
        return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)

    def graph(self, operation: Operation) -> str:
        """Return the request to cuDNN; `operation` is cuDNN's own, not autograd's pass."""
        x, y = (self.output, self.input) if self.transposed else (self.input, self.output)
        of_x, of_w, of_y = self.offsets_bytes[::-1] if self.transposed else self.offsets_bytes
        result = {"forward": 2, "backward_data": 0, "backward_filter": 1}[operation]
        offsets = [0 if i == result else offset for i, offset in enumerate((of_x, of_w, of_y))]
        alignments = (_alignment(offsets[0]), _alignment(offsets[1]), _alignment(offsets[2]))
        return convolution_graph(
            operation, x, self.weight, y, stride=self.stride, padding=self.padding, dilation=self.dilation,
            dtype=_DTYPES[self.dtype], channels_last=self.channels_last, alignments=alignments,
        )  # fmt: skip


def _alignment(offset_bytes: int) -> int:
    """Return the alignment that PyTorch reports for an address: the first power of two that does not divide it, or 32."""
    alignment = 1
    while alignment < _MAX_ALIGNMENT and offset_bytes % alignment == 0:
        alignment *= 2
    return alignment


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace of one convolution, in bytes.

    `search_bytes` is the workspace that cudnn.benchmark takes first, to try all plans. It is freed and the cache emptied before
    the request for the workspace itself. None: there is no search. `cublaslt_limit_bytes` and `withheld` are `PlanSize`'s.
    """

    size_bytes: int
    search_bytes: int | None = None
    cublaslt_limit_bytes: int = 0
    withheld: int = 0


class ConvolutionWorkspaces:
    """A context manager with the answers for one job on one card. The oracle starts at the first convolution.

    Args:
        device: The card.
        total_bytes: Its size in this job.
        stack: The job's stack, which selects the cuDNN; None: that of the installed torch.
    """

    def __init__(self, device: Device, total_bytes: int, stack: Stack | None = None) -> None:
        self._stack = stack
        self._avoids_cudnn_in_3d = completed(stack).avoids_cudnn_in_3d
        is_affected = device.compute_capability == _SM_120 and completed(stack).avoids_engines_on_sm_120
        self._avoided = _AVOIDED_ON_SM_120 if is_affected else {}
        self._record = device.with_memory(total_bytes).cudnn_record()
        self._resources = ExitStack()
        self._oracle: CudnnOracle | None = None
        self._silence = ""  # why no oracle answers
        self._is_another = False
        self._known: dict[tuple[str, CudnnSettings], Workspace | str] = {}
        self._searched: set[tuple[int, str, CudnnSettings]] = set()
        self._unanswered: Counter[str] = Counter()
        self._n_answered = 0
        self._bounded: list[int] = []
        self._n_withheld = 0

    @property
    def sizes(self) -> set[int]:
        """All workspace sizes returned so far."""
        found = [answer for answer in self._known.values() if isinstance(answer, Workspace)]
        return {size for answer in found for size in (answer.size_bytes, answer.search_bytes) if size}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def avoids_cudnn(self, convolution: Convolution) -> bool:
        """Return whether the torch of the job's stack computes it itself, because its cuDNN is wrong in 3-D."""
        kernel = (convolution.weight, convolution.dtype)
        return self._avoids_cudnn_in_3d and is_avoided(*kernel, channels_last=convolution.channels_last)

    def ask(self, convolution: Convolution, operation: Operation, settings: CudnnSettings, *, thread: int) -> Workspace | None:
        """Return the workspace of one cuDNN operation; None if it is unknown, for a reason that `ledger` gives.

        Args:
            convolution: Forward or backward.
            operation: cuDNN's operation: a transposed convolution's forward pass is cuDNN's backward_data.
            settings: The job's current settings.
            thread: The requesting thread of the job: with cudnn.benchmark, each thread searches for itself.
        """
        if convolution.is_empty or convolution.uses_depthwise_kernel:
            return Workspace(0)
        if settings.enabled and convolution.takes_columns and self.avoids_cudnn(convolution):
            return Workspace(convolution.columns_bytes)
        if not settings.enabled or not convolution.uses_cudnn or self.avoids_cudnn(convolution):
            self._unanswered[_NATIVE] += 1
            return None
        graph = convolution.graph(operation)
        key = (graph, settings)
        if key not in self._known:
            self._known[key] = self._choose(graph, convolution.dtype, settings, self._avoided.get(operation))
        found = self._known[key]
        if isinstance(found, str):
            self._unanswered[found] += 1
            return None
        self._n_answered += 1
        self._bounded += [found.cublaslt_limit_bytes] * bool(found.cublaslt_limit_bytes)
        self._n_withheld += found.withheld > 0
        if (thread, *key) in self._searched:
            return replace(found, search_bytes=None)
        self._searched.add((thread, *key))
        return found

    def ledger(self) -> list[Entry]:
        """Return the assumptions: each reason for convolutions without a workspace, and its count."""
        entries = [
            Entry.of(CallHandling.ASSUMED, Code.NO_WORKSPACES, hits, name=reason)
            for reason, hits in sorted(self._unanswered.items())
        ]
        if self._is_another and self._n_answered:
            entries.append(Entry.of(CallHandling.ASSUMED, Code.OTHER_CUDNN, self._n_answered))
        if self._n_withheld:
            entries.append(Entry.of(CallHandling.ASSUMED, Code.WITHHELD_ENGINES, self._n_withheld))
        if self._bounded:
            entries.append(Entry.of(CallHandling.BOUNDED, Code.CUBLASLT_WORKSPACE, len(self._bounded), sum(self._bounded)))
        return entries

    def _choose(self, graph: str, dtype: str, settings: CudnnSettings, avoided: int | None) -> Workspace | str:
        """Return PyTorch's workspace for a graph, or the reason why it is unknown.

        Raises:
            WorkerError: The oracle was killed, and again after a restart.
        """
        for _ in range(2):  # restarts an oracle that was killed
            oracle = self._open()
            if oracle is None:
                return self._silence
            try:
                return _chosen(_rules(oracle, graph, dtype, settings, avoided), settings)
            except OracleError as error:
                said = str(error)
            if oracle.is_alive:
                return said
            self._oracle = None
        if oracle is not None and oracle.was_killed:
            raise WorkerError("The cuDNN oracle was killed twice: is the machine out of memory? Try again.")
        self._silence = said  # cuDNN ended it, and would do so again
        return said

    def _open(self) -> CudnnOracle | None:
        if self._oracle is None and not self._silence:
            try:
                choice = choose(self._stack)
                cudnn, self._is_another = choice.library.folder, choice.is_another
                oracle = CudnnOracle(cudnn, oracle_libraries(cudnn), cache=answers_file(), device=self._record)
                self._oracle = self._resources.enter_context(oracle)
            except (NullGpuError, CompilerError, OSError) as error:
                self._silence = str(error)
        return self._oracle


def _chosen(plans: Iterator[PlanSize], settings: CudnnSettings) -> Workspace | str:
    first = next(plans, None)
    if first is None:
        return "cuDNN has no engine for a convolution"
    tried = (first, *plans) if settings.benchmark else ()  # each further plan costs cuDNN a second or less
    search_bytes = max((plan.workspace_bytes for plan in tried), default=None)
    return Workspace(first.workspace_bytes, search_bytes, first.cublaslt_limit_bytes, first.withheld)


def _rules(
    oracle: CudnnOracle, graph: str, dtype: str, settings: CudnnSettings, avoided: int | None
) -> Iterator[PlanSize]:  # fmt: skip
    """Yield the sizes of the plans that build, in the order in which PyTorch tries them, without those of `avoided`."""
    for mode in (_INSTANT, _FALLBACK):
        for index, config in enumerate(oracle.heuristics(mode, graph)):
            if _is_allowed(config, dtype, settings):
                try:
                    size = oracle.plan(mode, index, graph)
                except PlanDoesNotBuild:
                    continue
                if config.engine != avoided:
                    yield size


def _is_allowed(config: EngineConfig, dtype: str, settings: CudnnSettings) -> bool:
    notes = config.numerical_notes
    in_tf32 = _TENSOR_CORE in notes and dtype == "float32" and not settings.allow_tf32
    by_chance = _NONDETERMINISTIC in notes and settings.deterministic
    return not (in_tf32 or by_chance or _DOWN_CONVERTED in notes)
