"""Operators and library features of the survey: each probe is a small plain PyTorch program.

    python benchmarks/surveys/survey_operators.py NAME      runs one probe on the current CUDA device, which may be a real one

A probe is independent of the null GPU. If it trains, it takes two steps, so that the second has the optimizer's state. `jobs()`
makes the survey's list: the probes with their devices and allocator settings, and, for probes that no GPU (or not the null
GPU) can run, the required part of the error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

Probe = Callable[[], Any]
_PROBES: dict[str, Probe] = {}


@dataclass(frozen=True, slots=True)
class _Setting:
    device: str = "a100-40gb"
    alloc_conf: str = ""
    expected: str = ""


_SETTINGS: dict[str, _Setting] = {}


def probe(name: str, *, device: str = "a100-40gb", alloc_conf: str = "", expected: str = "") -> Callable[[Probe], Probe]:
    """Register a function in the list under `name`.

    Args:
        name: Name of the probe.
        device: Card in the survey.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF in the survey.
        expected: Required part of the error with which it must end; empty if it must run.
    """

    def enter(function: Probe) -> Probe:
        _PROBES[name] = function
        _SETTINGS[name] = _Setting(device, alloc_conf, expected)
        return function

    return enter


def cuda(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a random tensor on the device."""
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def train(
    model: nn.Module,
    make: Callable[[], Any],
    *,
    call: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    autocast: torch.dtype | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
) -> None:
    """Take two steps with `model` on batches of `make()`; the loss is the mean of the (first) output."""
    model = model.cuda()
    updates = optimizer(model.parameters())
    for _ in range(2):
        batch = make()
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            output = call(model, batch) if call is not None else model(batch)
        (output[0] if isinstance(output, tuple) else output).float().mean().backward()
        updates.step()
        updates.zero_grad()


# ------------------------------------------------------------------------------------------------ recurrent layers
def _recurrent(kind: type[nn.RNNBase], **options: Any) -> Probe:
    return lambda: train(kind(24, 32, **options), lambda: cuda(7, 3, 24, grad=False))


def _packed() -> None:
    lengths = torch.tensor([7, 5, 2])
    train(
        nn.LSTM(24, 32, 2, bidirectional=True),
        lambda: nn.utils.rnn.pack_padded_sequence(cuda(7, 3, 24, grad=False), lengths),
        call=lambda model, packed: model(packed)[0].data,
    )


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    for _layers in (1, 2):
        for _both in (False, True):
            _name = f"{_kind.__name__} layers={_layers} bidirectional={_both}"
            probe(_name)(_recurrent(_kind, num_layers=_layers, bidirectional=_both))
probe("LSTM projection")(_recurrent(nn.LSTM, num_layers=2, proj_size=16))
probe("LSTM dropout")(_recurrent(nn.LSTM, num_layers=2, dropout=0.1))
probe("LSTM without bias")(_recurrent(nn.LSTM, bias=False))
probe("LSTM packed sequence")(_packed)
probe("LSTM batch_first")(_recurrent(nn.LSTM, batch_first=True))


@probe("LSTM amp-bf16")
def _lstm_amp() -> None:
    train(nn.LSTM(24, 32, 2), lambda: cuda(7, 3, 24, grad=False), autocast=torch.bfloat16)


@probe("LSTMCell and GRUCell")
def _cells() -> None:
    train(nn.LSTMCell(24, 32), lambda: cuda(3, 24, grad=False))
    train(nn.GRUCell(24, 32), lambda: cuda(3, 24, grad=False))


# ------------------------------------------------------------------------------------------------ convolution, norms
_SHAPES = {1: (2, 8, 20), 2: (2, 8, 20, 20), 3: (2, 8, 10, 10, 10)}
_CONVOLUTIONS: dict[int, tuple[Any, Any]] = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}


def _convolution(dims: int, transposed: bool, **options: Any) -> Probe:
    layer = _CONVOLUTIONS[dims][transposed]
    return lambda: train(layer(8, 16, 3, **options), lambda: cuda(*_SHAPES[dims]))


