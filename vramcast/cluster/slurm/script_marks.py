"""`#VRAMCAST` lines of a batch script, which describe its job. The service reads the script's commands.

#VRAMCAST target=hf:bert batch=input_ids=8x128:int64<30522 optimizer=adamw
#VRAMCAST off
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Final

from vramcast.cluster.answer import value_of
from vramcast.cluster.slurm.options import CARD_OPTIONS

MARK: Final = "#VRAMCAST"
_LISTS: Final = frozenset({"batch"})
_CARDS: Final = re.compile(
    rf"(?<![\w-])(--gres|-G|--tres-per-task|{'|'.join(f'--{name}' for name in CARD_OPTIONS)})(?!\S*shard)"
)


@dataclass(frozen=True, slots=True)
class Marks:
    """The content of a script's `#VRAMCAST` lines.

    Attributes:
        named: The job, as the body of a request; None: no line names one.
        is_off: Whether the script opts out.
        steps_ask_for_cards: Whether an `srun` in it may request `gpu` itself: such a step fails in a job that has shards.
        unknown: A word that is not understood; "": none.
    """

    named: dict[str, Any] | None = None
    is_off: bool = False
    steps_ask_for_cards: bool = False
    unknown: str = ""


def read_marks(script: str) -> Marks:
    """Return the `#VRAMCAST` lines of a script."""
    named: dict[str, Any] | None = None
    for rest in (line.removeprefix(MARK) for line in script.splitlines() if line.startswith(MARK)):
        if rest.strip() == "off":
            return Marks(is_off=True)
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            return Marks(unknown=rest.strip())
        named = named if named is not None else {}
        for key, equals, value in (word.partition("=") for word in words):
            if not equals:
                return Marks(unknown=key)
            if key in _LISTS:
                named.setdefault(key, []).append(value)
            else:
                named[key] = value_of(value)
    return Marks(named, steps_ask_for_cards=_asks_for_cards(script))


def _asks_for_cards(script: str) -> bool:
    """Return whether a script may have steps that request cards: it has `srun` and such an option outside comments."""
    said = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    return "srun" in said and bool(_CARDS.search(said))
