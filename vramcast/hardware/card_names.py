"""The many names of a card, from nvidia-smi, Slurm and people: `NVIDIA A100-SXM4-80GB`, `gpu:a100:2`, `A100 80G`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vramcast.core.text import shorten
from vramcast.core.units import GIB
from vramcast.hardware.device import Device, squeezed

_GRES: Final = re.compile(r"(?:gres[:/])?gpu[:/=](.*?)(?:[:=]\d+)?(?:\(.*\))?")  # spec: sbatch(1), --gres
_SLICE: Final = re.compile(r"\d+g\.\d+gb")  # spec: profiles in NVIDIA's MIG guide
_MEMORY: Final = re.compile(r"(?<![\w.])(\d{1,3})\s?(?:gib|gb|g)\b|(?<=\d)[\s:-](\d\d)$")
_FORM: Final = re.compile(r"(sxm|pcie|nvl)\d?(?![a-z])")
_MOBILE: Final = re.compile(r"mobile|notebook")
_NO_PART: Final = re.compile(r"gpu|generation|hbm\d?e?|\bmig\b")  # words that distinguish no cards
_SHORT: Final = re.compile(r"(a?\d000|\d{4})(?!\d)")  # 4090, a6000: the line RTX is left out
_LEAST_SHARE, _MOST_SHARE = 0.9, 1.01  # arbitrary: of the memory that a shop states; error correction takes 6 %
_LEAST_LIKENESS: Final = 0.85  # arbitrary: rxt4090 for rtx4090
_NO_CARD: Final = re.compile(r"(cuda|cpu|gpu|mps|auto)(:\d*)?")  # spec: torch.device


@dataclass(frozen=True, slots=True)
class CardName:
    """The parts of a name.

    Attributes:
        model: The model without maker and separators: `rtx4090laptop`, `a100`.
        form: `sxm`, `pcie` or `nvl`; "" if not stated.
        memory_gib: The stated memory; 0 if not stated.
        profile: The profile of a MIG slice; "" for a whole card.
    """

    model: str
    form: str
    memory_gib: int
    profile: str

    @classmethod
    def of(cls, text: str) -> CardName:
        """Return the parts of a name."""
        text = text.lower().strip()
        if gres := _GRES.fullmatch(text):
            text = gres[1]
        text, profile = _without(_SLICE, text.replace("_", " "))
        text, memory = _without(_MEMORY, text.strip(" -"))
        text, form = _without(_FORM, text)
        model = squeezed(_NO_PART.sub("", _MOBILE.sub("laptop", text)))
        return cls(f"rtx{model}" if _SHORT.match(model) else model, form, int(memory or 0), profile)

    def means(self, card: Device) -> bool:
        """Return whether this may be a name of the card: no part contradicts it."""
        known = [CardName.of(name) for name in (card.key, card.name, *card.aliases)]
        forms = {one.form for one in known if one.form}
        return (
            self.model in {one.model for one in known}
            and self.profile in {one.profile for one in known}
            and (not self.form or not forms or self.form in forms)
            and (not self.memory_gib or self.memory_gib in {one.memory_gib for one in known} or self._is_size_of(card))
        )

    def _is_size_of(self, card: Device) -> bool:
        return _LEAST_SHARE <= card.total_bytes / (self.memory_gib * GIB) <= _MOST_SHARE

    @property
    def line(self) -> str:
        """The letters before the number: `rtx`, `a`."""
        return re.match(r"[a-z]*", self.model)[0]  # type: ignore[index]

    @property
    def number(self) -> str:
        """The first number: `4090`, `100`."""
        return next(iter(re.findall(r"\d+", self.model)), "")

    @property
    def variant(self) -> str:
        """The letters after the number: `ti`, `laptop`, `s`."""
        return self.model.partition(self.number)[2] if self.number else ""


def _without(pattern: re.Pattern[str], text: str) -> tuple[str, str]:
    """Return a text without the first match of a pattern, and the match's first group, or all of it."""
    found = pattern.search(text)
    if found is None:
        return text, ""
    return f"{text[: found.start()]} {text[found.end() :]}", next(filter(None, found.groups()), found[0])


def unknown(text: str, cards: Iterable[Device]) -> str:
    """Return a message for an unknown card, which names related ones.

    Args:
        text: The name.
        cards: The known cards.
    """
    if _NO_CARD.fullmatch(text.lower()):
        return f"'{text}' is no model of a card: give the one that the job will have, for example rtx4090 (vramcast devices)."
    wanted = CardName.of(text)
    if not wanted.model and wanted.memory_gib:
        return f"'{text}' is a size, not a card: give it with --memory."
    names = {card.key: CardName.of(card.key) for card in cards}
    family = _family(wanted, names)
    size = f"{wanted.memory_gib or 12}GiB"
    like = family[0] if family else "rtx3090"
    same = [key for key in family if names[key].model == wanted.model or _is_misspelt(wanted, names[key])]
    hint = f"Did you mean '{same[0]}'? " if same else ""
    related = f"Related: {', '.join(family)} (vramcast devices lists all)" if family else "vramcast devices lists all that are"
    return (
        f"Card '{shorten(text)}' is not known. {hint}{related}. For another card, give the closest one and its own memory "
        f'(--on {like} --memory {size}), or a file, card.toml, with a [[card]] of key = "{shorten(squeezed(text)) or "mine"}", '
        f'like = "{like}" and memory = "{size}".'
    )


def _family(wanted: CardName, names: dict[str, CardName]) -> list[str]:
    """Return the cards of the same generation (rtx40..), else those of the same line or close to it; the closest first."""
    whole = {key: one for key, one in names.items() if bool(one.profile) == bool(wanted.profile)}

    def of(start: str) -> list[str]:
        return [key for key, one in whole.items() if one.model.startswith(start)]

    found = of(f"{wanted.line}{wanted.number[:-2]}") if wanted.line and wanted.number[:-2] else []
    found = found or [key for key in whole if whole[key].line == wanted.line]
    found = found or [key for key in whole if _is_misspelt(wanted, whole[key])]
    return sorted(found, key=lambda key: _distance(wanted, whole[key]))


def _is_misspelt(wanted: CardName, known: CardName) -> bool:
    """Return whether only letters before the number differ a little: an RTX 4060 Ti is no RTX 4060, and an H100 no A100."""
    alike = difflib.SequenceMatcher(None, wanted.model, known.model).ratio() >= _LEAST_LIKENESS
    return alike and wanted.number == known.number and wanted.variant == known.variant


def _distance(wanted: CardName, known: CardName) -> tuple[bool, int, bool, bool, bool, float]:
    """Return how far a card is from the wanted one: by its number first, then by its variant, memory, form and letters.

    Digits in another order are a slip of the finger: 4009 is nearer to 4090 than to 4050.
    """
    return (
        sorted(wanted.number) != sorted(known.number),
        abs(int(wanted.number or 0) - int(known.number or 0)),
        wanted.variant != known.variant,
        wanted.memory_gib != known.memory_gib,
        wanted.form != known.form,
        -difflib.SequenceMatcher(None, wanted.model, known.model).ratio(),
    )