for _dims in (1, 2, 3):
    for _transposed in (False, True):
        _base = f"conv{'_transpose' if _transposed else ''}{_dims}d"
        probe(_base)(_convolution(_dims, _transposed))
        probe(f"{_base} stride 2 padding 1")(_convolution(_dims, _transposed, stride=2, padding=1))
        probe(f"{_base} groups 4")(_convolution(_dims, _transposed, groups=4))
        probe(f"{_base} depthwise")(_convolution(_dims, _transposed, groups=8))
    probe(f"conv{_dims}d dilation 2")(_convolution(_dims, False, dilation=2))


def _batch_norm(dims: int, dtype: torch.dtype | None, channels_last: bool) -> Probe:
    def run() -> None:
        convolution = _CONVOLUTIONS[dims][0]
        norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
        layout = torch.channels_last_3d if dims == 3 else torch.channels_last
        model = nn.Sequential(convolution(8, 16, 3), norm(16), nn.ReLU())
        model = model.to(memory_format=layout) if channels_last else model
        batch = cuda(*_SHAPES[dims], grad=False)
        train(model, lambda: batch.to(memory_format=layout) if channels_last else batch, autocast=dtype)

    return run


for _dims in (1, 2, 3):
    for _label, _dtype in (("fp32", None), ("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)):
        for _last in (False, True) if _dims > 1 else (False,):
            probe(f"batch norm {_dims}d {_label}{' channels_last' if _last else ''}")(_batch_norm(_dims, _dtype, _last))


@probe("layer, group, instance, rms and sync batch norm")
def _norms() -> None:
    model = nn.Sequential(nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm(20), nn.RMSNorm(20))
    train(model, lambda: cuda(2, 8, 20, 20))


@probe("cudnn.benchmark")
def _benchmark() -> None:
    torch.backends.cudnn.benchmark = True
    train(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 8, 3)), lambda: cuda(2, 8, 20, 20))


@probe("cudnn.deterministic")
def _deterministic() -> None:
    torch.backends.cudnn.deterministic = True
    train(nn.Conv2d(8, 16, 3), lambda: cuda(2, 8, 20, 20))


@probe("cudnn disabled")
def _no_cudnn() -> None:
    torch.backends.cudnn.enabled = False
    train(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)), lambda: cuda(2, 8, 20, 20))
    train(nn.LSTM(24, 32), lambda: cuda(7, 3, 24, grad=False))


@probe("pooling")
def _pooling() -> None:
    for layer in (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(3), nn.LPPool2d(2, 2)):
        layer(cuda(2, 8, 20, 20)).sum().backward()
    nn.MaxPool3d(2)(cuda(2, 8, 10, 10, 10)).sum().backward()
    nn.FractionalMaxPool2d(2, output_size=5)(cuda(2, 8, 20, 20)).sum().backward()


# ------------------------------------------------------------------------------------------------ attention
def _attention(backend: str, dtype: torch.dtype, variant: str) -> Probe:
    def run() -> None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "math": SDPBackend.MATH,
        }[backend]
        query, key, value = (cuda(2, 4, 128, 64, dtype=dtype) for _ in range(3))
        mask = torch.zeros(2, 1, 128, 128, device="cuda", dtype=dtype) if variant == "mask" else None
        with sdpa_kernel(chosen):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=variant == "causal", dropout_p=0.1 if variant == "dropout" else 0.0
            )
            out.sum().backward()

    return run


for _card in ("a100-40gb", "h100"):
    for _backend in ("flash", "efficient", "cudnn", "math"):
        for _label, _half in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for _variant in ("plain", "causal", "mask", "dropout"):
                # PyTorch itself has no kernel for these, on any card.
                _impossible = (_backend in ("flash", "cudnn") and _label == "fp32") or (
                    _backend == "flash" and _variant == "mask"
                )
                _no_kernel = "No available kernel" if _impossible else ""
                _name = f"sdpa {_backend} {_label} {_variant} {_card}"
                probe(_name, device=_card, expected=_no_kernel)(_attention(_backend, _half, _variant))


