"""A training or inference job as plain data, which is sent to the tracing process."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Number
from typing import Any, Final, Literal, get_args

from vramcast.core.brief import brief
from vramcast.core.checks import INT64_LEAST, number, whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten, shown
from vramcast.core.units import INT64_MOST
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.adapters import Adapter
from vramcast.jobs.parallel import Parallel
from vramcast.jobs.ranks import ALONE, Ranks, World
from vramcast.jobs.sizes import Inputs, Sizes

Until = Literal["steps", "evaluation", "end"]
Precision = Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
Mode = Literal["train", "infer"]
ZeroGrad = Literal["step-start", "before-backward", "after-step"]
TracerName = Literal["auto", "nullgpu", "fake", "cpu"]

# The values of each training option that has only a few.
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "precision": get_args(Precision), "mode": get_args(Mode), "zero_grad": get_args(ZeroGrad),
}  # fmt: skip
NAMES_CLASSES = ("torchvision", "timm", "hf")  # kinds of TARGET with an argument for the number of classes
TRACERS: Final[tuple[str, ...]] = get_args(TracerName)
# Bytes per element, by torch's names.
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
# Other names: torch's own, and short ones of papers and libraries.
_DTYPE_NAMES: Final = {
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "byte": "uint8", "cfloat": "complex64", "cdouble": "complex128", "fp64": "float64", "fp32": "float32", "fp16": "float16",
    "bf16": "bfloat16", "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u8": "uint8",
}  # fmt: skip
# Other values of the options with a few: torch's dtypes, and the names that Lightning and others give to precisions.
SYNONYMS: Final[dict[str, dict[str, str]]] = {
    "precision": {
        "float32": "fp32", "float": "fp32", "32": "fp32", "32-true": "fp32", "bfloat16": "bf16", "bf16-true": "bf16",
        "float16": "fp16", "half": "fp16", "16-true": "fp16", "bf16-mixed": "amp-bf16", "amp-bfloat16": "amp-bf16",
        "16-mixed": "amp-fp16", "fp16-mixed": "amp-fp16", "amp-float16": "amp-fp16",
    },
    "mode": {"training": "train", "eval": "infer", "inference": "infer"},
}  # fmt: skip
# Ranges of the integer types.
_RANGES = {"int64": (INT64_LEAST, INT64_MOST), "uint8": (0, 255), "bool": (0, 1)} | {
    f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32)
}
_CODES: dict[str, Literal["q", "i", "h", "b", "B", "?"]] = {
    "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?",
}  # fmt: skip
_DIGITS = r"[0-9]{1,19}"  # an int64 has no more
_DIMENSION = rf"(?:{_DIGITS}\.\.)?{_DIGITS}"
_TENSOR = re.compile(
    rf"({_DIMENSION}(?:x{_DIMENSION})*)(?::((?:torch\.)?[a-z]+\d*)(?:[<:]({_DIGITS}))?(?:=(-?{_DIGITS})(\.{_DIGITS})?)?)?"
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape, dtype and values of one tensor of a batch.

    Values matter only if the model branches on them, as on an attention mask.

    Attributes:
        shape: Dimensions, each >= 0.
        dtype: torch's name of the dtype, with or without `torch.`: `float32`, `bfloat16`, `int64`, `long`, `bool` and so on;
            also `fp32`, `bf16`, `i64`.
        high: Exclusive upper limit of integer values, such as the vocabulary's size for token ids.
        fill: Value of every element. None: integers below `high` (0 without it), floats between 0 and 1.
        content: All elements in row-major order as raw bytes of the machine, instead of `fill`; `size_bytes` long.
        least: Smallest shape, if the shape varies between batches (padded to the longest line): the estimate is for `shape`,
            and the bound is that of jobs with varying batches. None: all batches have the same shape.

    Raises:
        UsageError: A dimension is negative, `least` is larger than `shape`, the size in bytes exceeds an int64, the dtype is
            unknown, the dtype cannot hold a value, or `content` has another size.

    Example:
        >>> images = vramcast.TensorSpec((32, 3, 224, 224))
        >>> images.size_bytes
        19267584
        >>> vramcast.TensorSpec.parse("8x128:int64:30522")
        TensorSpec(shape=(8, 128), dtype='int64', high=30522, fill=None, least=None)
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int | None = None
    fill: float | None = None
    content: bytes | None = field(default=None, repr=False)
    least: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.shape, str | bytes) or not isinstance(self.shape, Iterable):
            raise UsageError(
                f"shape is {shown(self.shape)}: give a tuple of dimensions, for example TensorSpec((32, 3, 224, 224))."
            )
        object.__setattr__(self, "shape", tuple(whole("A dimension of a shape", n) for n in self.shape))
        named = str(self.dtype).removeprefix("torch.")
        object.__setattr__(self, "dtype", _DTYPE_NAMES.get(named, named))
        if self.dtype not in DTYPE_BYTES:
            close = difflib.get_close_matches(self.dtype, DTYPE_BYTES, 1)
            hint = f"did you mean {close[0]}? Else " if close else ""
            raise UsageError(f"Dtype '{self.dtype}' is unknown: {hint}use one of {', '.join(DTYPE_BYTES)}.")
        if any(n < 0 for n in self.shape):
            raise UsageError(f"Shape {self.shape} has a negative dimension: all must be >= 0.")
        if math.prod(max(n, 1) for n in self.shape) * DTYPE_BYTES[self.dtype] > INT64_MOST:
            raise UsageError(f"Shape {shown(self.shape)} of {self.dtype} has more than 2^63 bytes: no tensor can be so large.")
        self._check_values()
        self._check_least()
        if self.content is not None and len(self.content) != self.size_bytes:
            raise UsageError(f"Content has {len(self.content)} bytes, but {self.shape} of {self.dtype} has {self.size_bytes}.")

    def _check_least(self) -> None:
        if self.least is None:
            return
        least = tuple(whole("A dimension of a smallest shape", n, least=0) for n in self.least)
        if len(least) != len(self.shape) or any(small > large for small, large in zip(least, self.shape, strict=True)):
            raise UsageError(f"The smallest shape is {shown(least)}, and the largest {shown(self.shape)}: write 8x16..128.")
        object.__setattr__(self, "least", None if least == self.shape else least)

    def _check_values(self) -> None:
        if not isinstance(self.fill, Number | None):
            raise UsageError(f"fill is {shown(self.fill)}: a number is expected.")
        if not self.is_integer:
            if self.high is not None:
                raise UsageError(f"high is {shown(self.high)}: it is for integers, not for {self.dtype}.")
            return
        least, most = _RANGES[self.dtype]
        if self.high is not None:
            object.__setattr__(self, "high", whole("high ('<' of a tensor)", self.high, least=1, most=most + 1))
            most = min(most, self.high - 1)
        advice = f" in {self.dtype}" + (f"<{self.high}" if self.high is not None else "")
        if self.fill is not None:
            object.__setattr__(self, "fill", whole("fill ('=' of a tensor)", self.fill, least=least, most=most, advice=advice))

    @property
    def size_bytes(self) -> int:
        """Size in bytes: number of elements x bytes per element."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def varies(self) -> bool:
        """True if the shape varies between batches."""
        return self.least is not None

    @property
    def is_integer(self) -> bool:
        """True if the values are integers or booleans."""
        return not self.dtype.startswith(("float", "bfloat", "complex"))

    def integers(self) -> set[int]:
        """Return the integer values declared for the elements.

        Returns:
            The distinct values; empty if there are no elements, no declared values, or no integers.

        Example:
            >>> vramcast.TensorSpec((8, 128), "int64", fill=1).integers()
            {1}
        """
        if not self.is_integer or not self.size_bytes:
            return set()
        if self.content is None:
            return set() if self.fill is None else {int(self.fill)}
        return set(memoryview(self.content).cast(_CODES[self.dtype]))

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Parse a tensor as the command line writes it.

        Args:
            text: Dimensions with an optional dtype, limit or value: `32x3x224x224`, `32:int64`, `8x128:int64:30522` (below
                30522; also `8x128:int64<30522`), `8x128:int64=1` (all ones), or `8x16..128:int64` for a second dimension
                between 16 and 128.

        Returns:
            The tensor.

        Raises:
            UsageError: The text has none of these forms.

        Example:
            >>> vramcast.TensorSpec.parse("8x16..128:int64").least
            (8, 16)
        """
        match = _TENSOR.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"Tensor '{shorten(text)}' is not understood: write 32x3x224x224, 32x3x224x224:float32, "
                "8x128:int64:30522, 8x128:int64=1, or 8x16..128:int64 where batches vary."
            )
        ends = [dimension.split("..") for dimension in match[1].split("x")]
        shape, smallest = (tuple(int(end[place]) for end in ends) for place in (-1, 0))
        stated = match[4]
        fill = None if stated is None else float(stated + match[5]) if match[5] else int(stated)
        return cls(shape, match[2] or "float32", int(match[3]) if match[3] else None, fill, least=smallest)

    def with_batch(self, batch_size: int) -> TensorSpec:
        """Return a copy with another first dimension; its content is repeated or cut.

        Args:
            batch_size: The new first dimension, >= 0.

        Returns:
            The new tensor.

        Raises:
            UsageError: The batch size is not a whole number, or is negative.

        Example:
            >>> vramcast.TensorSpec((64, 1024)).with_batch(8).shape
            (8, 1024)
        """
        content = self.content
        if content is not None:
            row_bytes = len(content) // self.shape[0] if self.shape[0] else 0
            content = (content * -(-batch_size // self.shape[0]))[: batch_size * row_bytes] if row_bytes else None
        least = None if self.least is None else (batch_size, *self.least[1:])
        return replace(self, shape=(batch_size, *self.shape[1:]), content=content, least=least)


@brief
@dataclass(frozen=True, slots=True)
class Record:
    """A part of a batch that is an object of a user-defined class.

    Attributes:
        maker: A callable that makes the object from its fields, pickled by `tracer.program.meta_pickle.dumps`.
        fields: The object's parts by name. Without parts, the object's own `to(device)` moves it, if it has one.
    """

    maker: bytes = field(repr=False)
    fields: dict[str, Batch]


# A batch: a TensorSpec, or tuples, lists, dicts and Records of them (other leaves are passed on as they are).
Batch = Any


def map_batch(batch: Batch, function: Any) -> Any:
    """Return `batch` with `function` applied to every leaf, its tuples, lists, dicts and Records kept."""
    if isinstance(batch, Record):
        return replace(batch, fields=map_batch(batch.fields, function))
    if isinstance(batch, dict):
        return {key: map_batch(value, function) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return type(batch)(map_batch(value, function) for value in batch)
    return function(batch)


def specs_in(*batches: Batch) -> list[TensorSpec]:
    """Return the tensors in batches, in order."""
    found: list[TensorSpec] = []
    map_batch(batches, lambda leaf: found.append(leaf) if isinstance(leaf, TensorSpec) else None)
    return found


def parse_batch(specs: Sequence[str]) -> Batch:
    """Parse the tensors of a batch: one tensor, a tuple, or a dict if they have names.

    Args:
        specs: `32x3x224x224`, or `input_ids=8x128:int64:30522` for a keyword.
    Raises:
        UsageError: There is no tensor, a text is malformed, only some tensors have names, or a name occurs twice.
    """
    if not specs:
        raise UsageError("--batch is missing: give each input tensor, for example --batch 32x3x224x224.")
    named: dict[str, TensorSpec] = {}
    plain: list[TensorSpec] = []
    for text in specs:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text)
        if match and match[1] in named:
            raise UsageError(f"--batch gives '{match[1]}' twice: give each input once.")
        if match:
            named[match[1]] = TensorSpec.parse(match[2])
        else:
            plain.append(TensorSpec.parse(text))
    if named and plain:
        raise UsageError("--batch mixes named and unnamed tensors: name all of them (input_ids=8x128:int64) or none.")
    return named or (plain[0] if len(plain) == 1 else tuple(plain))


def current_folder() -> str:
    """Return the working folder, in which a job of this process runs.

    Raises:
        UsageError: The folder was removed.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"Cannot determine the current folder ({error.strerror}): change to one that exists.") from None


