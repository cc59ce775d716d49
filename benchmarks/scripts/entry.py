"""A row of the survey of public training scripts.

Words and variables may hold `{data:NAME}`, the folder of stub data of that name (`benchmarks/scripts/data.py`), and `{out}`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One run.

    Attributes:
        name: Name in the table of the first survey, if it was there.
        repository: Owner and name; the repository's name is that of its folder below the sources. Empty for an installed
            package.
        folder: Folder below that in which the command runs.
        command: Words after `--`.
        device: The card.
        environment: Variables of the shell, `NAME=value`; PYTHONPATH's parts are below the repository.
        options: Options of `vramcast run` in addition to the card.
        packages: Packages that must be importable; else the run is left out.
        linked: Stub data that the script needs below its own folder: name -> place.
        own: Part of the message with which the script ends for a reason of its own; empty if it should be answered.
        note: The measurement to compare with, or the changes to its sources.
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
