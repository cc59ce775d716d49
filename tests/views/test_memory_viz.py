"""Snapshots of `write_snapshot` in PyTorch's own tools: `torch.cuda._memory_viz`, and the web viewer's own code.

The viewer, torch/utils/viz/MemoryViz.js, is in PyTorch's repository and not in its wheels. The second half therefore needs
node, and a copy of that file named by $VRAMCAST_MEMORY_VIZ or in torch. It runs the viewer's unpickler, its annotation, the
data of its timelines and its replay of the allocator; only the drawing library (d3) is a stub.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.tracer.format.snapshot import snapshot_from_trace, write_snapshot
from vramcast.tracer.format.trace import Action, Category, Trace

# d3 is a function that returns itself for every call and attribute, and counts as 0.
STUB = """
import {readFileSync} from "node:fs";
const stub = new Proxy(() => stub, {
  get: (_target, key) => key === Symbol.toPrimitive ? () => 0 : stub,
  apply: () => stub,
});
globalThis.window = globalThis.document = stub;
"""
DRIVER = """
{
  const [path, max_entries, n_draws] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
  const bytes = readFileSync(path);
  const snapshot = await unpickle(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  const answer = {events: {}, segments: snapshot.segments.length, blocks: snapshot.segments.map(s => s.blocks.length)};
  snapshot.device_traces[0].forEach((event, row) => {
    answer.events[event.action] = (answer.events[event.action] || 0) + 1;
    event.row = row;
  });
  annotate_snapshot(snapshot);
  const events = snapshot.device_traces[0];
  answer.annotated = events.length;
  answer.categories = snapshot.categories;
  answer.plots = [false, true].map(segments => {
    const data = process_alloc_data(snapshot, 0, segments, max_entries);
    return {max_size: data.max_size, elements: data.elements_length, drawn: data.allocations_over_time.length};
  });
  const view = MemoryView(stub, stub, snapshot, 0);
  answer.replay = [];
  for (let i = 0; i < n_draws && i < events.length; i++) {
    const index = Math.floor(i * (events.length - 1) / Math.max(Math.min(n_draws, events.length) - 1, 1));
    const [reserved, allocated] = view.draw(index);
    // The viewer makes one event "free" of a request and its completion.
    answer.replay.push([events[index].row + (events[index].action === "free" ? 1 : 0), reserved, allocated]);
  }
  process.stdout.write(JSON.stringify(answer));
}
"""


@pytest.fixture
def exported(tmp_path: Path, job_trace: Trace) -> Path:
    path = tmp_path / "snapshot.pickle"
    write_snapshot(job_trace, path)
    return path


# ------------------------------------------------------------------------------------------------ torch.cuda._memory_viz
@pytest.fixture
def memory_viz() -> Any:
    return pytest.importorskip("torch.cuda._memory_viz")


def embedded_snapshots(page: str) -> list[Any]:
    """Return the snapshots inside of a page of `trace_plot` or `segment_plot`."""
    files = re.search(r"const local_files = (\[.*\])\n", page)
    assert files is not None
    return [pickle.loads(base64.b64decode(file["base64"])) for file in json.loads(files[1])]


def test_torch_lists_every_event(memory_viz: Any, exported: Path) -> None:
    lines = memory_viz.trace(pickle.loads(exported.read_bytes())).splitlines()
    # Names are assigned in the order of allocations: b is the parameter, d the activation, e the workspace.
    assert [line.partition(" #")[0].partition("(")[0] for line in lines[2:15]] == [
        "a = cudaMalloc", "b = a[0:3.9KiB]", "c = cudaMalloc", "d = c[0:10.0MiB]", "e = c[10485760:1.0MiB]",
        "del e", "# free completed for e 1.0MiB", "del d", "f = a[4096:1000.0B]", "# free completed for d 10.0MiB",
        "del f", "# free completed for f 1000.0B", "cudaFree",
    ]  # fmt: skip


def test_torch_sums_segments(memory_viz: Any, exported: Path) -> None:
    lines = memory_viz.segsum(pickle.loads(exported.read_bytes())).splitlines()
    # At the end, one segment of 2 MiB with the parameter of 4,000 B remains.
    assert lines[1:4] == ["segments: 1", "total_reserved: 2.0MiB", "total_allocated: 3.9KiB"]


def test_torch_embeds_file_in_pages(memory_viz: Any, exported: Path, job_trace: Trace) -> None:
    snapshot = pickle.loads(exported.read_bytes())
    pages = [memory_viz.trace_plot(snapshot), memory_viz.trace_plot(snapshot, plot_segments=True)]
    pages.append(memory_viz.segment_plot(snapshot))
    assert [embedded_snapshots(page) for page in pages] == [[snapshot_from_trace(job_trace)]] * 3


# ------------------------------------------------------------------------------------------------ the web viewer
def viewer_file() -> Path:
    """Return the viewer's source; skip with the reason if there is none."""
    named = os.environ.get("VRAMCAST_MEMORY_VIZ")
    if named:
        return Path(named)
    torch = pytest.importorskip("torch")
    path = Path(torch.__file__).parent / "utils" / "viz" / "MemoryViz.js"
    if not path.exists():
        pytest.skip("this torch has no utils/viz/MemoryViz.js: name a copy from PyTorch's repository in VRAMCAST_MEMORY_VIZ")
    return path


@pytest.fixture
def viewer(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the viewer's own functions on a file in node, and returns the driver's output."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    source = viewer_file()
    folder = tmp_path / "viewer"
    folder.mkdir()
    (folder / "package.json").write_text('{"type": "module"}')
    for sibling in source.parent.glob("*.js"):
        shutil.copy(sibling, folder)
    text, n_imports = re.subn(r"^import\s+(.+?)\s+from\s+[\"']https?:[^\"']*[\"'];", _stubbed, source.read_text(), flags=re.M)
    assert n_imports >= 5
    (folder / "driver.js").write_text(STUB + text + DRIVER)

    def run(snapshot: Path, *, max_entries: int = 15000, n_draws: int = 50) -> dict[str, Any]:
        command = [node, str(folder / "driver.js"), str(snapshot), str(max_entries), str(n_draws)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        # The viewer may log; the answer is the last line.
        return dict(json.loads(ran.stdout.splitlines()[-1]))

    return run


def _stubbed(found: re.Match[str]) -> str:
    names = re.findall(r"\w+", found[1].removeprefix("* as "))
    return "".join(f"const {name} = stub;" for name in names)


def requested_bytes(trace: Trace) -> Any:
    """Return the requested bytes of live blocks after every row, which the viewer calls allocated."""
    change = np.where(trace.action == Action.ALLOC, trace.size_bytes, 0)
    ended = np.flatnonzero((trace.action == Action.FREE_COMPLETED) & (trace.block >= 0))
    change[ended] = -trace.size_bytes[trace.block[ended]]
    return np.cumsum(change)


def check(said: dict[str, Any], trace: Trace, *, n_replayed: int) -> None:
    """Compare the viewer's answer with the trace."""
    assert trace.segments is not None
    assert trace.blocks is not None
    counts = Counter(Action(code).name.lower() for code in trace.action.tolist())
    assert said["events"] == dict(counts)
    assert said["segments"] == len(trace.segments.address)
    assert sum(said["blocks"]) == len(trace.blocks.address)
    # A free request directly followed by its completion becomes one event.
    together = (trace.action[:-1] == Action.FREE_REQUESTED) & (trace.action[1:] == Action.FREE_COMPLETED)
    together &= trace.address[:-1] == trace.address[1:]
    assert said["annotated"] == len(trace) - int(together.sum())
    live, reserved = requested_bytes(trace), trace.reserved_bytes()
    blocks, segments = said["plots"]
    assert (blocks["max_size"], blocks["elements"]) == (int(live.max()), counts["alloc"])
    assert (segments["max_size"], segments["elements"]) == (int(reserved.max()), counts["segment_alloc"])
    assert len(said["replay"]) == n_replayed
    assert said["replay"] == [[row, int(reserved[row]), int(live[row])] for row, _, _ in said["replay"]]


def test_viewer_reads_and_replays_file(viewer: Callable[..., dict[str, Any]], exported: Path, job_trace: Trace) -> None:
    said = viewer(exported)
    check(said, job_trace, n_replayed=said["annotated"])
    assert set(said["categories"]) == {"parameter", "activation", "workspace", "unknown"}


def test_viewer_respects_block_limit(viewer: Callable[..., dict[str, Any]], exported: Path) -> None:
    # One of them is the band of all blocks that are not drawn.
    assert [plot["drawn"] for plot in viewer(exported, max_entries=1)["plots"]] == [2, 2]


def test_viewer_reads_traced_job(
    viewer: Callable[..., dict[str, Any]], trace: Callable[..., Any], tiny_models: Path, tmp_path: Path
) -> None:
    job = trace(target=f"{tiny_models}:wide", batch="64x1024", labels="64x1024").trace
    write_snapshot(job, tmp_path / "job.pickle")
    said = viewer(tmp_path / "job.pickle")
    check(said, job, n_replayed=50)
    assert Category.GRADIENT.name.lower() in said["categories"]
