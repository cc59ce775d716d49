"""LLMem's formula for fine-tuning a decoder on one card.

Source: Kim et al., LLMem, IJCAI 2024, section 3; details from the authors' `size_estimator.py` (taehokim20/LLMem). On one card:

    base + 2 states of each parameter + the input + the outputs (two of the embedding, one a block, one of the last norm)
    + three times the logits, each rounded up to 2 MiB

It counts a block's input and nothing inside the block. There, `base` is measured on the GPU after the model is wrapped.
Deviations: base is a parameter and its gradient, each rounded up to 2 MiB (Gemini's chunks hold both in one place); sizes are
those of the job's own precision (there: half, with the optimizer in float32); the optimizer has the job's own states
(there: always Adam's two); all parameters count (there: those of embeddings and linear layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.peers.baselines.baseline import Formula, Sample, Target
from benchmarks.peers.baselines.network import Network
from vramcast.core.units import MIB

ROUND_BYTES: Final = 2 * MIB  # spec: LLMem
LOGITS: Final = 3  # spec: LLMem: one from the head, two in the loss
EMBEDDINGS: Final = 2  # spec: LLMem: tokens and positions


class LlMem(Formula):
    """The formula as a baseline of the reserved peak."""

    name = "LLMem"
    target: Target = "reserved"

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the formula's bytes; None for a model other than a decoder with an embedding."""
        return [llmem_bytes(s.network, s.optimizer_states) if s.network and _is_decoder(s.network) else None for s in test]


def _is_decoder(network: Network) -> bool:
    has_embedding = any("Embedding" in layer.name for layer in network.layers)
    return bool(has_embedding and network.blocks_bytes and network.logits_bytes and network.weight_bytes)


def llmem_bytes(network: Network, optimizer_states: int) -> int:
    """Return the formula's value.

    Args:
        network: Network of a decoder.
        optimizer_states: Number of tensors of a parameter's size in the optimizer's state.
    """
    weights = sum(map(_rounded, network.weight_bytes))
    hidden = network.blocks_bytes[0]
    outputs = EMBEDDINGS * _rounded(hidden) + sum(map(_rounded, network.blocks_bytes[1:])) + _rounded(hidden)
    logits = LOGITS * _rounded(network.logits_bytes or 0)
    return (2 + optimizer_states) * weights + _rounded(network.input_bytes) + outputs + logits


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // ROUND_BYTES) * ROUND_BYTES
