"""Requests of CUDA's operators in addition to their results, in order: one small function per operator.

Each gets the `OperatorCall` and replays it: `call.begin(i)` requests result i, `call.ask(n)` requests n bytes that
`call.free(...)` returns. Results that are not begun lie on the host in reality, or use another's memory.

measured: request by request on the null GPU, torch 2.11.0+cu130, a100-40gb, unless a line says otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from vramcast.core.releases import FREES_WORKSPACES
from vramcast.hardware.device import WARP_SIZE, Device
from vramcast.tracer.hooks.installed_torch import is_before
from vramcast.tracer.hooks.torch_api import suggest_memory_format
from vramcast.tracer.rules.convolutions import convolve, differentiate
from vramcast.tracer.rules.operator_call import OperatorCall, Rule

aten = torch.ops.aten

CUB_BYTES = 1279  # measured: temporary storage of a scan over less than about 50,000 elements
_LONG_BYTES = 8


# ------------------------------------------------------------------------------------------------ reductions
def _accumulator_bytes(dtype: torch.dtype) -> int:
    return max(dtype.itemsize, 4) if dtype.is_floating_point else dtype.itemsize


def _dimensions(call: OperatorCall) -> list[int]:
    tensor, given = call.args[0], call.argument("dim")
    given = [given] if isinstance(given, int) else list(given or range(tensor.dim()))
    return [d % max(tensor.dim(), 1) for d in given]


def _reduction(call: OperatorCall) -> None:
    call.begin_all()
    tensor = call.args[0]
    if tensor.dim():
        dtype = next(r.dtype for r in call.results if isinstance(r, torch.Tensor))
        wider = max(_accumulator_bytes(tensor.dtype), _accumulator_bytes(dtype)) if dtype != torch.bool else 1
        widened = dtype == torch.int64 != tensor.dtype  # integers are converted before they are added
        converted = call.ask(8 * tensor.numel() if widened else 0)
        call.free(*call.hold_reduction(tensor, _dimensions(call), wider), converted)


def _arg_reduction(call: OperatorCall) -> None:
    call.begin_all()
    if call.args[0].dim():
        call.free(*call.hold_reduction(call.args[0], _dimensions(call), 16))  # spec: a value and its index


# ------------------------------------------------------------------------------------------------ normalisation
_MANY_ROWS = 65_536  # measured: with more rows, layer_norm's backward pass sums in two rounds
_ROWS_A_BLOCK = 32  # measured
_PARTIAL_LIMIT_BYTES = 4 << 20  # measured: per buffer of partial sums


def _contiguous_first(index: int) -> Rule:
    """Return the rule of a kernel that reads the argument `index` as a contiguous tensor, and copies any other."""

    def rule(call: OperatorCall) -> None:
        copies = call.hold_copies((call.args[index],), torch.contiguous_format)
        call.begin_all()
        call.free(*copies)

    return rule


def _layer_norm_backward(call: OperatorCall) -> None:
    copies = call.hold_copies(call.args[:2], torch.contiguous_format)
    call.begin_all()
    _sum_rows(call)
    call.free(*reversed(copies))


def _sum_rows(call: OperatorCall) -> None:
    gradient, width = call.args[0], math.prod(call.args[2])
    n_rows = gradient.numel() // width if width else 0
    if n_rows <= _MANY_ROWS or width // 32 >= call.device.sm_count // 2:
        return
    itemsize = gradient.dtype.itemsize
    partial = torch.empty(
        min(n_rows // _ROWS_A_BLOCK, _PARTIAL_LIMIT_BYTES // (width * itemsize)), width, dtype=gradient.dtype, device="meta"
    )
    wanted = [flag for flag in call.args[-1][1:] if flag]
    held = [call.ask(partial.nbytes) for _ in wanted]
    for _ in wanted:
        summed = call.ask(width * itemsize)
        call.free(*call.hold_reduction(partial, [0], 4), summed)
    call.free(*reversed(held))


def _group_norm(call: OperatorCall) -> None:
    call.begin_all()
    n, channels = call.args[3], call.args[4]
    held = [call.ask(n * channels * 4) for _ in range(2)]
    call.free(*reversed(held))


def _group_norm_backward(call: OperatorCall) -> None:
    call.begin_all()
    n, channels, groups = call.args[5], call.args[6], call.args[8]
    sums = [call.ask(n * channels * 4) for _ in range(2)]
    scales = [call.ask(n * groups * 4) for _ in range(2)]
    factors = call.ask(n * channels * 4)
    call.free(*reversed(scales), factors, *reversed(sums))


def _batch_norm_backward(call: OperatorCall) -> None:
    """Replay batch norm's backward pass; adjacent channels (N x C, channels_last) take the kernel with separate sums."""
    tensor = call.args[1]
    by_channel = suggest_memory_format(tensor) == torch.channels_last
    if not by_channel and tensor.dim() != 2:
        call.begin_all()
        return
    held = [call.ask(4 * tensor.shape[1]) for _ in range(2)]
    call.begin(1, 2)
    if not by_channel or suggest_memory_format(call.args[0]) == torch.channels_last:
        call.free(*reversed(_hold_channel_sums(call, tensor, 2)))
    call.begin(0)
    call.free(*reversed(held))


