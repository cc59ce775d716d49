"""One row of the survey of public training scripts.

Words and variables may hold `{data:NAME}`, the folder of stub data of that name (`benchmarks/scripts/data.py`), and `{out}`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One run.

    Attributes:
        name: As in the table of the first survey where it was there.
        repository: Owner and name; its folder below the sources is called as the repository is. Empty: of an installed package.
        folder: Below that, where the command is typed.
        command: What is typed after `--`.
        device: The card.
        environment: Variables of the shell, `NAME=value`; PYTHONPATH's parts are below the repository.
        options: Of `vramcast run`, beside the card.
        packages: What must be importable, or the run is left out.
        linked: Stub data which the script wants below its own folder: name -> place.
        own: Part of the message with which the script ends for a reason of its own; empty: it should be answered.
        note: What is compared with its numbers, or what was mended in its sources.
    """

    name: str
    repository: str
    command: str
    folder: str = ""
    device: str = "rtx4090"
    environment: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    linked: tuple[tuple[str, str], ...] = ()
    own: str = ""
    note: str = ""
