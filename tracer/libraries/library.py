"""Foreign libraries that need a repair or a stand-in in a traced command.

Each is a file of this folder, or a folder of `tracer/engines`, with one `LIBRARY`, which `registry.py` finds. To support
another library, add its file and its test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from vramcast.hardware.device import Device
from vramcast.jobs.ranks import World
from vramcast.tracer.program.training_loop import Course


class Forgets(Protocol):
    """An object that follows values."""

    def forget(self, tensor: Any) -> None:
        """Treat a tensor's values as unknown from here on."""


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """The parts of a process of a traced command that repairs use.

    Attributes:
        folder: The job's own folder, which is removed with it.
        world: All ranks of the job.
        card: The job's card.
        course: The course of the job in this process.
        values: Follows values; None: values are not followed.
        note_kv_cache: Receives the tensors of a KV cache.
        set_driver: Takes memory as a driver does: bytes now, and for each graph and node of a graph.
        before_stop: Called before the job ends early.
        accounts: Receives the accounts of a serving engine.
    """

    folder: str
    world: World
    card: Device
    course: Course
    values: Forgets | None
    note_kv_cache: Callable[[list[Any]], None]
    set_driver: Callable[[int, int, int], None]
    before_stop: Callable[[], None] = lambda: None
    accounts: dict[str, Any] = field(default_factory=dict)


Installed: TypeAlias = Callable[[TracedProcess], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Library:
    """A foreign library.

    Attributes:
        name: Its name.
        in_program: Installs repairs before the program runs, in each Python of the job; they wait for the library's import.
        on_card: The same, before a process touches the card.
    """

    name: str
    in_program: Installed | None = None
    on_card: Installed | None = None
