"""The form of the page, and its question: an address gives the request of the API, the command line and the Python call."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final
from urllib.parse import urlencode

from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.core.units import gib
from vramcast.hardware.cards import DEVICES, every_card
from vramcast.jobs import hub
from vramcast.jobs.job import CHOICES
from vramcast.jobs.optimizers import is_code
from vramcast.jobs.registry_names import exact_targets, installed_names, meant_targets
from vramcast.report.repeat import call

LARGEST: Final = "largest"  # in an address: also search for the largest batch
_TASKS: Final = {
    "train": "train all weights",
    "lora": "train LoRA adapters",
    "qlora": "train QLoRA adapters",
    "infer": "run without training",
}
_ADAPTERS: Final = ("lora", "qlora")
_SPREADS: Final = {"ddp": "a copy on each (DDP)", "fsdp": "sharded over all (FSDP2)"}
_OPTIMIZERS: Final = (  # arbitrary: the most used ones; an address may name any other
    "adam", "adamw", "sgd", "sgdm", "adafactor", "rmsprop", "adamw_8bit", "paged_adamw_8bit", "lion_8bit",
)  # fmt: skip
_SIZES: Final = {"batch_size": "Batch size", "seq": "Sequence length", "image_size": "Image size"}
_SWITCHES: Final = ("checkpointing", LARGEST)
_MOST_SUGGESTED: Final = 300  # arbitrary: of timm's 1,400 models, the most used ones: a phone loads the list with each page
_LONGEST: Final = 1000  # arbitrary: characters of a value


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form.

    Attributes:
        name: Its name in an address.
        label: Its label.
        kind: Its kind: text, number, list or checkbox.
        choices: Labels by value, of a list.
        default: The value that an address leaves out.
        hint: A text in the empty field.
    """

    name: str
    label: str
    kind: str = "number"
    choices: Mapping[str, str] | None = None
    default: str = ""
    hint: str = ""


def fields() -> tuple[Field, ...]:
    """Return the fields of the form."""
    cards = {card.key: f"{card.name.removeprefix('NVIDIA ')}, {gib(card.total_bytes)}" for card in every_card()}
    return (
        Field("target", "Model", "text", hint="torchvision:resnet50, gpt2, Qwen/Qwen2.5-0.5B"),
        Field("device", "Card", "list", dict(sorted(cards.items(), key=lambda card: card[1]))),
        Field("cards", "Number of cards", default="1"),
        Field("parallel", "On several cards", "list", _SPREADS, "ddp"),
        Field("task", "Task", "list", _TASKS, "train"),
        Field("rank", "Rank of the adapters", default="16"),
        *(Field(name, label, hint="the usual one") for name, label in _SIZES.items()),
        Field("precision", "Precision", "list", {one: one for one in CHOICES["precision"]}, "fp32"),
        Field("optimizer", "Optimizer", "list", {one: one for one in _OPTIMIZERS}, "adam"),
        Field("checkpointing", "Gradient checkpointing", "checkbox"),
    )


@cache
def suggestions() -> tuple[str, ...]:
    """Return the names that the field of the model suggests."""
    ids = [f"{one.scheme}:{id_}" for one in (hub.TRANSFORMERS, hub.DIFFUSERS) for id_ in hub.table_ids(one)]
    vision = (("torchvision", None), ("timm", _MOST_SUGGESTED))
    return (*ids, *(f"{registry}:{name}" for registry, most in vision for name in installed_names(registry)[:most]))


class UnknownModel(UsageError):
    """No model has this name, or several have it; `meant` has those that the client may have meant."""

    def __init__(self, name: str, exact: Sequence[str] = ()) -> None:
        self.meant = tuple(exact or _meant(name.rpartition(":")[2][:_LONGEST]))
        hint = "choose one of those below" if self.meant else "write torchvision:NAME, timm:NAME or hf:ORG/NAME"
        known = f"{len(exact)} models have the name" if exact else "This service knows no model"
        super().__init__(f"{known} {shown(name)}: {hint}.")