def _batch_norm(call: OperatorCall) -> None:
    call.begin_all()
    tensor = call.args[0]
    by_channel = tensor.dim() == 2 or suggest_memory_format(tensor) == torch.channels_last
    if by_channel and call.argument("training"):
        call.free(*reversed(_hold_channel_sums(call, tensor, 4)))


_BATCH_NORM_THREADS, _BATCH_NORM_WIDTH = 512, 32  # spec: per block, and across its width
_BATCH_NORM_ROWS, _BATCH_NORM_BLOCKS = 16, (8, 128)  # spec: rows per thread; blocks stacked over the rows, else there is one


def _hold_channel_sums(call: OperatorCall, tensor: torch.Tensor, sums: int) -> list[int]:
    """Request the partial sums of thread blocks that share a channel, and a counter per block.

    spec: the launch rules of ATen/native/cuda/Normalization.cuh, torch 2.11 (`flexible_launch_configs`).
    """
    channels = tensor.shape[1]
    rows = tensor.numel() // max(channels, 1)
    width = min(1 << max(channels, 1).bit_length() - 1, _BATCH_NORM_WIDTH)
    height = min(1 << max(-(-rows // _BATCH_NORM_ROWS), 1).bit_length() - 1, _BATCH_NORM_THREADS // width)
    width = min(1 << max(channels, 1).bit_length() - 1, _BATCH_NORM_THREADS // height)
    blocks = min(-(-rows // (height * _BATCH_NORM_ROWS)), _BATCH_NORM_BLOCKS[1])
    if blocks < _BATCH_NORM_BLOCKS[0]:
        return []
    return [call.ask(4 * sums * channels * blocks), call.ask(4 * -(-channels // width))]


# ------------------------------------------------------------------------------------------------ attention
_CUDNN_9_24 = (2, 14)  # spec: the first torch in vramcast/hardware/stack.py that was built with it
_NUMBERS_ON_CARD = (2, 14)  # measured: null GPU; 2.14.1 and not 2.11.0


def _cudnn_attention(call: OperatorCall) -> None:
    call.begin(6, 7, 0, 1)
    call.free(call.ask(256 if call.device.compute_capability >= (9, 0) and _takes_workspace(call) else 0))


def _takes_workspace(call: OperatorCall) -> bool:
    """Return whether cuDNN's plan takes a workspace on Hopper. measured: null GPU, h100, torch 2.14.1, two lengths."""
    if is_before(_CUDNN_9_24):
        return True
    mask, keeps = call.args[3:5]
    drops, causal = call.argument("dropout_p", 0.0) > 0, call.argument("is_causal", False)
    if keeps:
        return bool(drops or (mask is None and not causal))
    return not causal and (mask is None or not drops)


def _efficient_attention(call: OperatorCall) -> None:
    """Replay the results; with dropout, the seed and offset of the random numbers lie on the host."""
    on_host = is_before(_NUMBERS_ON_CARD) or call.argument("dropout_p", 0.0) > 0
    call.begin(*(() if on_host else (2, 3)), 0, 1)


def _cudnn_attention_backward(call: OperatorCall) -> None:
    """Replay cuDNN's own plan. measured: one shape per card, and one with fewer heads of keys."""
    call.begin_all()
    gradient, query, key, out = call.args[0], call.args[1], call.args[2], call.args[4]
    copied = call.ask(0 if gradient.stride() == out.stride() else out.nbytes)
    rows = math.prod(query.shape[:3])
    hopper = call.device.compute_capability >= (9, 0)
    accumulators = 4 * rows * query.shape[3] * (1 if hopper else 2)
    spread = 2 * query.nbytes if key.shape[1] < query.shape[1] else 0
    call.free(call.ask(accumulators + spread + 4 * rows + (256 if hopper else 128)), copied)


def _flash_attention(call: OperatorCall) -> None:
    call.begin(0, 1, 6, 7)
    if call.argument("dropout_p", 0.0) > 0:
        call.free(call.ask(16))


def _flash_attention_backward(call: OperatorCall) -> None:
    gradient, query, out = call.args[0], call.args[1], call.args[4]
    copies = [call.ask(t.nbytes) for t in (gradient, out) if not t.transpose(1, 2).is_contiguous()]
    call.begin_all()
    batch, heads, length, width = query.shape
    rows = batch * heads * (-(-length // 128) * 128)
    sums = call.ask(4 * rows)
    accumulator = call.ask(4 * rows * (-(-width // 32) * 32 if width <= 128 else -(-width // 64) * 64))
    call.free(accumulator, sums, *reversed(copies))


def _efficient_attention_backward(call: OperatorCall) -> None:
    gradient, query = call.args[0], call.args[1]
    copied = call.ask(0 if gradient.transpose(1, 2).is_contiguous() else gradient.nbytes)
    call.begin_all()
    batch, heads, length, width = query.shape
    delta_bytes = 4 * batch * heads * length
    if query.dtype == torch.float32:
        product, total = call.ask(query.nbytes), call.ask(delta_bytes)
        delta = call.ask(delta_bytes)
        call.free(total, product)
    else:
        delta = call.ask(delta_bytes)
    tile_rows, tile_columns = _efficient_tile(width, query.dtype == torch.float32, call.device.compute_capability)
    tiles = -(-length // tile_rows) * -(-width // tile_columns)
    workspace = call.ask(batch * heads * tiles * (16 + 4 * tile_rows * tile_columns))
    call.free(delta, workspace, copied)


def _efficient_tile(width: int, fp32: bool, capability: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the tiles in which the gradient of the queries is added up."""
    if width <= 64 or capability not in ((8, 0), (9, 0)):
        return 64, 64
    return (128, 64) if fp32 else (128, 128)


# ------------------------------------------------------------------------------------------------ losses
def _elements(call: OperatorCall) -> torch.Tensor:
    """Return a tensor with the shape and type of the elementwise loss."""
    tensor, target = torch.broadcast_tensors(*call.args[:2])
    return torch.empty(tensor.shape, dtype=torch.promote_types(tensor.dtype, target.dtype), device="meta")


def _reduce_all(call: OperatorCall, elements: torch.Tensor, held: int) -> None:
    """Add up the elementwise loss, then free its block `held`."""
    call.free(*call.hold_reduction(elements, [*range(elements.dim())], 4), held)


def _loss(call: OperatorCall) -> None:
    """Replay a loss that is the mean or sum of an elementwise loss."""
    call.begin_all()
    if call.argument("reduction", 1):
        elements = _elements(call)
        _reduce_all(call, elements, call.ask(elements.nbytes))


def _huber_loss(call: OperatorCall) -> None:
    elements = _elements(call)
    held = call.ask(elements.nbytes if call.argument("reduction", 1) else 0)
    call.begin_all()
    if held >= 0:
        _reduce_all(call, elements, held)


def _binary_cross_entropy(call: OperatorCall) -> None:
    """Replay a loss that stores its mean in a separate tensor before the result."""
    call.begin_all()
    if call.argument("reduction", 1):
        elements = _elements(call)
        _reduce_all(call, elements, call.ask(elements.dtype.itemsize))


def _binary_cross_entropy_with_logits(call: OperatorCall) -> None:
    elements, pos_weight = _elements(call), call.argument("pos_weight")
    kept = call.ask(elements.nbytes if pos_weight is not None else 0)
    logarithm = call.ask(call.args[0].nbytes)
    reduced = bool(call.argument("reduction", 1))
    held = call.ask(elements.nbytes if reduced else 0)
    call.begin_all()
    if reduced:
        _reduce_all(call, elements, held)
    call.free(logarithm, kept)


def _margin_loss(call: OperatorCall) -> None:
    call.begin_all()
    tensor = call.args[0]
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    call.free(call.ask(rows * tensor.dtype.itemsize if call.argument("reduction", 1) else 0))


def _ctc_loss(call: OperatorCall) -> None:
    held = [call.ask(_LONG_BYTES * call.args[0].shape[1]) for _ in range(3)]
    call.begin(1, 0)
    call.free(held[1], held[0], held[2])


def _ctc_loss_backward(call: OperatorCall) -> None:
    held = [call.ask(_LONG_BYTES * call.args[1].shape[1]) for _ in range(3)]
    betas = call.ask(call.args[6].nbytes)
    call.begin_all()
    call.free(betas, held[1], held[0], held[2])


# ------------------------------------------------------------------------------------------------ gradients, movement
def _copied_gradient(call: OperatorCall) -> None:
    """Replay a backward pass that copies a gradient with another layout than the result, for example one spread by a sum."""
    call.begin_all()
    call.free(*call.hold_copies((call.args[0],), suggest_memory_format(call.results[0])))


def _roll(call: OperatorCall) -> None:
    """Replay one dimension after the other."""
    copies = call.hold_copies((call.args[0],), torch.contiguous_format)
    dims = call.argument("dims", ())
    held = []
    for _ in range(len(dims) - 1):
        held.append(call.ask(call.results[0].nbytes))
        call.free(*copies)
        copies = []
    call.begin_all()
    call.free(*copies, *reversed(held))


def _unfold_backward(call: OperatorCall) -> None:
    """Replay a fold by the numbers of the elements that windows cover."""
    call.begin_all()
    gradient, dim, size, step = call.args[0], call.args[2], call.args[3], call.args[4]
    windows = gradient.shape[dim]
    call.free(call.ask(_LONG_BYTES * ((windows - 1) * step + size)))


def _sort(call: OperatorCall) -> None:
    call.begin_all()
    tensor = call.args[0]
    n = tensor.shape[call.argument("dim", -1)] if tensor.dim() else 1
    call.free(call.ask(_LONG_BYTES * n if 1 < n <= _FEW_TO_SORT else 0))


_FEW_TO_SORT = 4096  # spec: up to here rows are sorted in place, with an arange for the indices; longer rows are not modelled


def _im2col(call: OperatorCall) -> None:
    """Replay a result that begins with the input's size, and grows."""
    copies = call.hold_copies((call.args[0],), torch.contiguous_format)
    first = call.ask(call.args[0].nbytes)
    call.begin_all()
    call.free(first, *copies)


def _logsumexp(call: OperatorCall) -> None:
    result = call.results[0]
    largest, absolute = call.ask(result.nbytes), call.ask(result.nbytes)
    call.free(call.ask(result.numel()), absolute)
    shifted = call.ask(call.args[0].nbytes)
    call.begin_all()
    call.free(shifted, largest)


def _safe_softmax(call: OperatorCall) -> None:
    call.begin_all()
    result = call.results[0]
    infinite = call.ask(result.numel())
    rows = call.ask(result.numel() // max(result.shape[-1], 1))
    zero = call.ask(result.dtype.itemsize)
    call.free(zero, rows, infinite)


def _softmax_backward(call: OperatorCall) -> None:
    call.begin_all()
    call.free(call.ask(call.args[0].nbytes))


# ------------------------------------------------------------------------------------------------ indices
def _index(call: OperatorCall) -> None:
    """Replay indexing, which first moves indices from the host."""
    moved = [call.ask(i.nbytes) for i in call.args[1] if i is not None and not call.on_card(i)]
    call.begin_all()
    call.free(*moved)


def _cumulative(call: OperatorCall) -> None:
    call.begin_all()
    result, dim = call.results[0], call.args[1]
    converted = call.ask(result.nbytes if result.dtype != call.args[0].dtype else 0)
    alone = result.dim() > 0 and result.numel() == result.shape[dim] > 0 and result.dtype.itemsize in _SCANS
    call.free(call.ask(_scan_bytes(result.numel(), result.dtype.itemsize) if alone else 0), converted)


_SCANS = {8: (896, 16), 4: (1920, 8), 2: (7680, 16)}  # measured: elements a tile and bytes of its state, by bytes an element


def _scan_bytes(n: int, itemsize: int) -> int:
    """Return the bytes of CUB's scan over n elements: the state of each tile, and of a warp of tiles before (measured)."""
    tile, state_bytes = _SCANS[itemsize]
    return 511 + 256 * -(-(-(-n // tile) + WARP_SIZE) * state_bytes // 256)


_FEW_INDICES = 3072  # measured: up to this many, embedding's backward pass needs no sorting
_ROWS_A_SEGMENT = 10  # measured
_SORTS_ALL_BITS_BEFORE = (2, 14)  # measured: null GPU; 2.14.1 and 2.15.0 sort as many bits as the number of weights has


def _sort_bytes(n: int, n_weights: int) -> int:
    """Return the bytes of CUB's radix sort of n pairs of int64 (measured).

    These are bins for each pass over 8 bits, counters for each 3840 pairs, and second buffers from two passes.
    """
    passes = 8 if is_before(_SORTS_ALL_BITS_BEFORE) else -(-n_weights.bit_length() // 8)
    buffers = 2 * (-(-n * _LONG_BYTES // 256) * 256) if passes > 1 else 0
    return buffers + 511 + 2048 * passes + 1024 * -(-n // 3840)


def _embedding_backward(call: OperatorCall) -> None:
    gradient, indices, n_weights = call.args[0], call.args[1], call.args[2]
    n, width = indices.numel(), gradient.shape[-1]
    copied = call.ask(0 if indices.is_contiguous() else indices.nbytes)
    if n <= _FEW_INDICES:
        call.begin_all()
        call.free(copied)
        return
    index_bytes = n * _LONG_BYTES
    ordered, original, counted = (call.ask(index_bytes) for _ in range(3))
    call.free(call.ask(_sort_bytes(n, n_weights)), counted)
    call.begin_all()
    starts, count, unique = call.ask(index_bytes), call.ask(_LONG_BYTES), call.ask(index_bytes)
    call.free(call.ask(CUB_BYTES), unique)
    n_segments = min(n, n_weights)
    segments = [call.ask(n_segments * _LONG_BYTES) for _ in range(2)]
    call.free(call.ask(CUB_BYTES))
    last = call.ask(_LONG_BYTES)
    n_partial = n // _ROWS_A_SEGMENT + n_segments
    partial = call.ask(n_partial * _LONG_BYTES)
    sums = call.ask(n_partial * (-(-width // 32) * 32) * 4)
    call.free(sums, partial, last, *reversed(segments), count, starts, original, ordered, copied)


def _index_put(call: OperatorCall) -> None:
    """Replay a sum in the order of sorted indices."""
    call.begin_all()
    indices = [i for i in call.args[1] if i is not None]
    if not call.argument("accumulate", False) or not indices:
        return
    values = call.args[2]
    n_bytes = _LONG_BYTES * math.prod(torch.broadcast_shapes(*(i.shape for i in indices)))
    remainder, flat = call.ask(n_bytes), call.ask(n_bytes)
    call.free(remainder)
    for _ in indices[1:]:
        call.free(*[call.ask(n_bytes) for _ in range(2)])
    copied = call.ask(0 if values.is_contiguous() else values.nbytes)
    held = [call.ask(n_bytes) for _ in range(3)]
    call.free(call.ask(1), *reversed(held), copied, flat)


# ------------------------------------------------------------------------------------------------ the rest
def _begins(*indexes: int) -> Rule:
    """Return the rule of an operator that requests these results, and nothing else."""
    return lambda call: call.begin(*indexes)


def _foreach_norm(call: OperatorCall) -> None:
    chunks = sum(-(-t.numel() // 65_536) for t in call.args[0])
    most = max((-(-t.numel() // 65_536) for t in call.args[0]), default=0)
    partial = call.ask(4 * len(call.args[0]) * most if chunks else 0)
    call.begin_all()
    call.free(partial)


_REDUCTIONS = (aten.sum, aten.mean, aten.amax, aten.amin, aten.prod, aten.linalg_vector_norm, aten.all, aten.any)
_COPY_GRADIENTS = (
    aten.max_pool2d_with_indices_backward, aten.max_pool3d_with_indices_backward, aten.avg_pool2d_backward,
    aten.avg_pool3d_backward, aten._adaptive_avg_pool2d_backward, aten._adaptive_avg_pool3d_backward,
    aten.adaptive_max_pool2d_backward, aten.adaptive_max_pool3d_backward, aten.fractional_max_pool2d_backward,
    aten.upsample_nearest2d_backward, aten.upsample_bilinear2d_backward, aten.upsample_bicubic2d_backward,
    aten.upsample_trilinear3d_backward, aten.reflection_pad1d_backward, aten.reflection_pad2d_backward,
    aten.nll_loss_backward, aten._upsample_bilinear2d_aa_backward, aten._upsample_bicubic2d_aa_backward,
)  # fmt: skip
RULES: dict[Any, Rule] = {
    aten.convolution: convolve,
    aten.convolution_backward: differentiate,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys((aten.argmax, aten.argmin), _arg_reduction),
    **dict.fromkeys((aten.native_layer_norm, aten.col2im), _contiguous_first(0)),
    aten.native_layer_norm_backward: _layer_norm_backward,
    aten.native_group_norm: _group_norm,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.native_batch_norm: _batch_norm,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten._scaled_dot_product_cudnn_attention: _cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward: _cudnn_attention_backward,
    aten._scaled_dot_product_flash_attention: _flash_attention,
    aten._scaled_dot_product_flash_attention_backward: _flash_attention_backward,
    aten._scaled_dot_product_efficient_attention: _efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_attention_backward,
    aten._safe_softmax: _safe_softmax,
    aten.logsumexp: _logsumexp,
    aten.embedding_dense_backward: _embedding_backward,
    **dict.fromkeys((aten._index_put_impl_, aten.index_put_, aten.index_put), _index_put),
    aten.index: _index,
    aten.embedding: _contiguous_first(1),
    **dict.fromkeys((aten.cumsum, aten.cumprod), _cumulative),
    aten._softmax_backward_data: _softmax_backward,
    aten.native_dropout: _begins(1, 0),  # the mask comes first
    aten._foreach_norm: _foreach_norm,
    **dict.fromkeys(_COPY_GRADIENTS, _copied_gradient),
    aten.im2col: _im2col,
    **dict.fromkeys((aten.mse_loss, aten.smooth_l1_loss), _loss),
    aten.huber_loss: _huber_loss,
    aten.binary_cross_entropy: _binary_cross_entropy,
    aten.binary_cross_entropy_with_logits: _binary_cross_entropy_with_logits,
    **dict.fromkeys((aten.multi_margin_loss, aten.multilabel_margin_loss_forward), _margin_loss),
    aten.log_sigmoid_forward: _begins(0),  # only the CPU uses the buffer
    aten._ctc_loss: _ctc_loss,
    aten._ctc_loss_backward: _ctc_loss_backward,
    aten.roll: _roll,
    aten.unfold_backward: _unfold_backward,
    aten.sort: _sort,
}  # fmt: skip

# Names in the ledger for memory that is not modelled, by operator.
_WORKSPACES = dict.fromkeys(
    (aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_cudnn_attention_backward), "cuDNN attention workspaces"
)
_TEMPORARIES = (
    aten.sort, aten.topk, aten.nonzero, aten._unique2, aten.unique_dim, aten.bincount, aten.multinomial, aten.randperm,
    aten.std, aten.var, aten.var_mean, aten.std_mean, aten.histc, aten.max, aten.min, aten.median, aten.kthvalue, aten.roll,
    aten.grid_sampler_2d_backward, aten._ctc_loss, aten._cudnn_rnn, aten._thnn_fused_lstm_cell, aten._fft_r2c, aten._fft_c2r,
    aten._fft_c2c, aten.linalg_svd, aten.linalg_cholesky_ex, aten._linalg_eigh, aten.searchsorted, aten.index_add,
)  # fmt: skip
UNMODELLED: dict[Any, str] = _WORKSPACES | {packet: f"temporaries of {packet}" for packet in _TEMPORARIES}
_GEMMS = frozenset(
    {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.addmv, aten.dot, aten.vdot, aten._int_mm, aten._scaled_mm}
)

_TIMES_VECTOR = frozenset({aten.mv, aten.addmv})


def _readable(matrix: torch.Tensor) -> bool:
    """Return whether cuBLAS reads the matrix (or stack of matrices) in place: by rows or by columns that do not overlap."""
    (n_rows, n_columns), (row, column) = matrix.shape[-2:], matrix.stride()[-2:]
    return (column == 1 and row >= max(1, n_columns)) or (row == 1 and column >= max(1, n_rows))


_HOPPER = (9, 0)  # spec: compute capability
# spec: torch's getCurrentCUDABlasHandle, 32 MiB on Hopper and later, 2 x 4 MiB + 8 x 16 KiB before
_CUBLAS_BYTES = {True: 33_554_432, False: 8_519_680}
_CUBLAS_LT_BYTES = 1 << 20  # measured: a100-40gb, h100, t4
# measured: null GPU. cuBLASLt has its own workspace in 2.9 and 2.11, and shares cuBLAS's in 2.13 and 2.14. In 2.15 each product
# requests one workspace after its result, and frees it.
_OWN_LT_BEFORE = (2, 13)


class Workspaces:
    """Workspaces of matrix products, requested after the result and copies of operands.

    cuBLAS takes them at a thread's first product and keeps them, or, since torch 2.15, for each product.
    """

    def __init__(self, device: Device) -> None:
        self._cublas_bytes = _CUBLAS_BYTES[device.compute_capability >= _HOPPER]
        self._keeps = is_before(FREES_WORKSPACES)
        self._lt_bytes = _CUBLAS_LT_BYTES if is_before(_OWN_LT_BEFORE) or not self._keeps else 0
        self.sizes = {self._cublas_bytes, self._lt_bytes} - {0}
        self._taken: set[tuple[str, bool]] = set()

    def take(self, call: OperatorCall, backward: bool) -> None:
        """Request what `call` needs first; `backward`: it runs on autograd's thread, with its own handles."""
        packet = call.func._overloadpacket
        if packet not in _GEMMS:
            return
        matrices = [t for t in call.args if call.on_card(t) and t.dim() > 1][-2:]
        repeated = [t for t in call.args if call.on_card(t) and t.dim() == 1 < t.numel() and t.stride(0) == 0]
        unreadable = [t for t in matrices if not _readable(t)] + (repeated if packet in _TIMES_VECTOR else [])
        copies = [call.ask(t.numel() * t.dtype.itemsize) for t in unreadable]
        of_lt = packet is aten._scaled_mm or (packet is aten.addmm and call.args[0].dim() == 1)  # cuBLASLt adds the bias
        # measured: where cuBLASLt shares cuBLAS's workspace, fp8 products take it, and products of integers none
        if not (of_lt and not self._keeps) and packet is not (aten._scaled_mm if self._lt_bytes else aten._int_mm):
            self._take(call, "cublas", backward, self._cublas_bytes)
        if of_lt:
            self._take(call, "cublasLt", backward, self._lt_bytes)
        call.free(*reversed(copies))

    def _take(self, call: OperatorCall, library: str, backward: bool, size_bytes: int) -> None:
        if not self._keeps:
            call.free(call.ask(size_bytes))
        elif (library, backward) not in self._taken:
            self._taken.add((library, backward))
            call.ask(size_bytes)
