"""What CUDA's operators ask for besides their results, and in which order: one small function an operator.

Each gets the `Call` and says what happens: `call.begin(i)` asks for result i, `call.ask(n)` for n bytes which
`call.free(...)` gives back. Results which were not begun lie on the host in truth, or are made of another's memory.

measured: request by request on the null GPU, torch 2.11.0+cu130, a100-40gb, unless a line says otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from vramcast.devices import Device
from vramcast.tracer.fake.call import Call, Plan
from vramcast.tracer.fake.convolutions import PLANS as CONVOLUTIONS
from vramcast.tracer.fake.tensor import CudaTensor
from vramcast.tracer.temporaries import UNKNOWN_TEMPORARIES

aten = torch.ops.aten

CUBLAS_BYTES = {True: 33_554_432, False: 8_519_680}  # measured: from Hopper on, before it
CUBLASLT_BYTES = 1_048_576  # measured: a100-40gb, h100, t4
CUB_BYTES = 1279  # measured: temporary storage of a scan over less than about 50,000 elements
_LONG_BYTES = 8


# ------------------------------------------------------------------------------------------------ reductions
def _accumulator_bytes(dtype: torch.dtype) -> int:
    return max(dtype.itemsize, 4) if dtype.is_floating_point else dtype.itemsize


def _dimensions(call: Call) -> list[int]:
    tensor, given = call.args[0], call.argument("dim")
    given = [given] if isinstance(given, int) else list(given or range(tensor.dim()))
    return [d % max(tensor.dim(), 1) for d in given]


def _reduction(call: Call) -> None:
    call.begin_all()
    tensor = call.args[0]
    if tensor.dim():
        dtype = next(r.dtype for r in call.results if isinstance(r, torch.Tensor))
        wider = max(_accumulator_bytes(tensor.dtype), _accumulator_bytes(dtype)) if dtype != torch.bool else 1
        widened = dtype == torch.int64 != tensor.dtype  # integers are converted before they are added
        converted = call.ask(8 * tensor.numel() if widened else 0)
        call.free(*call.hold_reduction(tensor, _dimensions(call), wider), converted)


def _arg_reduction(call: Call) -> None:
    call.begin_all()
    if call.args[0].dim():
        call.free(*call.hold_reduction(call.args[0], _dimensions(call), 16))  # spec: a value and its index


# ------------------------------------------------------------------------------------------------ normalisation
_MANY_ROWS = 65_536  # measured: above, layer_norm's backward sums in two rounds
_ROWS_A_BLOCK = 32  # measured
_PARTIAL_LIMIT_BYTES = 4 << 20  # measured: of one buffer of partial sums


def _layer_norm(call: Call) -> None:
    copies = call.hold_copies((call.args[0],), torch.contiguous_format)
    call.begin_all()
    call.free(*copies)


def _layer_norm_backward(call: Call) -> None:
    copies = call.hold_copies(call.args[:2], torch.contiguous_format)
    call.begin_all()
    _sum_rows(call)
    call.free(*reversed(copies))


def _sum_rows(call: Call) -> None:
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


def _group_norm(call: Call) -> None:
    call.begin_all()
    n, channels = call.args[3], call.args[4]
    held = [call.ask(n * channels * 4) for _ in range(2)]
    call.free(*reversed(held))


def _group_norm_backward(call: Call) -> None:
    call.begin_all()
    n, channels, groups = call.args[5], call.args[6], call.args[8]
    sums = [call.ask(n * channels * 4) for _ in range(2)]
    scales = [call.ask(n * groups * 4) for _ in range(2)]
    factors = call.ask(n * channels * 4)
    call.free(*reversed(scales), factors, *reversed(sums))


def _batch_norm_backward(call: Call) -> None:
    """1-d inputs (N x C) take the kernel which keeps its sums apart."""
    tensor = call.args[1]
    if tensor.dim() != 2 or tensor.dtype == torch.bfloat16:
        call.begin_all()
        return
    held = [call.ask(4 * tensor.shape[1]) for _ in range(2)]
    call.begin(1, 2, 0)
    call.free(*reversed(held))


# ------------------------------------------------------------------------------------------------ attention
def _cudnn_attention(call: Call) -> None:
    call.begin(6, 7, 0, 1)
    call.free(call.ask(256))


def _cudnn_attention_backward(call: Call) -> None:
    call.begin_all()
    query = call.args[1]
    rows = math.prod(query.shape[:3])
    call.free(call.ask(4 * rows * query.shape[3] + 4 * rows + 256))  # measured: one shape; the plan is cuDNN's


def _flash_attention(call: Call) -> None:
    call.begin(0, 1, 6, 7)
    if call.argument("dropout_p", 0.0) > 0:
        call.free(call.ask(16))


def _flash_attention_backward(call: Call) -> None:
    gradient, query, out = call.args[0], call.args[1], call.args[4]
    copies = [call.ask(t.nbytes) for t in (gradient, out) if not t.transpose(1, 2).is_contiguous()]
    call.begin_all()
    batch, heads, length, width = query.shape
    rows = batch * heads * (-(-length // 128) * 128)
    sums = call.ask(4 * rows)
    accumulator = call.ask(4 * rows * (-(-width // 32) * 32 if width <= 128 else -(-width // 64) * 64))
    call.free(accumulator, sums, *reversed(copies))


def _efficient_attention(call: Call) -> None:
    call.begin(0, 1)  # the seed and the offset of the random numbers lie on the host


def _efficient_attention_backward(call: Call) -> None:
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


def _safe_softmax(call: Call) -> None:
    call.begin_all()
    result = call.results[0]
    infinite = call.ask(result.numel())
    rows = call.ask(result.numel() // max(result.shape[-1], 1))
    zero = call.ask(result.dtype.itemsize)
    call.free(zero, rows, infinite)


def _softmax_backward(call: Call) -> None:
    call.begin_all()
    call.free(call.ask(call.args[0].nbytes))


# ------------------------------------------------------------------------------------------------ indices
def _embedding(call: Call) -> None:
    indices = call.args[1]
    copied = call.ask(0 if indices.is_contiguous() else indices.nbytes)
    call.begin_all()
    call.free(copied)


def _index(call: Call) -> None:
    """Indices which lie on the host are moved first."""
    moved = [call.ask(i.nbytes) for i in call.args[1] if i is not None and not isinstance(i, CudaTensor)]
    call.begin_all()
    call.free(*moved)


def _cumulative(call: Call) -> None:
    call.begin_all()
    result = call.results[0]
    call.free(call.ask(result.nbytes if result.dtype != call.args[0].dtype else 0))


_FEW_INDICES = 3072  # measured: up to here, embedding's backward needs no sorting
_ROWS_A_SEGMENT = 10  # measured


def _sort_bytes(n: int) -> int:
    """CUB's radix sort of n pairs of int64: second buffers, and counters for every 3840 of them (measured)."""
    return 2 * (-(-n * _LONG_BYTES // 256) * 256) + 16_895 + 1024 * -(-n // 3840)


def _embedding_backward(call: Call) -> None:
    gradient, indices, n_weights = call.args[0], call.args[1], call.args[2]
    n, width = indices.numel(), gradient.shape[-1]
    copied = call.ask(0 if indices.is_contiguous() else indices.nbytes)
    if n <= _FEW_INDICES:
        call.begin_all()
        call.free(copied)
        return
    index_bytes = n * _LONG_BYTES
    ordered, original, counted = (call.ask(index_bytes) for _ in range(3))
    call.free(call.ask(_sort_bytes(n)), counted)
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


def _index_put(call: Call) -> None:
    """Adds up in the order of sorted indices."""
    call.begin_all()
    indices = [i for i in call.args[1] if i is not None]
    if not call.argument("accumulate", False) or not indices:
        return
    n_bytes = _LONG_BYTES * math.prod(torch.broadcast_shapes(*(i.shape for i in indices)))
    flat = call.ask(n_bytes)
    call.free(call.ask(n_bytes))
    held = [call.ask(n_bytes) for _ in range(3)]
    call.free(call.ask(1), *reversed(held), flat)


# ------------------------------------------------------------------------------------------------ the rest
def _dropout(call: Call) -> None:
    call.begin(1, 0)  # the mask comes first


def _foreach_norm(call: Call) -> None:
    chunks = sum(-(-t.numel() // 65_536) for t in call.args[0])
    most = max((-(-t.numel() // 65_536) for t in call.args[0]), default=0)
    partial = call.ask(4 * len(call.args[0]) * most if chunks else 0)
    call.begin_all()
    call.free(partial)


_REDUCTIONS = (aten.sum, aten.mean, aten.amax, aten.amin, aten.prod, aten.linalg_vector_norm, aten.all, aten.any)
PLANS: dict[Any, Plan] = {
    **CONVOLUTIONS,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys((aten.argmax, aten.argmin), _arg_reduction),
    aten.native_layer_norm: _layer_norm,
    aten.native_layer_norm_backward: _layer_norm_backward,
    aten.native_group_norm: _group_norm,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten._scaled_dot_product_cudnn_attention: _cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward: _cudnn_attention_backward,
    aten._scaled_dot_product_flash_attention: _flash_attention,
    aten._scaled_dot_product_flash_attention_backward: _flash_attention_backward,
    aten._scaled_dot_product_efficient_attention: _efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_attention_backward,
    aten._safe_softmax: _safe_softmax,
    aten.embedding_dense_backward: _embedding_backward,
    aten._index_put_impl_: _index_put,
    aten.index_put_: _index_put,
    aten.index_put: _index_put,
    aten.index: _index,
    aten.embedding: _embedding,
    aten.cumsum: _cumulative,
    aten.cumprod: _cumulative,
    aten._softmax_backward_data: _softmax_backward,
    aten.native_dropout: _dropout,
    aten._foreach_norm: _foreach_norm,
}  # fmt: skip

# What the ledger calls a term which is not modelled, by the operators which have it.
_WORKSPACES = dict.fromkeys((aten.convolution, aten.convolution_backward), "convolution workspaces") | dict.fromkeys(
    (aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_cudnn_attention_backward), "cuDNN attention workspaces"
)
UNMODELLED: dict[Any, str] = _WORKSPACES | {packet: f"temporaries of {packet}" for packet in UNKNOWN_TEMPORARIES}
_GEMMS = frozenset({aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.addmv, aten.dot, aten.vdot})


class Workspaces:
    """What cuBLAS takes at the first matrix product of a thread, right after its result, and keeps."""

    def __init__(self, device: Device) -> None:
        self.sizes = {CUBLAS_BYTES[device.compute_capability >= (9, 0)], CUBLASLT_BYTES}
        self._cublas_bytes = CUBLAS_BYTES[device.compute_capability >= (9, 0)]
        self._taken: set[tuple[str, bool]] = set()

    def take(self, call: Call, backward: bool) -> None:
        """Ask for what `call` needs first; `backward`: it runs on autograd's thread, which has handles of its own."""
        packet = call.func._overloadpacket
        if packet not in _GEMMS:
            return
        self._take(call, "cublas", backward, self._cublas_bytes)
        if packet is aten.addmm and call.args[0].dim() == 1:  # cuBLASLt adds the bias
            self._take(call, "cublasLt", backward, CUBLASLT_BYTES)

    def _take(self, call: Call, library: str, backward: bool, size_bytes: int) -> None:
        if (library, backward) not in self._taken:
            self._taken.add((library, backward))
            call.ask(size_bytes)