@probe("sdpa default grouped query", device="h100")
def _grouped_query() -> None:
    query, key, value = (
        cuda(2, 8, 128, 64, dtype=torch.bfloat16),
        *(cuda(2, 2, 128, 64, dtype=torch.bfloat16) for _ in range(2)),
    )
    torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).sum().backward()


@probe("MultiheadAttention and TransformerEncoderLayer")
def _transformer() -> None:
    train(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), lambda: cuda(2, 16, 32))
    train(nn.MultiheadAttention(32, 4), lambda: cuda(16, 2, 32), call=lambda m, x: m(x, x, x)[0])


@probe("flex_attention without compile")
def _flex() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    flex_attention(*(cuda(1, 2, 128, 32) for _ in range(3))).sum().backward()


# ------------------------------------------------------------------------------------------------ training features
def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


@probe("GradScaler")
def _grad_scaler() -> None:
    model = _mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(cuda(8, 64, grad=False)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@probe("gradient checkpointing")
def _checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        train(_mlp(), lambda: cuda(8, 64), call=lambda m, x, r=reentrant: checkpoint(m, x, use_reentrant=r))  # type: ignore[misc]


def _optimizer(name: str, **options: Any) -> Probe:
    def run() -> None:
        train(_mlp(), lambda: cuda(8, 64), optimizer=lambda p: getattr(torch.optim, name)(p, lr=0.1, **options))

    return run


for _name in ("SGD", "Adam", "AdamW", "Adagrad"):
    for _option in ("foreach", "fused"):
        for _value in (False, True):
            # PyTorch has no fused Adagrad on CUDA.
            _no_kernel = "requires all the params" if (_name, _option, _value) == ("Adagrad", "fused", True) else ""
            probe(f"{_name} {_option}={_value}", expected=_no_kernel)(_optimizer(_name, **{_option: _value}))
for _name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor"):
    probe(f"{_name} foreach=False")(_optimizer(_name, foreach=False))
    probe(f"{_name} foreach=True")(_optimizer(_name, foreach=True))
probe("AdamW capturable amsgrad")(_optimizer("AdamW", capturable=True, amsgrad=True))
probe("SGD momentum nesterov")(_optimizer("SGD", momentum=0.9, nesterov=True))


@probe("LBFGS")
def _lbfgs() -> None:
    model = _mlp().cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(cuda(8, 64)).mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]


@probe("Muon")
def _muon() -> None:
    train(nn.Linear(64, 64, bias=False), lambda: cuda(8, 64), optimizer=lambda p: torch.optim.Muon(p, lr=0.1))


@probe("torch.compile mlp")
def _compile_mlp() -> None:
    train(torch.compile(_mlp().cuda()), lambda: cuda(8, 64))  # type: ignore[arg-type]


@probe("torch.compile conv net")
def _compile_conv() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 4))
    train(torch.compile(model.cuda()), lambda: cuda(2, 3, 32, 32))  # type: ignore[arg-type]


@probe("torch.compile reduce-overhead (CUDA graphs)")
def _compile_graphs() -> None:
    train(torch.compile(_mlp().cuda(), mode="reduce-overhead"), lambda: cuda(8, 64, grad=False))  # type: ignore[arg-type]


