"""PyTorch's memory snapshots (pickles, also gzipped): the peaks of a recorded history, one run per device.

Nothing in the file is executed (`tracer.snapshot`). The history is replayed in the simulator: reserved is the recorded peak
of its segments; allocated is the simulator's if every event was predicted, because a history has requests, not blocks.
"""

from __future__ import annotations

import os

from vramcast.core.errors import UsageError
from vramcast.core.files import sha256_of
from vramcast.datasets.histories.reader import Tally
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.simulator.replay import replay
from vramcast.tracer.format.snapshot import read_snapshot, trace_from_snapshot
from vramcast.tracer.format.trace import Action, Trace


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run for each device with a history.

    Raises:
        TraceFileError: The file cannot be read, or is not a snapshot.
    """
    tally = Tally(path)
    snapshot = read_snapshot(path)
    name = sha256_of(path)[:16]
    for index in range(len(snapshot["device_traces"])):
        tally.rows += 1
        if not snapshot["device_traces"][index]:
            tally.skip("of devices without a history")
            continue
        with tally.guarded(f"device {index}"):
            tally.run([(f"device {index}", "")], _run, trace_from_snapshot(snapshot, index), tally, name, index)
    if not snapshot["device_traces"]:
        tally.note("the file has only segments: without a history its peaks are unknown")
    tally.note("a snapshot records neither the card nor the version of torch, nor whether the job continued")
    return tally.done()


def _run(trace: Trace, tally: Tally, name: str, index: int) -> Run:
    try:
        played = replay(trace)
        allocated = played.peaks["allocated"].simulated if played.exact else played.peaks["allocated"].recorded
        reserved, cold, exact = played.peaks["reserved"].recorded, played.starts_cold, played.exact
    except UsageError:  # neither segment events nor a layout
        allocated, reserved, cold, exact = trace.peak_live()[0], 0, True, False
    ooms = trace.size_bytes[trace.action == Action.OOM].tolist()
    messages = [] if cold else ["the history starts late: earlier allocations are rebuilt from the end"]
    messages += [] if exact else ["allocated counts the requests, not the blocks"]
    return Run(
        id=f"snapshot-{name}-{index}",
        workload=Workload(name=f"{tally.path.name} device {index}", gpus=1),
        passport=Passport(measured_by="torch memory history", how="allocator history"),
        measurement=Measurement(
            status="oom" if ooms else "unknown",
            allocated_bytes=allocated or None,
            reserved_bytes=max(reserved, allocated) if reserved else None,
            censored=bool(ooms),
            oom_requested_bytes=int(ooms[-1]) if ooms else None,
            ooms=len(ooms),
            message="; ".join(messages),
        ),
    )
