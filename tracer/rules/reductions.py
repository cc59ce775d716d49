"""Requests of a CUDA reduction that splits one result over several thread blocks: partial results, and a counter each.

spec: the launch rules of ATen/native/cuda/Reduce.cuh, torch 2.11 (`setReduceConfig`).
measured: sums, means, maxima and norms of matrices on the null GPU agree to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vramcast.hardware.device import WARP_SIZE, Device

_MAX_THREADS = 512  # spec: per block, with one value per thread
_VECTOR = 4  # spec: values that one thread loads at once
_MIN_VALUES, _MAX_VALUES = 16, 256  # spec: values that a thread adds up


def split_bytes(
    shape: Sequence[int], strides: Sequence[int], reduced: Sequence[int], element_bytes: int, device: Device
) -> tuple[int, int] | None:
    """Return (bytes of partial results, bytes of counters) of a reduction; None if one block makes each result.

    Args:
        shape: Shape of the input.
        strides: Strides of the input, in elements.
        reduced: Reduced dimensions.
        element_bytes: Size of the accumulator.
        device: The card.
    """
    n_inputs = math.prod(shape[d] for d in reduced)
    n_outputs = math.prod(n for d, n in enumerate(shape) if d not in reduced)
    if n_inputs * n_outputs == 0:
        return None
    inner = merged([(shape[d], strides[d]) for d in reduced])
    outer = merged([(n, strides[d]) for d, n in enumerate(shape) if d not in reduced])
    along_input = not outer or not inner or inner[0][1] < outer[0][1]
    width, height = (n_inputs, n_outputs) if along_input else (n_outputs, n_inputs)
    vector = 1
    fastest = (inner or outer or [(1, 1)])[0][1] if along_input else outer[0][1]
    if fastest == 1 and along_input and width > 128 and not outer and len(inner) == 1:
        width //= _VECTOR
    elif fastest == 1 and not along_input:
        vector = next(v for v in (4, 2, 1) if outer[0][0] % v == 0 and all(s % v == 0 for _, s in (*inner, *outer[1:])))
        width //= vector
    most = _MAX_THREADS // vector
    width_power, height_power = (_power_of_two(n) if n < most else most for n in (width, height))
    block_x = min(width_power, WARP_SIZE)
    block_y = min(height_power, most // block_x)
    block_x = min(width_power, most // block_y)
    step, n_blocks = (block_x, n_outputs) if along_input else (1, -(-n_outputs // (block_x * vector)))
    if -(-n_inputs // step) < min(block_y * 16, _MAX_VALUES):
        return None
    step *= block_y
    values = -(-n_inputs // step)
    target = device.sm_count * (device.threads_per_sm // (block_x * block_y))
    if values < _MAX_VALUES or n_blocks > target:
        return None
    splits = max(min(-(-target // n_blocks), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if splits <= 1:
        return None
    partial = element_bytes * n_outputs * splits * (1 if along_input else block_x * vector)
    return partial, 4 * n_blocks


def merged(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (size, stride) from the fastest dimension on, with contiguous neighbours joined."""
    joined: list[tuple[int, int]] = []
    for size, stride in sorted((d for d in dimensions if d[0] != 1), key=lambda d: d[1]):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _power_of_two(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)