@probe("CUDA graph capture and replay")
def _cuda_graph() -> None:
    model = _mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    batch = cuda(8, 64, grad=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    torch.cuda.make_graphed_callables(_mlp().cuda(), (cuda(8, 64),))(cuda(8, 64)).sum().backward()


# ------------------------------------------------------------------------------------------------ numerics
@probe("fft")
def _fft() -> None:
    torch.fft.fft(cuda(4, 64)).abs().sum().backward()
    torch.fft.irfft(torch.fft.rfft(cuda(4, 64))).sum().backward()
    torch.fft.irfft2(torch.fft.rfft2(cuda(2, 16, 16))).sum().backward()
    torch.fft.fftn(cuda(2, 8, 8, 8)).abs().sum().backward()
    torch.stft(cuda(2, 4000), 256, window=torch.hann_window(256, device="cuda"), return_complex=True).abs().sum().backward()


def _linalg(call: Callable[[torch.Tensor], Any], *shape: int, dtype: torch.dtype = torch.float32) -> Probe:
    def run() -> None:
        out = call(cuda(*shape, dtype=dtype))
        parts = out if isinstance(out, (tuple, list)) else [out]
        sum(p.abs().sum() for p in parts if p.requires_grad).backward()  # type: ignore[union-attr]

    return run


for _label, _shape in (("", (16, 16)), (" batched", (3, 16, 16)), (" large", (600, 600))):
    probe(f"cholesky{_label}")(_linalg(torch.linalg.cholesky, *_shape))
    probe(f"svd{_label}")(_linalg(lambda a: torch.linalg.svd(a, full_matrices=False), *_shape))
    probe(f"svdvals{_label}")(_linalg(torch.linalg.svdvals, *_shape))
    probe(f"solve{_label}")(_linalg(lambda a: torch.linalg.solve(a, a), *_shape))
    probe(f"inv{_label}")(_linalg(torch.linalg.inv, *_shape))
    probe(f"qr{_label}")(_linalg(torch.linalg.qr, *_shape))
    probe(f"eigh{_label}")(_linalg(torch.linalg.eigh, *_shape))
    probe(f"slogdet{_label}")(_linalg(torch.linalg.slogdet, *_shape))
probe("lstsq")(_linalg(lambda a: torch.linalg.lstsq(a, a).solution, 16, 16))
probe("solve_triangular")(_linalg(lambda a: torch.linalg.solve_triangular(a, a, upper=True), 16, 16))
probe("cholesky_solve")(_linalg(lambda a: torch.cholesky_solve(a, a), 16, 16))
probe("cholesky_inverse")(_linalg(torch.cholesky_inverse, 16, 16))
probe("pinv")(_linalg(torch.linalg.pinv, 16, 16))
probe("matrix_exp")(_linalg(torch.linalg.matrix_exp, 16, 16))
probe("householder_product")(_linalg(lambda a: torch.linalg.householder_product(a, a[0]), 16, 16))
# isfinite(a).all() reads False.
probe("eig", expected="should not contain infs or NaNs")(_linalg(torch.linalg.eig, 16, 16))
probe("cholesky complex")(_linalg(torch.linalg.cholesky, 16, 16, dtype=torch.complex64))
probe("svd float64")(_linalg(torch.linalg.svdvals, 16, 16, dtype=torch.float64))


@probe("sort, topk, cumsum, kthvalue, median, mode")
def _ordering() -> None:
    x = cuda(8, 1000)
    parts = [x.sort().values, x.topk(5).values, x.cumsum(1), x.kthvalue(3).values, x.median(1).values, x.mode(1).values]
    parts += [x.cumprod(1), x.cummax(1).values, x.logcumsumexp(1), x.argsort(1).float(), x.quantile(0.5)]
    sum(p.sum() for p in parts).backward()  # type: ignore[union-attr]
    cuda(200_000, grad=False).sort()
    torch.randperm(100_000, device="cuda")


@probe("unique, nonzero, masks, bincount, histc, searchsorted")
def _data_dependent() -> None:
    x = torch.randint(0, 9, (1000,), device="cuda")
    for out in (x.unique(return_inverse=True, return_counts=True), x.nonzero(), x[x > 3], x.bincount(), x.float().histc(10)):
        assert out is not None
    torch.unique_consecutive(x)
    torch.unique(x.reshape(10, 100), dim=0)
    torch.searchsorted(torch.arange(10.0, device="cuda"), cuda(5, grad=False))
    torch.masked_select(x, x > 2)
    torch.where(x > 2)
    torch.multinomial(torch.ones(10, device="cuda"), 3)


@probe("repeat_interleave with counts on the device", expected="repeats can not be negative")  # (counts >= 0).all() reads False
def _repeat() -> None:
    x = cuda(5, grad=False)
    torch.repeat_interleave(x, torch.ones(5, dtype=torch.int64, device="cuda"), output_size=5)
    torch.repeat_interleave(x, torch.ones(5, dtype=torch.int64, device="cuda"))


@probe("index_put, gather, scatter, index_add, masked_fill")
def _indexing() -> None:
    x, index = cuda(100, 16), torch.zeros(40, dtype=torch.int64, device="cuda")
    y = x * 1.0
    y[index] = cuda(40, 16)
    parts = [y, x.gather(0, index[:, None]), x.index_add(0, index, cuda(40, 16)), x.masked_fill(x > 0, 0.0), x[index]]
    parts += [x.scatter(0, index[:, None], cuda(40, 1)), x.scatter_reduce(0, index[:, None], cuda(40, 1), "sum"), x.take(index)]
    sum(p.sum() for p in parts).backward()  # type: ignore[union-attr]


@probe("embedding and embedding bag")
def _embedding() -> None:
    index = torch.randint(0, 100, (4, 8), device="cuda")
    train(nn.Embedding(100, 16), lambda: index)
    train(nn.Embedding(100, 16, padding_idx=0, max_norm=1.0), lambda: index)
    train(nn.EmbeddingBag(100, 16, mode="mean"), lambda: index)
    train(nn.Embedding(100, 16, sparse=True), lambda: index, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    train(nn.Embedding(100, 16, sparse=True), lambda: index, optimizer=torch.optim.SparseAdam)


def _sparse(layout: str) -> Probe:
    def run() -> None:
        indices = torch.tensor([[0, 1, 2], [2, 0, 1]])
        coo = torch.sparse_coo_tensor(indices, torch.ones(3), (3, 3)).coalesce()
        matrix = (coo.cuda() if layout == "coo" else coo.to_sparse_csr().cuda()).requires_grad_(layout == "coo")
        dense = cuda(3, 4)
        (matrix @ dense).sum().backward()
        matrix.detach() @ dense.detach()[:, 0]

    return run


probe("sparse coo mm")(_sparse("coo"))
probe("sparse csr mm")(_sparse("csr"))


@probe("sparse csr times sparse csr", expected="CUSPARSE_STATUS_NOT_SUPPORTED")  # the result's size is data
def _sparse_sparse() -> None:
    matrix = torch.eye(3).to_sparse_csr().cuda()
    _ = matrix @ matrix


@probe("interpolate and grid_sample")
def _resampling() -> None:
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        torch.nn.functional.interpolate(cuda(2, 3, 16, 16), scale_factor=2, mode=mode).sum().backward()
    torch.nn.functional.interpolate(cuda(2, 3, 16, 16), size=(8, 8), mode="bilinear", antialias=True).sum().backward()
    torch.nn.functional.interpolate(cuda(2, 3, 8, 8, 8), scale_factor=2, mode="trilinear").sum().backward()
    for mode in ("bilinear", "nearest", "bicubic"):
        torch.nn.functional.grid_sample(cuda(2, 3, 16, 16), cuda(2, 8, 8, 2), mode=mode, align_corners=False).sum().backward()
    torch.nn.functional.affine_grid(cuda(2, 2, 3), [2, 3, 8, 8], align_corners=False).sum().backward()
    torch.nn.functional.fold(torch.nn.functional.unfold(cuda(2, 3, 16, 16), 4), (16, 16), 4).sum().backward()


@probe("losses")
def _losses() -> None:
    scores, target = cuda(8, 10), torch.zeros(8, dtype=torch.int64, device="cuda")
    functional = torch.nn.functional
    parts = [functional.cross_entropy(scores, target, label_smoothing=0.1), functional.mse_loss(scores, scores * 0.5)]
    parts += [functional.kl_div(scores.log_softmax(1), scores.softmax(1)), functional.smooth_l1_loss(scores, scores * 2)]
    parts += [functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)), functional.nll_loss(scores, target)]
    parts += [functional.cosine_embedding_loss(scores, scores * 2, torch.ones(8, device="cuda"))]
    parts += [functional.multi_margin_loss(scores, target), functional.gaussian_nll_loss(scores, scores * 2, scores**2)]
    sum(parts).backward()  # type: ignore[union-attr]


