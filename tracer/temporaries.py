"""Operators whose CUDA kernels take memory of their own of a size which no tracer but the null GPU knows.

The portable tracers count each of them, by name: such a call never counts as zero in silence.
"""

from __future__ import annotations

from typing import Any, Final

import torch

aten = torch.ops.aten
UNKNOWN_TEMPORARIES: Final[tuple[Any, ...]] = (
    aten.sort, aten.topk, aten.nonzero, aten._unique2, aten.unique_dim, aten.bincount, aten.multinomial, aten.randperm,
    aten.std, aten.var, aten.var_mean, aten.std_mean, aten.histc, aten.max, aten.min, aten.median, aten.kthvalue, aten.roll,
    aten.grid_sampler_2d_backward, aten._ctc_loss, aten._cudnn_rnn, aten._thnn_fused_lstm_cell, aten._fft_r2c, aten._fft_c2r,
    aten._fft_c2c, aten.linalg_svd, aten.linalg_cholesky_ex, aten._linalg_eigh, aten.searchsorted, aten.index_add,
)  # fmt: skip
