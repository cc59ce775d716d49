"""DNNMem's method: lifetimes of a static graph's tensors, a caching allocator, and a constant for the framework.

Source: Gao et al., Estimating GPU Memory Consumption of Deep Learning Models, ESEC/FSE 2020, section 4 (no public code; xMem's
repository has a port). Weights, weight gradients, and the optimizer's state stay; the tensors of the forward pass live until
the backward pass has used them; rounding and segments follow the framework's allocator; context and library workspaces are
constants.

Deviations: the graph is the list of operators of the forward pass (`look.py`) instead of a framework's graph file; its backward
pass is the mirror, in which every operator reads its inputs, output, and weights, whether or not its derivative needs them,
and makes a gradient of the size of each input; the allocator is vramcast's simulator of PyTorch's; it has cuBLAS's workspace
but not cuDNN's; the context is the median of the missing memory on the training runs (DNNMem measured its own), and only for
the process peak. Unlike xMem's port, it keeps optimizer state, and drops no ReLU by its name.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.peers.baselines.baseline import Sample, Target
from benchmarks.peers.baselines.network import Network
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Action, Trace

CUBLAS_BYTES: Final = 8_519_680  # spec: PyTorch's default workspace before Hopper, CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8


class DnnMem:
    """The method as a baseline.

    Args:
        target: Peak with or without the context.
    """

    name = "DNNMem"

    def __init__(self, *, target: Target) -> None:
        self.target: Target = target
        self.context_bytes = 0

    def fit(self, train: Sequence[Sample]) -> None:
        """Learn the context: the median of measured - simulated, if processes are estimated."""
        if self.target == "reserved":
            return
        missing = [
            size - segments
            for sample in train
            if (size := sample.measured("process")) is not None and (segments := self._segments(sample)) is not None
        ]
        self.context_bytes = max(round(statistics.median(missing)), 0) if missing else 0

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return segments + context; None if the graph is unknown."""
        return [
            None if (segments := self._segments(sample)) is None else segments + self.context_bytes for sample in test
        ]  # fmt: skip

    @staticmethod
    def _segments(sample: Sample) -> int | None:
        if sample.network is None or not sample.network.tensors:
            return None
        return segments_bytes(sample.network, sample.optimizer_states)


def segments_bytes(network: Network, optimizer_states: int) -> int:
    """Return the peak of the allocator's segments over one step of a job whose optimizer already has its state."""
    return simulate(step_trace(network, optimizer_states), columns=False).reserved


def step_trace(network: Network, optimizer_states: int) -> Trace:
    """Return the requests of one step as the module's docstring describes them."""
    graph = _Requests()
    for size_bytes in (*network.weight_bytes, network.buffer_bytes):
        graph.allocate(size_bytes)
    for size_bytes in network.weight_bytes:
        for _ in range(optimizer_states):
            graph.allocate(size_bytes)
    graph.allocate(network.input_bytes)
    graph.allocate(CUBLAS_BYTES)
    forward = [graph.allocate(tensor.size_bytes) for tensor in network.tensors]
    gradients: dict[int, int] = {}
    has_gradient: set[int] = set()
    for number in reversed(range(len(network.tensors))):
        tensor = network.tensors[number]
        if number not in gradients:  # an end of the graph: the loss, or a tensor that no later operator reads
            gradients[number] = graph.allocate(tensor.size_bytes)
        for earlier in tensor.inputs:
            if earlier not in gradients:
                gradients[earlier] = graph.allocate(network.tensors[earlier].size_bytes)
        for weight in tensor.weights:
            if weight not in has_gradient:
                has_gradient.add(weight)
                graph.allocate(network.weight_bytes[weight])
        graph.free(forward[number])
        graph.free(gradients.pop(number))
    return graph.trace()


class _Requests:
    """Rows of a trace; the name of a block is the row that begins it."""

    def __init__(self) -> None:
        self.rows: list[tuple[Action, int, int]] = []

    def allocate(self, size_bytes: int) -> int:
        """Begin a block and return its name; an empty block has none."""
        if size_bytes <= 0:
            return -1
        self.rows.append((Action.ALLOC, size_bytes, len(self.rows)))
        return len(self.rows) - 1

    def free(self, block: int) -> None:
        """End a block."""
        if block >= 0:
            size_bytes = self.rows[block][1]
            self.rows += [(Action.FREE_REQUESTED, size_bytes, block), (Action.FREE_COMPLETED, size_bytes, block)]

    def trace(self) -> Trace:
        """Return the rows as a trace."""
        action, size_bytes, block = zip(*self.rows, strict=True)
        return Trace.build({"action": action, "size_bytes": size_bytes, "block": block})