def _ctc(dtype: torch.dtype, *, padded: bool, lengths_on: str) -> Probe:
    def run() -> None:
        lengths = torch.full((4,), 50, dtype=dtype, device=lengths_on)
        target_lengths = torch.full((4,), 10, dtype=dtype, device=lengths_on)
        # cuDNN is used for int32 targets on the host, in a row and without padding.
        targets = torch.ones((4, 10) if padded else (40,), dtype=dtype, device="cpu" if dtype == torch.int32 else "cuda")
        scores = cuda(50, 4, 20)
        torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, lengths, target_lengths).backward()

    return run


probe("ctc_loss")(_ctc(torch.int64, padded=True, lengths_on="cuda"))
probe("ctc_loss targets in a row")(_ctc(torch.int64, padded=False, lengths_on="cpu"))
probe("ctc_loss targets in a row, lengths on the device", expected="to have size 0")(
    _ctc(torch.int64, padded=False, lengths_on="cuda")  # the lengths read as zero, so no target seems to be required
)
probe("ctc_loss cuDNN")(_ctc(torch.int32, padded=False, lengths_on="cuda"))


@probe("bmm, baddbmm, addmm, einsum, outer, vdot")
def _products() -> None:
    a, b = cuda(3, 8, 8), cuda(3, 8, 8)
    parts = [
        a.bmm(b),
        torch.baddbmm(a, a, b),
        torch.addmm(a[0], a[1], b[0]),
        torch.einsum("bij,bkj->bik", a, b),
        a[0] @ b[0, 0],
    ]
    parts += [torch.outer(a[0, 0], b[0, 0]), torch.dot(a[0, 0], b[0, 0]), nn.Bilinear(8, 8, 4).cuda()(a, b), torch.cdist(a, b)]
    sum(p.sum() for p in parts).backward()  # type: ignore[union-attr]
    torch.vdot(cuda(8, dtype=torch.complex64, grad=False), cuda(8, dtype=torch.complex64, grad=False))
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        (cuda(8, 8, dtype=dtype) @ cuda(8, 8, dtype=dtype)).abs().sum().backward()


