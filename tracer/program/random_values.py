"""Values for a job which really computes: weights that are small, inputs as a data loader might give them.

The tracers which compute nothing need none. Where kernels run (a GPU, the CPU tracer), hollow weights would be whatever lies
in memory, and a branch, a sort or a gradient scaler might meet a NaN.
"""

from __future__ import annotations

import torch

from vramcast.jobs.job import TensorSpec
from vramcast.tracer.program import meta_model


def fill_weights(model: torch.nn.Module) -> None:
    """Give the tensors which `HollowInit` left untouched values, in place: small and of both signs. Allocates nothing."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.nbytes >= meta_model.BIG_BYTES and tensor.is_floating_point():
                tensor.uniform_(-0.02, 0.02)  # arbitrary: near the usual initial values


def write_input(tensor: torch.Tensor, spec: TensorSpec) -> None:
    """Fill a batch's tensor as `spec` states; else integers below its limit (without one 0), floats between 0 and 1."""
    if spec.fill is not None:
        tensor.fill_(spec.fill)
    elif tensor.is_floating_point():
        tensor.uniform_()
    elif tensor.is_complex():
        tensor.fill_(0.5)
    elif spec.high is not None:
        tensor.random_(max(spec.high, 1))
    else:
        tensor.zero_()
