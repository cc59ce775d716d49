"""What a look at a model says without its values: the data which the baselines read. `look.py` makes it, no torch here."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.authors.architectures import Layer


@dataclass(frozen=True, slots=True)
class Tensor:
    """What one operator of the forward pass makes, in the order in which they run.

    Attributes:
        size_bytes: Of the storage.
        inputs: Numbers of the earlier tensors which the operator reads.
        weights: Numbers, in `Network.weight_bytes`, of the parameters which it reads.
    """

    size_bytes: int
    inputs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """A model with its batch.

    Attributes:
        batch_size: First dimension of the input.
        layers: In the order in which they run; `activations` are elements of the output for one sample.
        parameters: Elements, each shared weight once.
        input_bytes: Of the whole batch.
        weight_bytes: Each parameter's size. Empty: only their sum is known.
        buffer_bytes: Of all buffers.
        tensors: The forward pass, for the whole batch. Empty: only the layers are known.
        fake_peak_bytes: Most bytes alive in one forward and backward pass, no optimizer.
        blocks_bytes: Of the input of each block of a decoder, for the whole batch. Empty: it is none.
        logits_bytes: Of the output.
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
        """Elements of all layers' outputs for one sample."""
        return sum(layer.activations for layer in self.layers)
