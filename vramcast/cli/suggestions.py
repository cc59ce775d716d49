"""The meanings of a wrong word of the command line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

# Options by the names that other tools give them; the right side may have a value.
OTHER_NAMES: Final = {
    "--accelerator": "--on",
    "--amp": "--precision amp-bf16",
    "--autocast": "--precision amp-bf16",
    "--batchsize": "--batch-size",
    "--bf16": "--precision bf16",
    "--bs": "--batch-size",
    "--card": "--on",
    "--confidence": "--level",
    "--context": "--seq",
    "--context-length": "--seq",
    "--dtype": "--precision",
    "--epochs": "--steps",
    "--eval": "--mode infer",
    "--fp16": "--precision fp16",
    "--fsdp": "--parallel fsdp",
    "--gpu": "--on",
    "--gpus": "--world-size",
    "--grad-checkpointing": "--checkpointing",
    "--gradient-checkpointing": "--checkpointing",
    "--html": "--report",
    "--image-resolution": "--image-size",
    "--img-size": "--image-size",
    "--inference": "--mode infer",
    "--input-shape": "--batch",
    "--learning-rate": "--lr",
    "--mixed-precision": "--precision amp-bf16",
    "--max-length": "--seq",
    "--max-seq-length": "--seq",
    "--micro-batch-size": "--batch-size",
    "--n-gpus": "--world-size",
    "--ngpus": "--world-size",
    "--nproc": "--world-size",
    "--num-gpus": "--world-size",
    "--optim": "--optimizer",
    "--per-device-train-batch-size": "--batch-size",
    "--quantile": "--level",
    "--resolution": "--image-size",
    "--seq-len": "--seq",
    "--seq-length": "--seq",
    "--sequence-length": "--seq",
    "--shape": "--batch",
    "--strategy": "--parallel",
    "--target": "TARGET, without an option's name",
    "--vram": "--memory",
}
_OF_PYTHON: Final = dict.fromkeys(  # what only the Python function takes
    ("--loss", "--criterion", "--loss-fn"), "loss= of vramcast.estimate in Python; here --labels selects the usual loss"
)
_UNKNOWN_VERB: Final = re.compile(r"argument VERB: invalid choice: '([^']*)'")
_WRONG_VALUE: Final = re.compile(r"argument \S+: invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN_OPTIONS: Final = re.compile(r"(?<!\S)--[\w-]+")


def hint(message: str, options: Collection[str], verbs: Collection[str]) -> str:
    """Return what is meant by the wrong words in a message of argparse, as the end of that message; "" if nothing is close.

    Args:
        message: The message.
        options: Options of the verb.
        verbs: The verbs.
    """
    if unknown := _UNKNOWN_VERB.search(message):
        return _asked(difflib.get_close_matches(unknown[1], verbs, 1))
    if wrong := _WRONG_VALUE.search(message):
        known = re.findall(r"[\w-]+", wrong[2])
        return _asked([one for one in known if wrong[1].lower() in one] or difflib.get_close_matches(wrong[1], known, 2))
    if not message.startswith("unrecognized arguments: "):
        return ""
    wrongs = _UNKNOWN_OPTIONS.findall(message)
    meant = {wrong: found for wrong in wrongs if (found := meant_option(wrong, options))}
    if len(wrongs) == 1:
        return _asked(list(meant.values()))
    return "".join(f"; {wrong}: did you mean {found}?" for wrong, found in meant.items())


def meant_option(wrong: str, options: Collection[str]) -> str:
    """Return the option of a verb that is meant by an unknown one; "" if none is close."""
    spelt = wrong.replace("_", "-").lower()
    if spelt in options:
        return spelt
    found = OTHER_NAMES.get(spelt)
    if found is not None and (not found.startswith("--") or found.split()[0] in options):
        return found
    return _OF_PYTHON.get(spelt) or next(iter(difflib.get_close_matches(spelt, options, 1)), "")


def _asked(meant: list[str]) -> str:
    return f": did you mean {' or '.join(meant)}?" if meant else ""