@probe("int8 and fp8 matrix products", device="h100")
def _low_precision() -> None:
    torch._int_mm(*(torch.zeros(32, 32, dtype=torch.int8, device="cuda") for _ in range(2)))
    a = torch.zeros(32, 32, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@probe("distributions")
def _distributions() -> None:
    scale = cuda(8).exp()
    sample = torch.distributions.Normal(cuda(8), scale).rsample()
    torch.distributions.kl_divergence(
        torch.distributions.Normal(sample, scale), torch.distributions.Normal(0.0, 1.0)
    ).sum().backward()
    torch.distributions.Categorical(logits=cuda(4, 8)).log_prob(
        torch.zeros(4, dtype=torch.int64, device="cuda")
    ).sum().backward()


@probe("random numbers")
def _random() -> None:
    x = torch.empty(1000, device="cuda")
    for fill in (x.normal_, x.uniform_, x.exponential_, x.bernoulli_, x.cauchy_, x.log_normal_, x.geometric_):
        fill(0.5) if fill in (x.geometric_, x.bernoulli_) else fill()
    torch.poisson(x)
    torch.distributions.Dirichlet(torch.ones(3, device="cuda")).sample()
    torch.distributions.Gamma(torch.ones(3, device="cuda"), torch.ones(3, device="cuda")).sample()
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    nn.functional.dropout(cuda(100), 0.5).sum().backward()


@probe("jit-compiled special functions (NVRTC)")
def _nvrtc() -> None:
    for function in (torch.special.i1e, torch.special.zeta, torch.lcm, torch.special.bessel_j0, torch.polygamma):
        if function is torch.polygamma:
            torch.polygamma(2, cuda(10, grad=False))
        elif function in (torch.special.zeta,):
            function(cuda(10, grad=False), cuda(10, grad=False))
        elif function is torch.lcm:
            torch.lcm(torch.ones(3, dtype=torch.int64, device="cuda"), torch.ones(3, dtype=torch.int64, device="cuda"))
        else:
            function(cuda(10, grad=False))


# ------------------------------------------------------------------------------------------------ memory and streams
def _churn() -> None:
    for size in (64, 512, 2048, 128):
        train(nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)), lambda s=size: cuda(64, s))  # type: ignore[misc]
    torch.cuda.empty_cache()


