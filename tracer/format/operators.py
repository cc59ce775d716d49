"""Classification of operators by name: the only place with PyTorch's spellings of operators.

`aten::cudnn_convolution` makes the forward requests, `aten::convolution_backward` the backward ones; if autograd's node
itself does, it is `ConvolutionBackward0`. So names are matched without regard to case, and only here: a trace holds
`Operator`s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, Self, TypeAlias

from vramcast.core.brief import brief

Shape: TypeAlias = tuple[int, ...]


# `convert` is not a convolution: `_convert_indices_from_coo_to_csr`.
_CONVOLUTION: Final = r"conv(?!ert)"


class _Spelt(IntEnum):
    """A property encoded in operator names: the first member whose pattern matches, or 0 if none does.

    The numbers are part of trace files: a new member takes the next number, wherever it stands.
    """

    pattern: str

    def __new__(cls, number: int, pattern: str = "") -> Self:
        """Return the member with that number."""
        one = int.__new__(cls, number)
        one._value_ = number
        one.pattern = pattern
        return one

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the property of an operator's name."""
        return next((one for one in cls if one and re.search(one.pattern, name, re.IGNORECASE)), cls(0))


class OperatorKind(_Spelt):
    """The computation of an operator."""

    # spec: torch 2.11, native_functions.yaml, derivatives.yaml and the profiles of the survey
    OTHER = 0
    OPTIMIZER = 1, r"^Optimizer|_foreach_|_fused_"
    CONVOLUTION_BACKWARD = 2, r"convolution_backward|ConvolutionBackward"
    CONVOLUTION = 3, _CONVOLUTION
    BATCH_NORM = 4, r"batch_norm"
    LAYER_NORM = 5, r"layer_norm|rms_norm"
    GROUP_NORM = 6, r"group_norm|instance_norm"
    ATTENTION = 7, r"attention"
    EMBEDDING = 8, r"embedding"
    MATMUL = 9, r"addmm|::mm|::bmm|baddbmm|linear|matmul|einsum|Mm"
    RECURRENT = 10, r"rnn|lstm|gru"
    POOL = 11, r"pool"
    ACTIVATION = 12, r"relu|gelu|silu|elu|tanh|sigmoid|hardswish|hardtanh|mish|softplus|leaky|threshold|clamp_min|glu"
    DROPOUT = 13, r"dropout|bernoulli"
    SOFTMAX = 14, r"softmax"
    LOSS = 15, r"nll_loss|cross_entropy|mse_loss"
    CONCATENATION = 16, r"::cat|CatBackward|stack"
    RESIZE = 17, r"upsample|interpolate|pad|roll"
    COPY = 18, r"copy|clone|contiguous|_to_copy|ToCopy"


class OperatorLibrary(_Spelt):
    """The NVIDIA library that computes an operator: each takes memory of its own when it is first used.

    cuDNN 9 is several libraries, loaded one by one; CUDNN is the one for convolutions.
    """

    NONE = 0
    CUDNN_NORMALIZATION = 3, r"cudnn_batch_norm"
    CUDNN_RECURRENT = 4, r"cudnn_rnn"
    CUDNN_ATTENTION = 5, r"cudnn_attention"
    CUDNN = 2, rf"{_CONVOLUTION}|cudnn|rnn|lstm|gru"
    CUBLAS = 1, r"addmm|::mm|bmm|::linear|matmul|::dot|::mv"

    @property
    def loaded(self) -> str:
        """Return the library loaded for it, as in a ledger's entry: cublas, cudnn, or "" for none."""
        return "" if self is OperatorLibrary.NONE else "cublas" if self is OperatorLibrary.CUBLAS else "cudnn"


def is_number(path: str) -> bool:
    """Return whether a module's path has only numbers: `2`, `0.1`."""
    return path.replace(".", "").isdecimal()


class Form(IntEnum):
    """The argument order of an operator with counted operations; `tracer/recording/accesses.py` handles each form."""

    PRODUCT = 0  # factors first
    SUM_AND_PRODUCT = 1  # a summand, then the factors
    CONVOLUTION = 2
    CUDNN_CONVOLUTION = 3  # never transposed
    CONVOLUTION_BACKWARD = 4
    RECURRENT = 5
    ATTENTION = 6
    ATTENTION_BACKWARD = 7