def _advanced(words: str, **settings: str) -> dict[str, str]:
    return {"group": "advanced", "help": words, **settings}


def canonical(name: str, value: Any) -> Any:
    """Return the value of an option of `CHOICES` that another one stands for (`bfloat16`: `bf16`); others as they are."""
    known = SYNONYMS.get(name, {})
    return known.get(str(value).removeprefix("torch."), value)


@brief
@dataclass(frozen=True, slots=True)
class Training:
    """Settings for training or running a model. A wrong value raises a UsageError.

    The command line has an option for each field; the field's metadata holds its help.

    Attributes:
        optimizer: A name of torch.optim in any case (`adamw`, `sgdm` = SGD with momentum 0.9, `adamw:fused=true`), a name of
            transformers' TrainingArguments.optim (`paged_adamw_8bit`), a `module:Class`, or a class or callable (params),
            pickled.
        lr: The learning rate, which does not change the memory.
        precision: fp32, bf16 or fp16 for the whole model; amp-bf16 or amp-fp16 for autocast.
        mode: train or infer.
        steps: Number of traced training steps. Peaks settle in the second: the optimizer's state appears at the end of the
            first.
        zero_grad: Point at which gradients are dropped. `step-start` is the order of PyTorch's "Training with PyTorch"
            tutorial.
        overlap_inputs: Whether the inputs of a step are still alive when those of the next step move to the device, as in
            `x = batch[0].to(device)`. They are not in `for x, y in loader: x, y = x.to(device), y.to(device)`, where the loop
            variable refers to the new host tensor first.
        checkpointing: Whether to switch on the model's gradient checkpointing.
        channels_last: Whether to convert the model and its images to channels_last.
        cudnn_benchmark: Value of torch.backends.cudnn.benchmark.
    """

    optimizer: str | bytes = field(
        default="adam",
        metadata={
            "metavar": "NAME",
            "help": "an optimizer of torch.optim in any case, sgdm, a name of transformers' TrainingArguments.optim "
            "(paged_adamw_8bit), or module:Class; options after a colon: adamw:fused=true (default: adam)",
        },
    )
    lr: float = field(  # arbitrary: the value never matters
        default=1e-3, metadata=_advanced("learning rate, which does not change the memory (default: 0.001)", metavar="X")
    )
    precision: Precision = field(
        default="fp32",
        metadata={
            "help": "bf16 or fp16: the whole model; amp-bf16 or amp-fp16: autocast around the model in its own type, as "
            "bf16=True of transformers' Trainer. hf: models have the type of their checkpoint, or that of "
            '?{"dtype":"float32"} (default: fp32)'
        },
    )
    mode: Mode = field(
        default="train", metadata={"help": "training steps, or forward passes without gradients (default: train)"}
    )
    steps: int = field(default=3, metadata=_advanced("training steps to trace (default: 3)", metavar="N"))
    zero_grad: ZeroGrad = field(
        default="step-start", metadata=_advanced("where in a step the gradients are dropped (default: step-start)")
    )
    overlap_inputs: bool = field(
        default=True,
        metadata=_advanced("keep a step's inputs until the next step's are on the card (default), or free them first"),
    )
    checkpointing: bool = field(default=False, metadata={"help": "turn on the model's gradient checkpointing"})
    channels_last: bool = field(default=False, metadata=_advanced("convert the model and its images to channels_last"))
    cudnn_benchmark: bool = field(default=False, metadata=_advanced("set torch.backends.cudnn.benchmark"))

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            object.__setattr__(self, name, canonical(name, getattr(self, name)))
            if getattr(self, name) not in known:
                raise UsageError(f"{name} '{getattr(self, name)}' is unknown: use one of {', '.join(known)}.")
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(option.default, bool) and not isinstance(value, bool):
                raise UsageError(f"{option.name} is {shown(value)}: use True or False.")
        object.__setattr__(self, "steps", whole("steps", self.steps, least=1, advice=", 3 show the steady state"))
        object.__setattr__(self, "lr", number("lr", self.lr, least=0.0))

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


