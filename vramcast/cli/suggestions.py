"""The meanings of a wrong word of the command line."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.hardware.cards import device
from vramcast.jobs.commands.launchers import BY_WORDS, find
from vramcast.jobs.job import SYNONYMS
from vramcast.jobs.other_names import OTHER_NAMES
from vramcast.jobs.registry_names import meant_targets
from vramcast.jobs.targets import REGISTRIES

_OF_PYTHON: Final = dict.fromkeys(  # what only the Python function takes
    ("--loss", "--criterion", "--loss-fn"), "loss= of vramcast.estimate in Python; here --labels selects the usual loss"
)
# Verbs by the names that people try first.
OTHER_VERBS: Final = {
    "cards": "devices",
    "fit": "check",
    "fits": "check",
    "gpus": "devices",
    "help": "--help",
    "info": "doctor",
    "memory": "estimate",
    "predict": "estimate",
    "profile": "run",
    "trace": "run",
    "version": "--version",
}
_LEAST_LIKENESS: Final = 0.7  # arbitrary: --js is like --json, --lr is not like --plot
_WRONG_VALUE: Final = re.compile(r"\S+: invalid choice: '([^']*)' \(choose from (.*)\)")
_OPTION: Final = re.compile(r"--?[A-Za-z][\w-]*(?==|$)")
_SHAPE: Final = re.compile(r"\d+(x\d+)+(:.*)?")
_STARTS_SCRIPTS: Final = re.compile(r".*\.py|python[\d.]*|uv|sbatch|srun")
_HISTORY: Final = re.compile(r".*\.(pickle|pkl|npz)(\.gz)?")


def explained(message: str) -> str:
    """Return a message of argparse about a value, with the value that was meant, if one is close."""
    wrong = _WRONG_VALUE.match(message)
    if wrong is None:
        return message
    known = {one: one for one in re.findall(r"[\w-]+", wrong[2])}
    known |= {other: value for one in SYNONYMS.values() for other, value in one.items() if value in known}
    given = wrong[1].lower()
    close = [one for one in known if given in one] or difflib.get_close_matches(given, known, 2)
    return message + _asked(list(dict.fromkeys(known[one] for one in close))[:2])


def unrecognized(words: Sequence[str], options: Collection[str], *, takes_command: bool) -> str:
    """Return a message for unknown words after a verb, with the option that was meant, if one is close.

    Args:
        words: The words.
        options: Options of the verb.
        takes_command: Whether the verb takes a command, which has options of its own.
    """
    if not takes_command and (_STARTS_SCRIPTS.fullmatch(words[0]) or find(words, BY_WORDS)):
        command = shorten(shlex.join(words))
        return f"this verb takes a TARGET, not a command: vramcast check --on CARD -- {command}, once for each change of it"
    wrong = [match[0] for word in words if (match := _OPTION.match(word))]
    meant = {word: found for word in wrong if (found := meant_option(word, options))}
    if not wrong and (found := _meant_argument(words[0], options)):
        meant = {words[0]: found}
    message = f"unrecognized arguments: {' '.join(words)}"
    if len(wrong) > 1:
        message += "".join(f"; {word}: did you mean {found}?" for word, found in meant.items())
    else:
        message += _asked(list(meant.values()))
    if takes_command and wrong:
        message = f"{message.removesuffix('?')}{'?' if meant else '.'} Options of the script follow it: -- train.py {wrong[0]}"
    return message


def _meant_argument(word: str, options: Collection[str]) -> str:
    """Return the option that is missing before an argument; "" if none is meant."""
    if "--batch" in options and _SHAPE.fullmatch(word):
        return f"--batch {word}"
    if "--on" in options:
        with suppress(UsageError):
            device(word)
            return f"--on {word}"
    return ""


def meant_command(words: Sequence[str], verbs: Collection[str]) -> str:
    """Return a message for a command line without a verb, with the verb that was meant, if one is close.

    Args:
        words: The words of the command line; the first is no verb.
        verbs: The verbs.
    """
    first, all_words = words[0], shorten(shlex.join(words))
    verb = OTHER_VERBS.get(first) or next(iter(difflib.get_close_matches(first, verbs, 1)), "")
    if _STARTS_SCRIPTS.fullmatch(first) or find(words, BY_WORDS):
        meant = [f"vramcast run -- {all_words}"]
    elif _HISTORY.fullmatch(first):
        meant = [f"vramcast replay {all_words}"]
    elif ":" in first:
        meant = [f"vramcast estimate {all_words}"]
    elif verb:
        meant = [f"vramcast {verb}"]
    else:
        meant = [f"vramcast estimate {shorten(shlex.join([target, *words[1:]]))}" for target in meant_targets(first)[:1]]
    return f"'{shorten(first)}' is not a verb" + (_asked(meant) or f": use {', '.join(verbs)}")


def simpler_inputs(target: str | None, batch: Sequence[str] | None) -> str:
    """Return the advice for a failed job that needs no --batch, because its TARGET names a model; "" for another job."""
    if not batch or (target or "").partition(":")[0] not in REGISTRIES:
        return ""
    return " [without --batch and --labels, --batch-size, --seq and --image-size give the model's usual inputs]"


def meant_option(wrong: str, options: Collection[str]) -> str:
    """Return the option of a verb that is meant by an unknown one; "" if none is close."""
    spelt = wrong.replace("_", "-").lower()
    if spelt in options:
        return spelt
    found = OTHER_NAMES.get(spelt)
    if found is not None and (not found.startswith("--") or found.split()[0] in options):
        return found
    return _OF_PYTHON.get(spelt) or next(iter(difflib.get_close_matches(spelt, options, 1, _LEAST_LIKENESS)), "")


def _asked(meant: list[str]) -> str:
    return f": did you mean {' or '.join(meant)}?" if meant else ""