# ------------------------------------------------------------------------------------------------ how torch spells it
# The first that matches holds. spec: torch 2.11, native_functions.yaml, derivatives.yaml and the profiles of the survey.
# GPUMemNet codes the activation function by the sine and cosine of an angle; here the angle is the place in this list.
# torch runs ReLU as clamp_min, and takes threshold_backward for its gradient.
_ACTIVATIONS: Final = (
    *(r"(?<![a-z])relu|clamp_min|threshold", r"gelu", r"silu", r"(?<![a-z])(?:s|c)?elu", r"tanh", r"sigmoid", r"hardswish"),
    *(r"hardtanh", r"leaky", r"mish", r"softplus", r"prelu"),
)
ACTIVATIONS: Final = len(_ACTIVATIONS)
# spec: torch 2.6 to 2.11, _inductor/output_code.py and _functorch: what profiles call such a graph, and the function around it
_COMPILED: Final = r"CompiledFxGraph|CompiledFunction"
# Operators that pass a workspace to cuBLAS, cuDNN or cuFFT.
_WORKSPACE: Final = rf"{_CONVOLUTION}|mm|linear|matmul|attention|rnn|lstm|gru|fft|dot|mv"
# Operators that only create storage: the operator around them is the interesting one.
FACTORIES: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "full", "new_empty", "new_empty_strided", "new_zeros"),
        *("ones", "ones_like", "resize_", "zeros", "zeros_like", "_to_copy", "clone", "contiguous", "copy_", "to"),
    )
)
# These change or create a tensor without touching its memory.
UNTOUCHING: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"),
        *("as_strided_", "detach_", "set_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "requires_grad_"),
        *("record_stream", "rename_", "_resize_output_", "retain_grad"),
    )
)
READ_BY_HOST: Final = "aten::_local_scalar_dense"
_ATTENTIONS: Final = tuple(f"aten::_scaled_dot_product_{kind}_attention" for kind in ("efficient", "flash", "cudnn"))
FORMS: Final[Mapping[str, Form]] = {
    **{f"aten::{name}": Form.PRODUCT for name in ("mm", "bmm", "_scaled_mm")},
    **{f"aten::{name}": Form.SUM_AND_PRODUCT for name in ("addmm", "baddbmm")},
    **{f"aten::{name}": Form.CONVOLUTION for name in ("convolution", "_convolution")},
    "aten::cudnn_convolution": Form.CUDNN_CONVOLUTION,
    "aten::convolution_backward": Form.CONVOLUTION_BACKWARD,
    "aten::_cudnn_rnn": Form.RECURRENT,
    **dict.fromkeys(_ATTENTIONS, Form.ATTENTION),
    **dict.fromkeys((f"{name}_backward" for name in _ATTENTIONS), Form.ATTENTION_BACKWARD),
}
# The operator that allocates in the null GPU's profile, if another one is called: the caller, or the delegate of CUDA's
# kernel.
ASKS_AS: Final[Mapping[str, str]] = {
    "aten::_to_copy": "aten::to",
    "aten::relu": "aten::clamp_min",
    "aten::embedding": "aten::index_select",
    "aten::stack": "aten::cat",
    "aten::convolution": "aten::cudnn_convolution",
    **{
        f"aten::_scaled_dot_product_{kernel}_attention{end}": f"aten::_{kernel}_attention_{way}"
        for kernel in ("flash", "efficient", "cudnn")
        for end, way in (("", "forward"), ("_backward", "backward"))
    },
}
_REMEMBERED: Final = 1 << 16  # arbitrary: cached names; a file may hold any number
STEP: Final = "Optimizer.step"  # spec: torch.optim's own range, torch 2.11


@brief
@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a job, as named in requests.

    Attributes:
        name: torch's name; "" unknown.
        module: Path of the module in whose forward, or for whose gradient, it ran; "" unknown.
        shapes: Shapes of its tensor arguments, in order; () if the tracer did not record them.
        dtypes: Their dtypes, named as in torch, without `torch.`.
        kind: Its computation.
        library: The NVIDIA library that computes it.
    """

    name: str
    module: str = ""
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    kind: OperatorKind = OperatorKind.OTHER
    library: OperatorLibrary = OperatorLibrary.NONE

    @classmethod
    def of(cls, name: str, module: str = "", shapes: tuple[Shape, ...] = (), dtypes: tuple[str, ...] = ()) -> Operator:
        """Return the operator with that name, classified."""
        return cls(name, module, shapes, dtypes, *_classified(name))

    @property
    def is_convolution(self) -> bool:
        """Return whether it is a convolution, forward or backward."""
        return self.kind in (OperatorKind.CONVOLUTION, OperatorKind.CONVOLUTION_BACKWARD)

    @property
    def is_depthwise(self) -> bool:
        """Return whether it is one of PyTorch's own depthwise convolutions; names of cuDNN's do not show this."""
        return self.is_convolution and "depthwise" in self.name.lower()

    @property
    def is_compiled(self) -> bool:
        """Return whether it is a graph compiled by Inductor."""
        return re.search(_COMPILED, self.name) is not None

    @property
    def activation(self) -> int | None:
        """Return the index of its activation function in `ACTIVATIONS`."""
        return _activation(self.name)


@lru_cache(_REMEMBERED)
def _classified(name: str) -> tuple[OperatorKind, OperatorLibrary]:
    return OperatorKind.named(name), OperatorLibrary.named(name)


@lru_cache(_REMEMBERED)
def takes_workspace(name: str) -> bool:
    """Return whether the operator passes a workspace to a library."""
    return re.search(_WORKSPACE, name, re.IGNORECASE) is not None


@lru_cache(_REMEMBERED)
def _activation(name: str) -> int | None:
    return next((number for number, pattern in enumerate(_ACTIVATIONS) if re.search(pattern, name, re.IGNORECASE)), None)