@lru_cache(maxsize=1000)  # close names of thousands take some 50 ms
def _meant(name: str) -> list[str]:
    return meant_targets(name)


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """A question of the page.

    Attributes:
        address: The fields of its address that differ from their defaults.
        job: The request of the API that asks it, without the waiting time.
    """

    address: Mapping[str, str]
    job: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The job in a few words."""
        device = DEVICES.get(self.job["device"])
        cards = f" on {self.job['world_size']} x " if "world_size" in self.job else " on "
        return f"{self.job['target']}{cards}{device.name if device else self.job['device']}"

    def link(self, **changed: str) -> str:
        """Return the address of this question with some fields changed."""
        return link({**self.address, **changed})

    def command(self, verb: str = "estimate", *more: str, without: str = "") -> str:
        """Return the command line that gives the same answer."""
        words = ["vramcast", verb, self.job["target"]]
        for name, value in self.job.items():
            if name not in ("target", without) and value is not None:
                option = "--on" if name == "device" else f"--{name.replace('_', '-')}"
                words += [option] if value is True else [option, str(value)]
        return shlex.join([*words, *more])

    @property
    def python(self) -> str:
        """The Python lines that give the same answer."""
        options = {name: value for name, value in self.job.items() if name != "target" and value is not None}
        return f"import vramcast\n\nprint({call('vramcast.estimate', [repr(self.job['target'])], options)})"


def link(address: Mapping[str, str]) -> str:
    """Return the address of the page for some fields; empty ones are left out."""
    return f"/?{query}" if (query := urlencode({name: value for name, value in address.items() if value})) else "/"


def cleaned(values: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an address without empty ones, defaults, and those that have no effect on this task."""
    defaults = {one.name: one.default for one in fields()}
    kept = {name: value.strip() for name, value in values.items() if value.strip() not in ("", defaults.get(name))}
    idle = {"rank"} if kept.get("task") not in _ADAPTERS else set()
    idle |= {"parallel"} if "cards" not in kept else set()
    return {name: value for name, value in kept.items() if name not in idle}


def read(address: Mapping[str, str]) -> PageQuestion:
    """Return the question of a cleaned address.

    Raises:
        UsageError: A field is missing, unknown or wrong.
    """
    known = {one.name: one for one in fields()}
    if wrong := [name for name in address if name not in (*known, LARGEST)]:
        raise UsageError(f"The address has {shown(wrong[0])}: use {', '.join([*known, LARGEST])}.")
    for name, value in address.items():
        if len(value) > _LONGEST:
            raise UsageError(f"{name} has {len(value)} characters: give at most {_LONGEST}.")
        if name in _SWITCHES and value != "on":
            raise UsageError(f"{name} is {shown(value)}: write {name}=on, or leave it out.")
    if is_code(address.get("optimizer", "")):
        raise UsageError(f"Optimizer is {shown(address['optimizer'])}, which is code: choose one of {', '.join(_OPTIMIZERS)}.")
    for name in ("target", "device"):
        if name not in address:
            raise UsageError(f"The {known[name].label.lower()} is missing: name one.")

    def chosen(name: str) -> str:
        value, choices = address.get(name, known[name].default), known[name].choices or {}
        if value not in choices:
            raise UsageError(f"{known[name].label} is {shown(value)}: choose one of {', '.join(choices)}.")
        return value

    def number(name: str) -> int:
        value = address.get(name, known[name].default)
        if not (len(value) < 10 and value.isascii() and value.isdecimal() and int(value)):
            raise UsageError(f"{known[name].label} is {shown(value)}: give a whole number from 1 on.")
        return int(value)

    job: dict[str, Any] = {"target": _target(address["target"])}
    job |= {name: number(name) for name in _SIZES if name in address}
    task = chosen("task")
    job |= {task: f"r={number('rank')}"} if task in _ADAPTERS else {"mode": "infer"} if task == "infer" else {}
    job |= {name: address[name] for name in ("precision", "optimizer") if name in address}
    job |= {"checkpointing": True} if "checkpointing" in address else {}
    job |= {"parallel": chosen("parallel"), "world_size": number("cards")} if "cards" in address else {}
    return PageQuestion(address, {**job, "device": address["device"], "level": None})  # as on the command line


def _target(text: str) -> str:
    """Return the TARGET of a model's name, alone or with its registry.

    Raises:
        UnknownModel: No model has exactly this name, or several have.
    """
    if ":" in text:
        return text
    found = exact_targets(text)
    if len(found) == 1:
        return found[0]
    raise UnknownModel(text, found)