probe("expandable_segments", alloc_conf="expandable_segments:True")(_churn)
probe("max_split_size_mb", alloc_conf="max_split_size_mb:64")(_churn)
probe("roundup_power2_divisions", alloc_conf="roundup_power2_divisions:4")(_churn)
probe("garbage_collection_threshold", alloc_conf="garbage_collection_threshold:0.5")(_churn)
# Not PyTorch's caching allocator, and selected before torch is loaded.


@probe("pinned memory, streams and events")
def _pinned() -> None:
    host = torch.ones(1 << 20).pin_memory()
    stream = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream):
        on_device = host.to("cuda", non_blocking=True)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    on_device.record_stream(torch.cuda.current_stream())
    event.synchronize()
    stream.query()
    torch.cuda.synchronize()
    back = torch.empty(1 << 20, pin_memory=True)
    back.copy_(on_device, non_blocking=True)
    on_device[::2].cpu()
    torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 4)), batch_size=4, pin_memory=True)


@probe("cudaMemGetInfo, device properties and memory statistics")
def _information() -> None:
    _ = cuda(100, grad=False)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.cuda.get_device_properties(0).total_memory == total
    torch.cuda.memory_summary()


@probe("memory pool and per-process fraction")
def _pool() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        _ = cuda(100, grad=False)


@probe("item, tolist, isnan and any on the host")
def _host_reads() -> None:
    x = cuda(10)
    _ = x.sum().item(), x.tolist(), bool(x.isnan().any())
    torch.nn.utils.clip_grad_norm_([x], 1.0)


@probe("activation offload (save_on_cpu)")
def _offload() -> None:
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        train(_mlp(), lambda: cuda(8, 64))


@probe("higher order gradients and functorch")
def _higher_order() -> None:
    x = cuda(8)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()
    torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(cuda(4, 8))


# ------------------------------------------------------------------------------------------------ distributed
def _fake_group() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())


# PyTorch's fake group gives its collectives' futures no value, which DDP's reducer needs, on every device.
@probe("DDP on a fake group", expected="expected the hook result")
def _ddp() -> None:
    _fake_group()
    from torch.nn.parallel import DistributedDataParallel

    train(DistributedDataParallel(_mlp().cuda(), device_ids=[0]), lambda: cuda(8, 64))


@probe("FSDP2 on a fake group")
def _fsdp2() -> None:
    _fake_group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cuda", (8,))
    model = nn.Sequential(*(_mlp() for _ in range(3))).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    train(model, lambda: cuda(8, 64))


@probe("FSDP1 on a fake group")
def _fsdp1() -> None:
    _fake_group()
    from torch.distributed.fsdp import FullyShardedDataParallel

    train(FullyShardedDataParallel(_mlp().cuda(), device_id=0), lambda: cuda(8, 64))


@probe("ZeroRedundancyOptimizer on a fake group")
def _zero() -> None:
    _fake_group()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    train(_mlp(), lambda: cuda(8, 64), optimizer=lambda p: ZeroRedundancyOptimizer(p, torch.optim.AdamW))


@probe("NCCL group of one")
def _nccl() -> None:
    import torch.distributed as dist

    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore(), device_id=torch.device("cuda", 0))
    x = cuda(8, grad=False)
    dist.all_reduce(x)
    dist.all_gather_into_tensor(torch.empty_like(x), x)
    from torch.nn.parallel import DistributedDataParallel

    train(DistributedDataParallel(_mlp().cuda(), device_ids=[0]), lambda: cuda(8, 64))
    dist.destroy_process_group()


def jobs() -> Iterator[tuple[str, Any, str]]:
    """Yield (name, job, required error text or "")."""
    from vramcast.hardware.cards import device as find_device
    from vramcast.jobs.job import Command, Job, Training

    for name, setting in _SETTINGS.items():
        script = (str(Path(__file__).resolve()), name)
        training = Training(steps=1000)
        job = Job(find_device(setting.device), command=Command(script), alloc_conf=setting.alloc_conf, training=training)
        yield name, job, setting.expected


if __name__ == "__main__":
    _PROBES[sys.argv[1]]()
