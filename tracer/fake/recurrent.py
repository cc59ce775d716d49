"""Recurrent layers on the card: PyTorch's C++ checks `is_cuda()` before it takes cuDNN's, so their calls are replaced.

measured: request by request on the null GPU, torch 2.11.0+cu130, a100-40gb. The sizes of workspace and reserve are the null
GPU's own assumption: cuDNN publishes none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.fake.tensor import META, CudaTensor, on_card
from vramcast.tracer.hooks.torch_api import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard
from vramcast.tracer.rules.operator_call import OperatorCall, Rule

aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # spec: cuDNN's numbers
_GATES = (1, 1, 4, 3)  # number of gates by mode


# ------------------------------------------------------------------------------------------------ above autograd
def register(library: torch.library.Library) -> None:
    """Replace the layers' operators for CUDA, and the module's method that flattens its weights."""
    for name in _MODES:
        for overload in ("input", "data"):
            library.impl(f"{name}.{overload}", _layer(name, overload), "AutogradCUDA")
    torch.nn.RNNBase.flatten_parameters = _flatten  # type: ignore[method-assign, assignment]


def _layer(name: str, overload: str) -> Callable[..., Any]:
    op = getattr(getattr(aten, name), overload)

    def layer(*args: Any) -> Any:
        if not torch.backends.cudnn.enabled:
            return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args)
        packed = overload == "data"
        data, sizes = args[0], args[1].tolist() if packed else []
        hidden, weights, _, n_layers, dropout, train, both, *batch_first = args[2 if packed else 1 :]
        hx, cx = hidden if name == "lstm" else (hidden, None)
        width, projected = (hx.shape[2], 0) if cx is None else (cx.shape[2], hx.shape[2] if hx.shape[2] != cx.shape[2] else 0)
        flat = None
        if torch.is_autocast_enabled("cuda"):  # the casts are adjacent
            dtype = torch.get_autocast_dtype("cuda")
            weights = [w.to(dtype) for w in weights]
            data, hx, cx, flat = data.to(dtype), hx.to(dtype), None if cx is None else cx.to(dtype), weights[0].detach()
        with ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.AutocastCUDA)):
            out, hy, cy, _, _ = aten._cudnn_rnn(
                data, weights, len(weights) // (n_layers * (1 + both)), flat, hx, cx, _MODES[name], width, projected, n_layers,
                bool(batch_first and batch_first[0]), dropout, train, both, sizes, None,
            )  # fmt: skip
        return (out, hy, cy) if name == "lstm" else (out, hy)

    return layer


def _flatten(layer: torch.nn.RNNBase) -> None:
    """Replace `RNNBase.flatten_parameters`: make the weights parts of one tensor."""
    weights: Any = layer._flat_weights
    if not all(isinstance(w, CudaTensor) for w in weights) or not torch.backends.cudnn.enabled:
        return
    with torch.no_grad():
        whole = aten._cudnn_rnn_flatten_weight(weights, 4, 0, 0, 0, 0, 0, False, False)
        at = 0
        for weight in weights:
            weight.data = whole[at : at + weight.numel()].view(weight.shape)
            at += weight.numel()


# ------------------------------------------------------------------------------------------------ answers
def _flat_weight(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return torch.empty(sum(w.numel() for w in args[0]), dtype=args[0][0].dtype, device=META)


def _forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, _, flat, hx, cx, kind, width, projected, n_layers, batch_first, _, train, both, *_ = args
    shape = [*data.shape[:-1], (projected or width) * (1 + both)]
    if batch_first:
        out = torch.empty(shape[1], shape[0], shape[2], dtype=data.dtype, device=META).transpose(0, 1)
    else:
        out = torch.empty(shape, dtype=data.dtype, device=META)
    states = [torch.empty(0 if t is None else t.shape, dtype=data.dtype, device=META) for t in (hx, cx)]
    side_by_side = flat is not None or len({w.untyped_storage()._cdata for w in weights}) == 1
    reserve_bytes = _gate_bytes(data, width, both) * (_GATES[kind] + 2) * n_layers if train else 0
    return (
        out,
        *states,
        torch.empty(reserve_bytes, dtype=torch.uint8, device=META),
        torch.empty(0 if side_by_side else sum(w.numel() for w in weights), dtype=data.dtype, device=META),
    )


def _backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, hx, cx = args[0], args[1], args[4], args[5]
    inputs = [torch.empty(0 if t is None else t.shape, dtype=data.dtype, device=META) for t in (data, hx, cx)]
    whole = torch.empty(sum(w.numel() for w in weights), dtype=data.dtype, device=META)
    parts = whole.split([w.numel() for w in weights])
    return (*inputs, [on_card(part.view(w.shape)) for part, w in zip(parts, weights, strict=True)])


def _pack(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the packed steps, and on the host the number of sequences in each step."""
    data, lengths = args[:2]
    longest = int(lengths.max())
    sizes = (lengths[None, :] > torch.arange(longest)[:, None]).sum(1)
    return torch.empty(int(lengths.sum()), *data.shape[2:], dtype=data.dtype, device=META), sizes


def _gate_bytes(data: torch.Tensor, width: int, both: bool) -> int:
    """Return the bytes of one gate's values over all steps."""
    return data.numel() // max(data.shape[-1], 1) * width * (1 + both) * data.dtype.itemsize


ANSWERS = {
    aten._cudnn_rnn_flatten_weight.default: _flat_weight,
    aten._cudnn_rnn.default: _forward,
    aten._cudnn_rnn_backward.default: _backward,
    aten._pack_padded_sequence.default: _pack,
}


# ------------------------------------------------------------------------------------------------ requests
def _plan_forward(call: OperatorCall) -> None:
    data, kind, width, batch_first, both = call.args[0], call.args[6], call.args[7], call.args[10], call.args[13]
    call.begin(4)
    turned = call.ask(data.nbytes if batch_first else 0)
    call.begin(0, 1, 2)
    workspace = call.ask(_gate_bytes(data, width, both) * _GATES[kind])
    call.begin(3)
    call.free(workspace, turned)


def _plan_backward(call: OperatorCall) -> None:
    data, (hx, cx), (gradient, grad_hy, grad_cy) = call.args[0], call.args[4:6], call.args[7:10]
    kind, width, batch_first, both = call.args[10], call.args[11], call.args[14], call.args[17]
    zeros = [call.ask(t.nbytes) for t, given in ((hx, grad_hy), (cx, grad_cy)) if t is not None and given is None]
    workspace_bytes = _gate_bytes(data, width, both) * _GATES[kind]
    turned = [call.ask(t.nbytes) for t in (data, gradient) if batch_first]
    call.begin(0, 1, 2)
    call.free(call.ask(workspace_bytes), *reversed(turned))
    turned = [call.ask(data.nbytes)] if batch_first else []
    call.begin(3)
    call.free(call.ask(workspace_bytes), *turned, *reversed(zeros))


def _plan_pack(call: OperatorCall) -> None:
    """Plan the copies: shorter steps are copied out of the batch before all are joined."""
    data, sizes = call.results
    row_bytes = data.nbytes // max(len(data), 1)
    known = sizes.numpy().tolist()  # not an operator: here, operators compute only shapes
    parts = [(n, len(list(steps))) for n, steps in itertools.groupby(known)]
    held = [call.ask(n * n_steps * row_bytes) for n, n_steps in parts if n < known[0]]
    call.begin(0)
    call.free(*held)


RULES: dict[Any, Rule] = {
    aten._cudnn_rnn: _plan_forward,
    aten._cudnn_rnn_backward: _plan_backward,
    aten._pack_padded_sequence: _plan_pack,
}
