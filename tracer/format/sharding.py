"""Which parameters of a job's ranks are sharded and which are not, module by module, as a trace's header tells it."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.core.errors import TraceFileError
from vramcast.tracer.format.trace import SHARDING, Trace


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds of a module's parameters. Sizes in bytes.

    Attributes:
        module: Path up to its first number, `layers.0`, or of what has none the module itself.
        full: All of them.
        sharded: This rank's part of those which are sharded.
        replicated: Those which each rank has whole.
    """

    module: str
    full: int
    sharded: int
    replicated: int


def sharding_of(trace: Trace) -> tuple[Held, ...]:
    """Return what the traced rank holds, in the model's order; nothing where it was not noted.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(SHARDING)
    if said is None:
        return ()
    try:
        return tuple(Held(str(module), *map(int, sizes)) for module, *sizes in said["modules"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's sharding is damaged ({type(error).__name__}: {error}): record it again.") from None


def are_shards_equal(trace: Trace) -> bool:
    """Return whether every rank's shards are known to have the same sizes."""
    said = trace.header.get(SHARDING)
    return isinstance(said, dict) and said.get("is_even") is True
