"""A trace under other circumstances: the same requests, other settings of the allocator or another card.

    simulate(trace, Settings.parse("expandable_segments:True"), Card(total_bytes=12 << 30, context_bytes=500 << 20))

Limit: the requests are those of the trace. A job which cannot have the workspace of a convolution goes on with cuDNN's next
plan; what that one asks for is not in the trace, and taken to be nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.simulator.card import Card
from vramcast.simulator.engine import Engine, play
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.trace_maker import retrace
from vramcast.tracer.format.trace import Phase, Trace


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where a job ends: the request which the card cannot serve."""

    row: int  # of the trace which was simulated
    size_bytes: int
    step: int
    phase: str
    op: str | None
    module: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What became of a trace's requests.

    Attributes:
        trace: The trace which was simulated.
        out_of_memory: Where the job ends; None: it runs to its end.
    """

    trace: Trace
    settings: Settings
    card: Card
    requests: Requests
    outcome: Outcome

    @property
    def allocated(self) -> int:
        """Peak of live blocks in bytes, as `torch.cuda.max_memory_allocated()` would say."""
        return self.outcome.statistics.allocated.peak

    @property
    def reserved(self) -> int:
        """Peak of segments in bytes, as `torch.cuda.max_memory_reserved()` would say."""
        return self.outcome.statistics.reserved.peak

    @property
    def retries(self) -> int:
        """How often the allocator gave everything back and asked the driver again."""
        return self.outcome.statistics.n_retries

    @property
    def fits(self) -> bool:
        """Whether the job runs to its end."""
        return self.outcome.stopped_at is None

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where the job ends; None when it does not."""
        if self.outcome.stopped_at is None:
            return None
        trace, row = self.trace, int(self.requests.source[self.outcome.stopped_at])
        if row < 0:  # a block which is older than the trace
            size_bytes = int(self.requests.size_bytes[self.outcome.stopped_at])
            return OutOfMemory(row, size_bytes, -1, Phase.BUILD.name.lower(), None, None)
        operator = trace.operator_at(row)
        return OutOfMemory(
            row,
            int(trace.size_bytes[row]),
            int(trace.step[row]),
            Phase(trace.phase[row]).name.lower(),
            operator.name or None,
            operator.module or None,
        )

    def replayed(self) -> Trace:
        """Return the trace as it would have been recorded: its requests, the simulated addresses and segments.

        It ends where memory runs out. Blocks which are older than the trace become its first rows.
        """
        said = {name: getattr(self.card, name) for name in ("total_bytes", "context_bytes", "limited")}
        header = {"simulated": {"settings": str(self.settings), **said}}
        return retrace(self.trace, self.requests, self.outcome, self.settings, header)


def simulate(
    trace: Trace,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    requests: Requests | None = None,
    columns: bool = True,
    engine: Engine = "auto",
) -> Simulation:
    """Return what the requests of `trace` come to under `settings` on `card`.

    Args:
        trace: What was traced.
        settings: Of the allocator; default: torch's.
        card: A fresh card; default: an unlimited one.
        requests: Those of the trace, where they are simulated many times; default: taken from it.
        columns: Whether `replayed` is wanted; without, a simulation takes half the time.
        engine: See `vramcast.simulator.engine.play`.
    """
    settings, card = settings or Settings(), card or Card()
    asked = Requests.of(trace) if requests is None else requests
    return Simulation(trace, settings, card, asked, play(asked, settings, card, columns=columns, engine=engine))
