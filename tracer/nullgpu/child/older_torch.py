"""Choices of the torch on the card's machine, where the installed one makes others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from vramcast.hardware.stack import Stack
from vramcast.tracer.nullgpu.child import inference_modes, native_convolutions, unbatched_attention
from vramcast.tracer.nullgpu.cudnn.libraries import installed_stack


@contextmanager
def followed(stack: Stack) -> Iterator[None]:
    """Make the choices of a stack's torch inside."""
    installed = installed_stack()
    libraries = [native_convolutions.register()] if stack.avoids_cudnn_in_3d else []
    if stack.fuses_unbatched_attention is not installed.fuses_unbatched_attention:
        libraries.append(unbatched_attention.register(fused=stack.fuses_unbatched_attention))
    with ExitStack() as around:
        if stack.keeps_casts_in_inference_mode and not installed.keeps_casts_in_inference_mode:
            around.enter_context(inference_modes.as_no_grad())
        if stack.keeps_attention_narrow and not installed.keeps_attention_narrow:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        yield
    libraries.clear()  # their kernels last as long as they do
