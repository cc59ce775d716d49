"""The structure of a model without its values: the data for the baselines. `look.py` makes it; this module has no torch."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.authors.architectures import Layer


@dataclass(frozen=True, slots=True)
class Tensor:
    """The result of one operator of the forward pass, in the order of execution.

    Attributes:
        size_bytes: Size of the storage.
        inputs: Numbers of the earlier tensors that the operator reads.
        weights: Numbers, in `Network.weight_bytes`, of the parameters that it reads.
    """

    size_bytes: int
    inputs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """A model with its batch.

    Attributes:
        batch_size: First dimension of the input.
        layers: Layers in the order of execution; `activations` are elements of the output for one sample.
        parameters: Number of elements, each shared weight once.
        input_bytes: Size of the whole batch.
        weight_bytes: Size of each parameter; empty if only their sum is known.
        buffer_bytes: Size of all buffers.
        tensors: The forward pass, for the whole batch; empty if only the layers are known.
        fake_peak_bytes: Peak of live bytes in one forward and backward pass, without an optimizer.
        blocks_bytes: Size of the input of each block of a decoder, for the whole batch; empty for other models.
        logits_bytes: Size of the output.
    """

    batch_size: int
    layers: tuple[Layer, ...]
    parameters: int
    input_bytes: int = 0
    weight_bytes: tuple[int, ...] = ()
    buffer_bytes: int = 0
    tensors: tuple[Tensor, ...] = ()
    fake_peak_bytes: int | None = None
    blocks_bytes: tuple[int, ...] = ()
    logits_bytes: int | None = None

    @property
    def activations(self) -> int:
        """Return the number of elements of all layers' outputs for one sample."""
        return sum(layer.activations for layer in self.layers)
