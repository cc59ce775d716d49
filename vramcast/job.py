"""What is asked: one training (or inference) job, as plain data which travels to the process that traces it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vramcast.devices import Device
from vramcast.errors import UsageError
from vramcast.stack import Stack
from vramcast.throughput import Roofline

Precision = Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
Mode = Literal["train", "infer"]
ZeroGrad = Literal["step-start", "before-backward", "after-step"]

PRECISIONS = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
MODES = ("train", "infer")
ZERO_GRADS = ("step-start", "before-backward", "after-step")
TRACERS = ("auto", "nullgpu", "fake", "cpu")
# Bytes an element; the names are torch's own.
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a batch: `TensorSpec((32, 3, 224, 224))`, `TensorSpec((8, 128), "int64", high=30522)`.

    Its values matter only where the model's way depends on them, as on an attention mask.

    Args:
        shape: Its dimensions, each >= 0.
        dtype: torch's name of the type, with or without `torch.`.
        high: For integers: values are below it (token ids below the vocabulary's size); documents what the model accepts.
        fill: What every element is.
        content: Instead of `fill`, all elements in row-major order, as the machine keeps them.
    Raises:
        UsageError: a negative dimension, an unknown dtype, or content of another size.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int | None = None
    fill: float = 0
    content: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(f"Dtype '{self.dtype}' is unknown: use one of {', '.join(DTYPE_BYTES)}.")
        if any(n < 0 for n in self.shape):
            raise UsageError(f"Shape {self.shape} has a negative dimension: all must be >= 0.")
        if self.content is not None and len(self.content) != self.size_bytes:
            raise UsageError(f"Content has {len(self.content)} bytes, but {self.shape} of {self.dtype} has {self.size_bytes}.")

    @property
    def size_bytes(self) -> int:
        """Elements times bytes an element."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers or booleans."""
        return not self.dtype.startswith(("float", "bfloat", "complex"))

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Return the tensor that `32x3x224x224`, `8x128:int64<30522`, `8x128:int64=1` (all ones) or `32:int64` says.

        Raises:
            UsageError: the text is none of these forms.
        """
        match = re.fullmatch(r"(\d+(?:x\d+)*)(?::([a-z]+\d*)(?:<(\d+))?(?:=(-?\d+(?:\.\d+)?))?)?", text.strip())
        if match is None:
            raise UsageError(
                f"Tensor '{text}' is not understood: write 32x3x224x224, 32x3x224x224:float32, 8x128:int64<30522 or "
                "8x128:int64=1."
            )
        shape = tuple(int(n) for n in match[1].split("x"))
        return cls(shape, match[2] or "float32", int(match[3]) if match[3] else None, float(match[4] or 0))

    def with_batch(self, batch_size: int) -> TensorSpec:
        """Return the same tensor with another first dimension; content is repeated or cut."""
        content = self.content
        if content is not None:
            row_bytes = len(content) // self.shape[0] if self.shape[0] else 0
            content = (content * -(-batch_size // self.shape[0]))[: batch_size * row_bytes] if row_bytes else None
        return replace(self, shape=(batch_size, *self.shape[1:]), content=content)


# A batch: a TensorSpec, or tuples, lists and dicts of them (other leaves are passed on as they are).
Batch = Any


def map_batch(batch: Batch, function: Any) -> Any:
    """Return `batch` with `function` applied to every leaf, its tuples, lists and dicts kept."""
    if isinstance(batch, dict):
        return {key: map_batch(value, function) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return type(batch)(map_batch(value, function) for value in batch)
    return function(batch)


def parse_batch(specs: Sequence[str]) -> Batch:
    """Return the batch which texts as `TensorSpec.parse` reads them say: one tensor, a tuple, or a dict where they have names.

    Args:
        specs: `32x3x224x224`, or `input_ids=8x128:int64<30522` for a keyword.
    Raises:
        UsageError: there is none, one is not understood, or only some have names.
    """
    if not specs:
        raise UsageError("--batch is missing: give each input tensor, for example --batch 32x3x224x224.")
    named: dict[str, TensorSpec] = {}
    plain: list[TensorSpec] = []
    for text in specs:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text)
        if match:
            named[match[1]] = TensorSpec.parse(match[2])
        else:
            plain.append(TensorSpec.parse(text))
    if named and plain:
        raise UsageError("--batch mixes named and unnamed tensors: name all of them (input_ids=8x128:int64) or none.")
    return named or (plain[0] if len(plain) == 1 else tuple(plain))


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Exactly one of `target`, `model` and `script` says what runs.

    Attributes:
        target: `torchvision:NAME`, `timm:NAME`, `hf:MODEL_TYPE_OR_CONFIG_JSON`, `package.module:factory`, `file.py:factory`.
        model: A module's structure (or a callable which builds one), pickled without weights by `tracer.hollow.dumps`.
        script: Path of a training script and its arguments; runs as `python script.py args`.
        batch: TensorSpecs in the shape of the model's input: one, a tuple (positional) or a dict (keywords).
        labels: What the loss compares the output with; None: the model's own loss, or the mean of its output.
        loss: None: by the kind of output; else a callable (output, labels) or (output, batch), pickled.
        optimizer: A name of torch.optim in any case (`adamw`, `sgdm` = SGD with momentum 0.9, `adamw:fused=true`), or a
            class or callable (params), pickled.
        steps: Training steps which are traced. Peaks settle in the second: the optimizer's state appears at the end of the
            first.
        zero_grad: Where gradients are dropped. `step-start` is the order of PyTorch's "Training with PyTorch" tutorial.
        overlap_inputs: Whether the last step's inputs still live when the next ones are moved to the device, as in
            `x = batch[0].to(device)`. In `for x, y in loader: x, y = x.to(device), y.to(device)` they do not: the loop
            variable names the new host tensor first.
        stack: Software of the card's machine where it differs from what is installed here; decides the cuDNN which is asked
            and the CUDA context.
        memory_bytes: The card's size instead of the device's own.
        context_bytes: What of the card is gone before the first tensor.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the job, against what its own code and the caller's environment say; None: what
            they say (`tracer/alloc_conf.py`).
        limited: Whether the card ends at its size; without, it has no end (what the job would need).
        expandable: Whether it is known to switch expandable segments on, by its own code or the environment: on a card
            without an end they want addresses.
        follow_values: Whether the null GPU works out on the host what small tensors hold (`tracer/values`); a script's always.
        accesses: Whether the null GPU also notes which operator reads and writes which block, and when by the card's
            roofline; the other tracers cannot. It changes no allocation.
    """

    device: Device
    target: str | None = None
    model: bytes | None = None
    script: tuple[str, ...] | None = None
    batch: Batch = None
    labels: TensorSpec | None = None
    num_classes: int | None = None
    loss: bytes | None = None
    optimizer: str | bytes = "adam"
    lr: float = 1e-3  # arbitrary: values never matter
    precision: Precision = "fp32"
    mode: Mode = "train"
    steps: int = 3
    zero_grad: ZeroGrad = "step-start"
    overlap_inputs: bool = True
    checkpointing: bool = False
    channels_last: bool = False
    cudnn_benchmark: bool = False
    alloc_conf: str | None = ""
    stack: Stack | None = None
    memory_bytes: int | None = None
    context_bytes: int = 0
    limited: bool = True
    expandable: bool = False
    follow_values: bool = False
    accesses: bool = False
    search_path: tuple[str, ...] = field(default=(), repr=False)
    working_folder: str = "."

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("mode", self.mode, MODES),
            ("zero_grad", self.zero_grad, ZERO_GRADS),
        ):
            if value not in known:
                raise UsageError(f"{name} '{value}' is unknown: use one of {', '.join(known)}.")
        if "cudaMallocAsync" in (self.alloc_conf or ""):
            raise UsageError(
                "alloc_conf asks for backend:cudaMallocAsync, which leaves memory to the driver's pool: only PyTorch's own "
                "allocator (backend:native) can be estimated."
            )
        if self.accesses:
            Roofline.of(self.device)  # raises where no peak is known
        if self.steps < 1:
            raise UsageError(f"steps is {self.steps}: at least 1 is needed, 3 show the steady state.")

    def with_batch(self, batch_size: int) -> Job:
        """Return the job with the first dimension of every input and label set to `batch_size`."""

        def resized(leaf: Any) -> Any:
            return leaf.with_batch(batch_size) if isinstance(leaf, TensorSpec) and leaf.shape else leaf

        return replace(self, batch=map_batch(self.batch, resized), labels=map_batch(self.labels, resized))

    @property
    def input_bytes(self) -> int:
        """What one batch with its labels takes on the card, in the job's precision; a script's is not known: 0."""
        low = self.precision in ("bf16", "fp16")
        sizes: list[int] = []

        def add(leaf: Any) -> None:
            if isinstance(leaf, TensorSpec):
                sizes.append(leaf.size_bytes // 2 if low and leaf.dtype == "float32" else leaf.size_bytes)

        map_batch(self.batch, add)
        map_batch(self.labels, add)
        return sum(sizes)

    @property
    def total_bytes(self) -> int:
        """The size of the card on which the job runs."""
        return self.memory_bytes if self.memory_bytes is not None else self.device.total_bytes
