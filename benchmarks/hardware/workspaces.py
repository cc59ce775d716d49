"""cuDNN workspaces by convolution of a job, and those of the second and third plan.

    python -m benchmarks.hardware.workspaces torchvision:mobilenet_v2 128x3x224x224 a100-40gb

Traces the job with an empty oracle cache, so that the cache then holds each graph that PyTorch queried, and queries the first
three plans of each. Also prints the reserved peak with and without workspaces.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks import tables
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle, PlanDoesNotBuild
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
from vramcast.tracer.nullgpu.library.build import find_torch
from vramcast.tracer.protocol.run_options import RunOptions

_PLANS = 3  # arbitrary
_OPERATIONS = {10: "forward", 11: "backward filter", 12: "backward data"}  # spec: cudnnBackendDescriptorType_t, cuDNN 9


def describe(graph: str) -> str:
    """Return a convolution's operation and its tensors' dimensions in readable form."""
    operation = re.search(r"801=15:\[(\d+)\{", graph)
    kind = _OPERATIONS.get(int(operation[1]), f"operation {operation[1]}") if operation else "?"
    shapes = [dims.replace(",", "x") for dims in re.findall(r"902=3:([\d,]+);", graph)]
    return f"{kind}: {', '.join(shapes)}"


def questions(cache: Path) -> Iterator[tuple[int, str]]:
    """Yield (heuristic mode, graph) of every queried list of engines."""
    with closing(sqlite3.connect(cache)) as database:
        for (request,) in database.execute("SELECT DISTINCT request FROM answer_3 WHERE request LIKE 'HEUR %'"):
            _, mode, graph = request.split(" ", 2)
            yield int(mode), graph


def plans(oracle: CudnnOracle, mode: int, graph: str) -> list[str]:
    """Return the workspaces of the first plans in MiB, "-" for a plan that does not build."""
    sizes = []
    for index in range(min(_PLANS, len(oracle.heuristics(mode, graph)))):
        try:
            sizes.append(f"{oracle.plan(mode, index, graph).workspace_bytes / MIB:,.0f}")
        except PlanDoesNotBuild:
            sizes.append("-")
    return sizes


def main(target: str, batch: str, card: Device) -> None:
    """Trace the job, query its graphs, and print the table."""
    spec = TensorSpec.parse(batch)
    job = Job(card, target=target, batch=spec, labels=TensorSpec((spec.shape[0],), "int64"))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cudnn.sqlite"
        site = find_torch().site
        cudnn = Path(os.environ.get("VRAMCAST_CUDNN_DIR") or site / "nvidia" / "cudnn" / "lib")
        oracle = CudnnOracle(cudnn, oracle_libraries(cudnn), cache=cache, device=card.cudnn_record())
        for name, ask_cudnn in (("without workspaces", False), ("with workspaces", True)):
            tracer = NullGpuTracer(ask_cudnn=ask_cudnn, start_oracle=lambda _: oracle.__enter__())
            trace = tracer.trace(job, RunOptions(limited=False)).trace
            tracer.close()
            assert trace is not None
            print(f"{target} {batch} on {card.key}, {name}: reserved {trace.header['peaks']['reserved'] // MIB:,} MiB")
        asked = list(questions(cache))
        with CudnnOracle(cudnn, oracle_libraries(cudnn), cache=cache, device=card.cudnn_record()) as again:
            rows = [(plans(again, mode, graph), describe(graph)) for mode, graph in asked]
    rows.sort(key=lambda row: -float(row[0][0].replace(",", "")) if row[0] and row[0][0] != "-" else 0.0)
    print("\n" + tables.heading(("1st plan, MiB", "2nd", "3rd", "operation: tensors"), "rrrl"))
    for sizes, text in rows[:12]:
        print(tables.row(*sizes, *[""] * (_PLANS - len(sizes)), text))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit((__doc__ or "").strip())
    main(sys.argv[1], sys.argv[2], device(sys.argv[3]))
