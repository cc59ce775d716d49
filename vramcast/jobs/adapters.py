"""LoRA and QLoRA as text: `r=16,alpha=32,target=q_proj+v_proj`.

Adapter   as a user gives it
Adapted   the tracer's answer, once the model exists: the adapter with peft's defaults, and its trained parameters
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shown

ALL_LINEAR: Final = "all-linear"
_KEYS: Final = ("r", "alpha", "dropout", "target")
_MODULE: Final = re.compile(r"[\w.]{1,200}")
_EXAMPLE: Final = "write, for example, r=16,alpha=32,dropout=0.05,target=q_proj+v_proj"


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank adapters on a frozen model. A wrong value raises a UsageError.

    None leaves a setting at peft's own default. spec: `peft.LoraConfig`: r 8, lora_alpha 8, lora_dropout 0, and the target
    modules that peft knows for the model type.

    Attributes:
        is_quantized: Whether the frozen linear layers are in 4 bits: QLoRA.
        r: Rank of the adapters.
        alpha: Numerator of their scale; it does not change the memory.
        dropout: Probability of the dropout before them.
        target: Names of the adapted modules, or only `all-linear`.
    """

    is_quantized: bool = False
    r: int | None = None
    alpha: int | None = None
    dropout: float | None = None
    target: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.r is not None:
            object.__setattr__(self, "r", whole(f"r of {self.option}", self.r, least=1))
        if self.alpha is not None:
            object.__setattr__(self, "alpha", whole(f"alpha of {self.option}", self.alpha, least=1))
        if self.dropout is not None:
            object.__setattr__(self, "dropout", number(f"dropout of {self.option}", self.dropout, least=0.0))
            if self.dropout >= 1:
                raise UsageError(f"dropout of {self.option} is {self.dropout}: give a probability below 1.")
        wrong = next((name for name in self.target if name != ALL_LINEAR and _MODULE.fullmatch(name) is None), None)
        if wrong is not None or (ALL_LINEAR in self.target and len(self.target) > 1):
            raise UsageError(
                f"target of {self.option} is {shown('+'.join(self.target))}: give module names, target=q_proj+v_proj, or "
                f"only target={ALL_LINEAR}."
            )

    @property
    def kind(self) -> str:
        """The method's usual name."""
        return "QLoRA" if self.is_quantized else "LoRA"

    @property
    def option(self) -> str:
        """The option of the command line that asks for it."""
        return "--qlora" if self.is_quantized else "--lora"

    def __str__(self) -> str:
        values = (self.r, self.alpha, self.dropout, "+".join(self.target) or None)
        return ",".join(f"{key}={value}" for key, value in zip(_KEYS, values, strict=True) if value is not None)


@dataclass(frozen=True, slots=True)
class ModelAdapters:
    """The adapters of a built model.

    Attributes:
        adapter: The adapters with every setting that peft chose.
        trainable: Number of trained parameters.
        whole: Of QLoRA, the number of frozen weights of blocks that are not in 4 bits, because they belong to no linear layer.
    """

    adapter: Adapter
    trainable: int
    whole: int = 0

    @property
    def title(self) -> str:
        """Kind and rank: `LoRA r=16`."""
        return f"{self.adapter.kind} r={self.adapter.r}"

    @property
    def words(self) -> str:
        """The adapters in words: `LoRA r=16 on q_proj, v_proj trains 6,815,744 parameters`."""
        return f"{self.title} on {', '.join(self.adapter.target)} trains {self.trainable:,} parameters"

    def to_dict(self) -> dict[str, Any]:
        """Return the adapters as JSON."""
        one = self.adapter
        return {
            "kind": one.kind.lower(),
            "r": one.r,
            "alpha": one.alpha,
            "dropout": one.dropout,
            "target": list(one.target),
            "trainable_parameters": self.trainable,
            "unquantized_parameters": self.whole if one.is_quantized else None,
        }


def parse(lora: str | None, qlora: str | None) -> Adapter | None:
    """Return the adapters of the options `--lora` and `--qlora`; None without one.

    Raises:
        UsageError: Both are given, or the text has another form.
    """
    if lora is not None and qlora is not None:
        raise UsageError("--lora and --qlora are both given: give --qlora for 4-bit base weights, or else --lora.")
    text = lora if qlora is None else qlora
    return None if text is None else _adapter(text, is_quantized=qlora is not None)


def _adapter(text: str, *, is_quantized: bool) -> Adapter:
    option = "--qlora" if is_quantized else "--lora"
    said: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = pair.strip().partition("=")
        if not equals or not value:
            raise UsageError(f"{option} is {shown(text)}, with {shown(pair)} for key=value: {_EXAMPLE}.")
        if key not in _KEYS:
            close = difflib.get_close_matches(key.removeprefix("lora_"), [*_KEYS, "rank"], n=1)
            hint = f"did you mean {'r' if close[0] == 'rank' else close[0]}?" if close else f"use {', '.join(_KEYS)}."
            raise UsageError(f"{option} has no {shown(key)}: {hint}")
        if key in said:
            raise UsageError(f"{option} gives {key} twice: give it once.")
        said[key] = value
    try:
        r, alpha = (int(said[key]) if key in said else None for key in ("r", "alpha"))
        dropout = float(said["dropout"]) if "dropout" in said else None
    except ValueError as error:
        raise UsageError(f"{option} is {shown(text)} ({error}): {_EXAMPLE}.") from None
    return Adapter(is_quantized, r, alpha, dropout, tuple(said["target"].split("+")) if "target" in said else ())
