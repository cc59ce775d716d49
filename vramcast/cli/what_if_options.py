"""Options of the verbs that replay a trace with other settings or cards, or explain fragmentation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from vramcast.cli.help_text import ANSWER, group
from vramcast.core.errors import UsageError
from vramcast.hardware.cards import card_bytes

if TYPE_CHECKING:
    from vramcast.simulator.settings import Settings
    from vramcast.tracer.format.trace import Trace

# arbitrary: settings that people try first
COMMON: Final = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    answers = group(parser, ANSWER)
    answers.add_argument(
        "--what-if",
        action="append",
        metavar="CONF",
        type=str,  # "": the allocator's own
        help="replay the requests under PYTORCH_CUDA_ALLOC_CONF=CONF; repeatable; 'common' tries the usual settings",
    )
    answers.add_argument("--cards", metavar="LIST", help="cards for --what-if, as names or sizes: rtx4090,12GiB")
    answers.add_argument(
        "--fragmentation", action="store_true", help="list the blocks that pin half-empty segments, and their modules"
    )


def parse_cards(text: str | None) -> list[int]:
    """Return the sizes in bytes of `rtx4090,12GiB`."""
    if text is None:
        return []
    names = [name for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--cards '{text}' is not a list of cards: write names or sizes, for example rtx4090,12GiB.")
    return [card_bytes(name) for name in names]


def parse_settings(texts: list[str]) -> list[Settings]:
    """Return the settings of the --what-if options, each once."""
    from vramcast.simulator.settings import Settings

    chosen = [Settings.parse(conf) for text in texts for conf in (COMMON if text == "common" else (text,))]
    return list(dict.fromkeys(chosen))


class Questions:
    """The questions that the options ask about a trace; constructed before it exists, so that a wrong option fails at once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._settings = parse_settings(options.what_if or [])
        self._cards = parse_cards(options.cards)
        self._fragmentation = options.fragmentation
        if self._cards and not self._settings:
            raise UsageError("--cards needs --what-if: name the settings to replay, for example --what-if common.")

    def answers(self, trace: Trace) -> tuple[dict[str, Any], str]:
        """Return the answers as JSON, and as text for the terminal, "" without questions.

        Args:
            trace: A trace with segment events; its CONTEXT rows reduce every card.
        """
        from vramcast.simulator.fragmentation import fragmentation
        from vramcast.simulator.what_if import case_table, what_if

        said: dict[str, Any] = {}
        texts = []
        if self._settings:
            cases = what_if(trace, self._settings, [None, *self._cards])
            said["what_if"] = [case.to_dict() for case in cases]
            texts.append(case_table(cases))
        if self._fragmentation:
            found = fragmentation(trace)
            said["fragmentation"] = found.to_dict()
            texts.append(str(found))
        return said, "".join(f"\n{text}\n" for text in texts)
