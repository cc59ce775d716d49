"""Replay a recorded PyTorch memory history in the allocator simulator and compare it event by event.

    vramcast replay snapshot.pickle
    vramcast replay snapshot.pickle.gz --what-if common --cards 24GiB,40GiB --context 500MiB

SNAPSHOT is a file of torch.cuda.memory._dump_snapshot() (also gzipped), or a trace of vramcast (.npz). Nothing in it is
executed. Exit code 0: it was replayed, whether the results agree or not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vramcast.cli import options as shared
from vramcast.cli import values, what_if_options
from vramcast.cli.streams import answer, say
from vramcast.cli.terminal import progress
from vramcast.core.errors import UsageError
from vramcast.core.units import gib, parse_bytes
from vramcast.simulator.replay import Replay, replay
from vramcast.simulator.trace_edits import with_context
from vramcast.tracer.format.snapshot import read_trace
from vramcast.views import save
from vramcast.views.text import draw as draw_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="a memory history (pickle, also gzipped), or a trace (.npz)")
    parser.add_argument(
        "--device-index",
        type=values.count(0),
        metavar="N",
        help="device of a history with several; default: the one with the most events",
    )
    parser.add_argument(
        "--context",
        metavar="SIZE",
        type=values.checked(parse_bytes),
        default=0,
        help="memory of the process outside the allocator, for --cards: 500MiB",
    )
    shared.add_plot(parser)
    what_if_options.add_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    questions = what_if_options.Questions(options)
    trace = read_trace(options.snapshot, options.device_index)
    if not len(trace):
        raise UsageError(
            f"'{options.snapshot}' has no history of this device: record one with torch.cuda.memory._record_memory_history()."
        )
    with progress(f"replaying {len(trace):,} events"):
        found = replay(trace)
    if options.context:
        trace = with_context(trace, [(0, options.context)])
    more, text = questions.answers(trace)
    if options.plot and options.plot != "-":
        save(trace, options.plot, title=Path(options.snapshot).name)
    chart = draw_text(trace, title=Path(options.snapshot).name) if options.plot == "-" else ""
    if options.json:
        answer(json.dumps({**found.to_dict(), **more}))
        say(chart, end="")
    else:
        answer(_text(found))
        answer(text + chart, end="")
    return 0


def _text(found: Replay) -> str:
    start = "cold" if found.starts_cold else "warm: earlier allocations are rebuilt from the final state"
    layout = {True: "equal", False: "different", None: "not recorded"}[found.final_layout_equal]
    lines = [
        f"events           {found.events:>12,}   starts {start}; settings {found.settings}",
        f"addresses        {found.address_matches:>12,}   of {found.allocations:,} allocations predicted",
        f"segment events   {found.segments_matched:>12,}   of {found.segments_recorded:,} predicted, "
        f"{found.segments_predicted - found.segments_matched:,} extra",
        f"final layout     {layout:>12}",
        f"reserved peak    {gib(found.peaks['reserved'].simulated):>12}   recorded {gib(found.peaks['reserved'].recorded)}",
        f"allocated peak   {gib(found.peaks['allocated'].simulated):>12}   recorded, without unsplit remainders: "
        f"{gib(found.peaks['allocated'].recorded)}",
    ]
    return "\n".join([*lines, *found.mismatches])
