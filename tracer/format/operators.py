"""What an operator is, read from its name: the one place which knows how PyTorch's tracers spell the same thing.

`aten::cudnn_convolution` asks forward, `aten::convolution_backward` backward; where autograd's node asks itself, it is
`ConvolutionBackward0`. So names are read without regard to case, and nobody else reads them: a trace holds `Operator`s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, Self, TypeAlias

Shape: TypeAlias = tuple[int, ...]


# `convert` is no convolution: `_convert_indices_from_coo_to_csr`.
_CONVOLUTION: Final = r"conv(?!ert)"


class _Spelt(IntEnum):
    """Something which torch's names of operators say: the first member whose pattern matches holds, and 0 where none does.

    The numbers stand in trace files: a new one takes the next number, wherever it stands.
    """

    pattern: str

    def __new__(cls, number: int, pattern: str = "") -> Self:
        """Return the member of that number."""
        one = int.__new__(cls, number)
        one._value_ = number
        one.pattern = pattern
        return one

    @classmethod
    def named(cls, name: str) -> Self:
        """Return what an operator's name says."""
        return next((one for one in cls if one and re.search(one.pattern, name, re.IGNORECASE)), cls(0))


class Kind(_Spelt):
    """What an operator does."""

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


class Library(_Spelt):
    """Which library of NVIDIA's computes it: each takes memory of its own when it is first used.

    cuDNN 9 is several libraries, loaded one by one; CUDNN is the one of convolutions.
    """

    NONE = 0
    CUDNN_NORMALIZATION = 3, r"cudnn_batch_norm"
    CUDNN_RECURRENT = 4, r"cudnn_rnn"
    CUDNN_ATTENTION = 5, r"cudnn_attention"
    CUDNN = 2, rf"{_CONVOLUTION}|cudnn|rnn|lstm|gru"
    CUBLAS = 1, r"addmm|::mm|bmm|::linear|matmul|::dot|::mv"

    @property
    def loaded(self) -> str:
        """Which library is loaded for it, as a ledger's entry names it: cublas, cudnn, or "" none."""
        return "" if self is Library.NONE else "cublas" if self is Library.CUBLAS else "cudnn"


class Form(IntEnum):
    """How the arguments of an operator lie whose operations are counted: `tracer/recording/accesses.py` knows each."""

    PRODUCT = 0  # factors first
    SUM_AND_PRODUCT = 1  # something to add, then the factors
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
# Operators which are handed a workspace by cuBLAS, cuDNN or cuFFT.
_WORKSPACE: Final = rf"{_CONVOLUTION}|mm|linear|matmul|attention|rnn|lstm|gru|fft|dot|mv"
# Operators which only make storage: the one around them is the one a reader wants to see.
FACTORIES: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "full", "new_empty", "new_empty_strided", "new_zeros"),
        *("ones", "ones_like", "resize_", "zeros", "zeros_like", "_to_copy", "clone", "contiguous", "copy_", "to"),
    )
)
# These change or make a tensor, and touch no memory of it.
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
# How the null GPU's profile calls the operator that asks, where another one is called: the caller, or what CUDA's kernel
# delegates to.
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
_REMEMBERED: Final = 1 << 16  # arbitrary: names; a file may hold any number
STEP: Final = "Optimizer.step"  # spec: torch.optim's own range, torch 2.11


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a job, as requests name it.

    Attributes:
        name: As torch calls it; "" unknown.
        module: Path of the module in whose forward, or for whose gradient, it ran; "" unknown.
        shapes: Of the tensors it was given, in order; () where the tracer did not record them.
        dtypes: Theirs, as torch names them without `torch.`.
        kind: What it does.
        library: Which of NVIDIA's libraries computes it.
    """

    name: str
    module: str = ""
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    kind: Kind = Kind.OTHER
    library: Library = Library.NONE

    @classmethod
    def of(cls, name: str, module: str = "", shapes: tuple[Shape, ...] = (), dtypes: tuple[str, ...] = ()) -> Operator:
        """Return the operator of that name, classified."""
        return cls(name, module, shapes, dtypes, *_classified(name))

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution, forward or backward."""
        return self.kind in (Kind.CONVOLUTION, Kind.CONVOLUTION_BACKWARD)

    @property
    def is_depthwise(self) -> bool:
        """Whether it is a convolution by PyTorch's own kernels for one channel a group; cuDNN's do not say so by their name."""
        return self.is_convolution and "depthwise" in self.name.lower()

    @property
    def is_compiled(self) -> bool:
        """Whether it is a graph which Inductor compiled."""
        return re.search(_COMPILED, self.name) is not None

    @property
    def activation(self) -> int | None:
        """Which activation function it is: its place among `ACTIVATIONS`."""
        return _activation(self.name)


@lru_cache(_REMEMBERED)
def _classified(name: str) -> tuple[Kind, Library]:
    return Kind.named(name), Library.named(name)


@lru_cache(_REMEMBERED)
def takes_workspace(name: str) -> bool:
    """Return whether a library is handed a workspace by the operator of that name."""
    return re.search(_WORKSPACE, name, re.IGNORECASE) is not None


@lru_cache(_REMEMBERED)
def _activation(name: str) -> int | None:
    return next((number for number, pattern in enumerate(_ACTIVATIONS) if re.search(pattern, name, re.IGNORECASE)), None)
