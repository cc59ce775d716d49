"""`srun` before a command: what it starts, how often, and whether it asks for cards of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

# Options of srun which take no value. # spec: srun(1), Slurm 22.05 to 25.05
_FLAGS: Final = frozenset(
    {"--allocations", "--contiguous", "--disable-status", "--exact", "--exclusive", "--interactive", "--label", "--no-allocate"}
    | {"--no-kill", "--oversubscribe", "--overcommit", "--overlap", "--preserve-env", "--pty", "--quiet", "--quit-on-interrupt"}
    | {"--reboot", "--spread-job", "--test-only", "--unbuffered", "--use-min-nodes", "--verbose", "--whole", "--hold"}
    | {"--kill-on-bad-exit", "--immediate", "--get-user-env", "--external", "--multi-prog", "--propagate", "--nice"}
)
_FLAG_LETTERS: Final = frozenset("lkuvKQsEHIOXZ")
_TASKS: Final = ("--ntasks", "-n")
_CARDS: Final = ("--gres", "--gpus", "-G", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--tres-per-task")


@dataclass(frozen=True, slots=True)
class Step:
    """What a command starts.

    Attributes:
        words: The command, without `srun`.
        is_step: Whether `srun` starts it.
        tasks: How often, where srun's options say so.
        asks_for_cards: Whether they ask for `gpu`.
    """

    words: list[str]
    is_step: bool = False
    tasks: int | None = None
    asks_for_cards: bool = False


def without_srun(words: list[str]) -> Step | None:
    """Return what a command starts; None: its options are not understood."""
    if not words or PurePosixPath(words[0]).name != "srun":
        return Step(words)
    options: list[tuple[str, str]] = []
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and name not in _FLAGS:
                if not rest:
                    return None
                value, rest = rest[0], rest[1:]
        else:
            name, value = word[:2], word[2:]
            if not value and name[1:] not in _FLAG_LETTERS:
                if not rest:
                    return None
                value, rest = rest[0], rest[1:]
        options.append((name, value))
    if not rest:
        return None
    tasks = [value for name, value in options if name in _TASKS]
    if tasks and not tasks[-1].isdecimal():
        return None
    asks = any(name in _CARDS and "shard" not in value for name, value in options)
    return Step(rest, True, int(tasks[-1]) if tasks else None, asks)