@brief
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTraining:
    """The known settings of a past training: `Training`'s fields except `lr`, which does not change memory; None if unknown."""

    optimizer: str | None = None
    precision: str | None = None
    mode: str | None = None
    steps: int | None = None
    zero_grad: str | None = None
    overlap_inputs: bool | None = None
    checkpointing: bool | None = None
    channels_last: bool | None = None
    cudnn_benchmark: bool | None = None

    def training(self) -> Training:
        """Return a `Training` with defaults for the unknown fields."""
        known = {name: getattr(self, name) for name in TRAINING_FIELDS}
        return Training(**{name: value for name, value in known.items() if value is not None})


TRAINING_FIELDS: Final = tuple(one.name for one in fields(KnownTraining))


@brief
@dataclass(frozen=True, slots=True)
class Command:
    """A parsed training command: the program, its environment and its ranks.

    Attributes:
        words: The program and its arguments: `("train.py", "--epochs", "10")`, `("package.train",)`, `("print(1)",)`.
        is_module: Whether the program is a module's name, as for `python -m`.
        environment: Variables that a launcher would have set, in order.
        until: How far the command is followed: to the last of `Training.steps`, through the evaluation after them, or to the
            end.
        budget_s: Seconds after the last wanted step at which the command is stopped and the trace up to then counts; None: no
            limit.
        is_code: Whether the program is Python code, as for `python -c`.
        notes: Remarks on how the command was parsed, for the answer's warnings.
        world: The ranks of the job.
        ranks: The traced ranks, each in its own process.
        precise_values: Whether weights in main memory have their values.
    """

    words: tuple[str, ...]
    is_module: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    until: Until = "steps"
    budget_s: float | None = None
    is_code: bool = False
    notes: tuple[str, ...] = ()
    world: World = ALONE
    ranks: Ranks = "auto"
    precise_values: bool = False

    def __post_init__(self) -> None:
        if self.until not in get_args(Until):
            raise UsageError(f"until is {shown(self.until)}: use one of {', '.join(get_args(Until))}.")
        if self.budget_s is not None:
            object.__setattr__(self, "budget_s", number("budget_s (--budget-s)", self.budget_s, least=0.0))
        self.world.chosen(self.ranks)

    @property
    def program(self) -> str:
        """The script's path, the module's name, or the code."""
        return self.words[0]


@brief
@dataclass(frozen=True, slots=True)
class Job:
    """A job: exactly one of `target`, `model` and `command`, on a device. A wrong value raises a UsageError.

    Attributes:
        device: The card's model.
        target: `torchvision:NAME`, `timm:NAME`, `hf:ORG/NAME`, `hf:MODEL_TYPE`, `hf:CONFIG.json`,
            `package.module:factory`, `file.py:factory`.
        model: A module's structure, or a callable that builds one, pickled without weights by
            `tracer.program.meta_pickle.dumps`.
        command: A training script and its arguments.
        batch: TensorSpecs in the shape of the model's input: one, a tuple (positional) or a dict (keywords).
        labels: Labels that the loss compares with the output; None: the model's own loss, or the mean of its output.
        sizes: Sizes of the batch of a registry's model. Until the tracer has made the batch from them, `batch` is None.
        num_classes: Number of classes of a torchvision, timm or Hugging Face model; None: the model's default.
        loss: A pickled callable (output, labels) or (output, batch); None: chosen by the kind of output.
        training: Training settings; for a command, only `steps` counts.
        adapter: LoRA or QLoRA on an `hf:` target; None: the model as its target builds it.
        parallel: How a model is spread over ranks; None: a single rank. A command sets its own ranks.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the job, which overrides its own code and the caller's environment; None: their
            setting applies (`tracer/protocol/alloc_conf.py`).
        stack: Software of the card's machine where it differs from this machine; it selects the cuDNN that answers and the
            CUDA context.
        memory_bytes: The card's size, if it differs from the device's own.
        has_card: Whether a card or its size was named; if not, the default card's rules apply, and nothing is a verdict.
        search_path: The job's import path (`sys.path`).
        working_folder: The folder in which the job runs.
    """

    device: Device
    target: str | None = None
    model: bytes | None = None
    command: Command | None = None
    batch: Batch = None
    labels: TensorSpec | None = None
    sizes: Sizes | None = None
    num_classes: int | None = None
    loss: bytes | None = None
    training: Training = Training()
    adapter: Adapter | None = None
    parallel: Parallel | None = None
    alloc_conf: str | None = ""
    stack: Stack | None = None
    memory_bytes: int | None = None
    has_card: bool = True
    search_path: tuple[str, ...] = field(default=(), repr=False)
    working_folder: str = "."

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise UsageError(f"device is {shown(self.device)}: give a card's name, one of {', '.join(DEVICES)}.")
        if not isinstance(self.stack, Stack | None):
            raise UsageError(f"stack is {shown(self.stack)}: give versions as text, for example 'torch==2.8.0'.")
        if not isinstance(self.alloc_conf, str | None):
            raise UsageError(
                f"alloc_conf is {shown(self.alloc_conf)}: give text as in PYTORCH_CUDA_ALLOC_CONF, '' for torch's"
                " defaults, or None for the environment's setting."
            )
        if self.num_classes is not None:
            self._set("num_classes", whole("num_classes", self.num_classes, least=0))
            if (self.target or "").partition(":")[0] not in NAMES_CLASSES:
                raise UsageError(
                    f"num_classes (--num-classes) is for torchvision:, timm: and hf:, not for '{self.target}': pass it as an "
                    f'argument of the factory, for example file.py:factory?{{"classes": {self.num_classes}}}.'
                )
        if self.memory_bytes is not None:
            # User input is checked for a missing unit elsewhere: our own searches may go below the size of any card.
            self._set("memory_bytes", whole("memory_bytes", self.memory_bytes, least=1))
        if self.parallel is not None:
            self._check_parallel(self.parallel)
        if self.adapter is not None:
            self._check_adapter(self.adapter)
        if "cudaMallocAsync" in (self.alloc_conf or ""):
            raise UsageError(
                "alloc_conf selects backend:cudaMallocAsync, which leaves memory to the driver's pool: only PyTorch's own "
                "allocator (backend:native) can be estimated."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_parallel(self, parallel: Parallel) -> None:
        if self.command is not None:
            raise UsageError(f"parallel is '{parallel}': a command sets its own ranks. Omit the option.")
        if parallel.kind == "ddp" and self.training.mode == "infer":
            raise UsageError("parallel is 'ddp', which is for training: inference ranks run independently. Omit the option.")

    def _check_adapter(self, adapter: Adapter) -> None:
        if (self.target or "").partition(":")[0] != "hf":
            raise UsageError(
                f"{adapter.option} is for hf: targets, not for {self.target or 'a model object'}: wrap the model with peft in "
                "its factory, and omit the option."
            )
        if adapter.is_quantized and self.parallel is not None and self.parallel.is_sharded:
            raise UsageError(
                f"--qlora with parallel (--parallel) {self.parallel} is not built here: 4-bit weights are sharded only with a "
                "storage type of the script's own. Use --lora, or vramcast run -- and the script."
            )

    @property
    def world(self) -> World:
        """All ranks of the job."""
        if self.command is not None:
            return self.command.world
        return self.parallel.world if self.parallel is not None else ALONE

    def with_training(self, **changes: Any) -> Job:
        """Return the job with some training settings changed."""
        return replace(self, training=replace(self.training, **changes))

    def with_inputs(self, inputs: Inputs | None) -> Job:
        """Return the job with the inputs that a tracer made from its sizes; None: it made none."""
        if inputs is None:
            return self
        return replace(self, batch=inputs.batch, labels=inputs.labels, sizes=inputs.sizes)

    def with_sizes(self, **sizes: int | None) -> Job:
        """Return the job of a registry's model with some of its sizes changed: `seq=2048`. Its inputs are made again.

        Raises:
            UsageError: The batch was given tensor by tensor, so it has no sizes.
        """
        if self.sizes is None:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in sizes)
            raise UsageError(
                f"{given} is for a model's name alone, but the job gives its batch tensor by tensor: omit --batch."
            )
        return replace(self, batch=None, labels=None, sizes=self.sizes.changed(**sizes))

    def with_batch(self, batch_size: int) -> Job:
        """Return the job with another batch size: the first dimension of every input and label, or the size to make them."""
        if self.sizes is not None:
            return self.with_sizes(batch_size=batch_size)

        def resized(leaf: Any) -> Any:
            return leaf.with_batch(batch_size) if isinstance(leaf, TensorSpec) and leaf.shape else leaf

        return replace(self, batch=map_batch(self.batch, resized), labels=map_batch(self.labels, resized))

    @property
    def varies(self) -> bool:
        """True if an input or label has another shape from batch to batch."""
        return any(spec.varies for spec in specs_in(self.batch, self.labels))

    @property
    def input_bytes(self) -> int:
        """Bytes of one batch with its labels on the card, in the job's precision; 0 for a command."""
        low = self.training.precision in ("bf16", "fp16")
        specs = specs_in(self.batch, self.labels)
        return sum(spec.size_bytes // 2 if low and spec.dtype == "float32" else spec.size_bytes for spec in specs)

    @property
    def total_bytes(self) -> int:
        """Size of the job's card, in bytes."""
        return self.memory_bytes if self.memory_bytes is not None else self.device.total_bytes
