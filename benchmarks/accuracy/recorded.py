"""Recorded allocator histories with public scripts, compared event by event with the scripts on the null GPU.

    python -m benchmarks.accuracy.recorded --sources FOLDER [--packages FOLDER] [--only TEXT] [--keep FOLDER]

FOLDER has the authors' repositories, one folder per owner, as `git archive` exports them. Each script runs to its end on the
null GPU. Requests and frees are compared by kind and size, in order, at the part of our history that matches the recording:
a recording may start after warm-up. Answers are stored in build/accuracy/recorded.jsonl, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.runner import BUILD, data_folder, read_rows
from benchmarks.tables import table
from vramcast.core.brief import every_field
from vramcast.core.errors import VramcastError
from vramcast.core.units import MIB
from vramcast.tracer.format.snapshot import read_snapshot

_TABLE: Final = "public/snapshots_index.csv"
_REQUESTS: Final = frozenset({"alloc", "free_requested"})  # spec: torch/cuda/_memory_viz.py; the program's requests
_SEGMENTS: Final = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap"})  # spec: as above
_AGREE: Final = 6  # arbitrary: consecutive equal events after which two histories count as aligned again
_FAR: Final = 600  # arbitrary: number of events within which they must realign
_ANCHOR: Final = 200  # arbitrary: first events of the recording to search for in our history
_TIMEOUT_S: Final = 1500.0  # arbitrary: 3.4 billion weights are first drawn on the host, and twenty sizes are compiled

Event = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Script:
    """A script that records a history.

    Attributes:
        owner: Owner of the repository, and name of its folder.
        words: The script and its arguments.
        paths: Folders for PYTHONPATH.
        device: The card that the repository names.
        alloc_conf: Allocator settings of the process.
        edit: A file, a text in it, and the text at the time of the recording, as its frames show.
    """

    owner: str
    words: tuple[str, ...]
    device: str
    paths: tuple[str, ...] = ("cs336-basics",)
    alloc_conf: str = ""
    edit: tuple[str, str, str] | None = None


_CLIFFKAI: Final = "cs336_systems/benchmark.py"
_BOLONGCHENG: Final = ("scripts/benchmark_base.py", "--mode", "profile", "--option", "fwd", "--model", "xl")
# A comment in the repository; two of the four recordings have its frame, and no graph.
_NO_GRAD: Final = (_BOLONGCHENG[0], "# @torch.no_grad()", "@torch.no_grad()")
# The command line does not pass the type to `profile`; the recording's name contains it.
_IN_BF16: Final = (
    _BOLONGCHENG[0],
    "context_length=args.context_length)",
    "context_length=args.context_length, dtype=dtype_map[args.dtype])",
)
# The recording's path in its repository -> its origin, from the index's column `script` and the repository's own notes.
# CliffKai names no card for the recordings; the notes of that week have results of an H100. sungdk0822's script has times of
# an A100.
SCRIPTS: Final[dict[str, Script]] = {
    **{
        f"result/memory_snapshot_{size}_{mode}.pickle": Script(
            "CliffKai", (_CLIFFKAI, "--model_size", size, "--mode", mode, "--profile_memory"), "h100"
        )
        for size, mode in (("small", "fwd"), ("medium", "bwd"), ("large", "bwd"), ("xl", "bwd"), ("2.7B", "bwd"))
    },
    **{
        f"memory_2.7b_{mode}_seq{seq}{low}.pickle": Script(
            "aimetrics",
            ("benchmarking.py", "--model_size", "2.7b", "--seq_len", str(seq), "--mode", mode, "--memory_profile")
            + (("--bf16", "--nvtx") if low else ()),  # frames of the recordings name the functions that --nvtx adds
            "h100",
        )
        for mode, seq, low in (
            ("forward", 128, "_bf16"),
            ("forward", 256, "_bf16"),
            ("train", 128, ""),
            ("train", 128, "_bf16"),
        )
    },
    **{
        f"benchmarks/memory_snapshot_xl_fwd_cl{seq}_dtypetorch.{dtype}.pickle": Script(
            "bolongcheng",
            (*_BOLONGCHENG, "--context_length", str(seq), "--dtype", {"float32": "fp32", "bfloat16": "bf16"}[dtype]),
            "b200",
            ("", "cs336-basics"),
            "expandable_segments:True",
            _IN_BF16 if dtype == "bfloat16" else _NO_GRAD if seq in (128, 2048) else None,
        )
        for seq, dtype in ((128, "float32"), (512, "float32"), (512, "bfloat16"), (2048, "float32"))
    },
    **{
        f"memory_snapshots/attn/dmodel{width}_seqlen{seq}_forwardpassonly_compile.pickle": Script(
            "sungdk0822", ("cs336_systems/benchmark.py",), "a100-80gb", ("", "cs336-basics")
        )
        for width in (16, 32, 64, 128)
        for seq in (256, 1024, 4096, 8192, 16384)
    },
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two histories, or the reason why there is only one.

    Attributes:
        recorded: Requests and frees of the recording; `here` those of our history, in the same window.
        equal: Number of equal events, in order.
        missing: Events only in the recording, by kind and bytes; `extra` has those only in our history.
        segments: Segment events, recorded and here.
    """

    path: str
    recorded: int = 0
    here: int = 0
    equal: int = 0
    missing: tuple[tuple[str, int], ...] = ()
    extra: tuple[tuple[str, int], ...] = ()
    segments: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    message: str = field(default="")

    @property
    def share(self) -> float:
        """Return the share of equal events among all of both."""
        return 2 * self.equal / max(self.recorded + self.here, 1)


def events_of(entries: Sequence[Mapping[str, Any]], kinds: frozenset[str] = _REQUESTS) -> list[Event]:
    """Return kind and bytes of a history's entries of these kinds."""
    return [(entry["action"], entry["size"]) for entry in entries if entry["action"] in kinds]


def start_of(recorded: Sequence[Event], ours: Sequence[Event]) -> int:
    """Return the position of the recording in our history: where its first events, and then its last, are most alike.

    Among equally good positions the last counts: a recording after warm-up belongs to a later step.
    """
    head, tail = recorded[:_ANCHOR], recorded[-_ANCHOR:]

    def alike(start: int) -> tuple[int, int, int]:
        end = start + len(recorded)
        first = sum(map(operator.eq, head, ours[start : start + len(head)]))
        return first, sum(map(operator.eq, tail, ours[end - len(tail) : end])), start

    return max(range(len(ours)), key=alike, default=0)


def aligned(a: Sequence[Event], b: Sequence[Event]) -> tuple[int, list[Event], list[Event]]:
    """Return the number of events of `a` in `b`, in order, and the events of only one of them before `a` ends.

    After a difference, the comparison continues at the nearest place with some equal events in a row; so the share is a lower
    bound.
    """
    i = j = equal = 0
    only_a: list[Event] = []
    only_b: list[Event] = []
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            i, j, equal = i + 1, j + 1, equal + 1
            continue
        step = _together(a, b, i, j)
        if step is None:
            break
        only_a += a[i : i + step[0]]
        only_b += b[j : j + step[1]]
        i, j = i + step[0], j + step[1]
    return equal, [*only_a, *a[i:]], only_b


def _together(a: Sequence[Event], b: Sequence[Event], i: int, j: int) -> tuple[int, int] | None:
    for total in range(1, _FAR):
        for left in range(total + 1):
            x, y = i + left, j + total - left
            ahead = a[x : x + _AGREE]
            if ahead and ahead == b[y : y + _AGREE]:
                return left, total - left
    return None


def compare(path: str, recorded: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], seconds: float) -> Comparison:
    """Return the comparison of two histories' entries."""
    theirs, all_ours = events_of(recorded), events_of(ours)
    start = start_of(theirs, all_ours)
    equal, missing, extra = aligned(theirs, all_ours[start:])
    here = equal + len(extra)
    seen = segments = 0
    for entry in ours:
        seen += entry["action"] in _REQUESTS
        # The history has a segment before the request that needs it.
        segments += start <= seen < start + here and entry["action"] in _SEGMENTS
    recorded_segments = len(events_of(recorded, _SEGMENTS))
    return Comparison(path, len(theirs), here, equal, tuple(missing), tuple(extra), (recorded_segments, segments), seconds)


def run(script: Script, history: Path, sources: Path, packages: Path | None) -> str:
    """Write the history of a script to `history`; return the last message."""
    home = (sources / script.owner).resolve()
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": script.alloc_conf} if script.alloc_conf else {**os.environ}
    added = [str(home / path) for path in script.paths] + ([str(packages.resolve() / script.owner)] if packages else [])
    environment["PYTHONPATH"] = os.pathsep.join([*added, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        *(sys.executable, "-m", "vramcast", "run", "--json", "--device", script.device, "--until", "end"),
        *("--budget-s", str(_TIMEOUT_S)),
        *(
            "--timeout",
            str(_TIMEOUT_S),
            "--snapshot",
            str(history.resolve()),
            "--",
            str(home / script.words[0]),
            *script.words[1:],
        ),
    ]
    history.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "benchmarks").mkdir()  # one of the scripts writes there
        if script.edit is not None:
            name, old, new = script.edit
            text = (home / name).read_text(encoding="utf-8")
            command[command.index(str(home / name))] = str(Path(folder, Path(name).name))
            Path(folder, Path(name).name).write_text(text.replace(old, new), encoding="utf-8")
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:500]


def compared(script: Script, rows: Sequence[Mapping[str, str]], options: argparse.Namespace) -> list[Comparison]:
    """Return the comparisons of one script's recordings."""
    started = time.perf_counter()
    name = hashlib.sha256(every_field(script).encode()).hexdigest()[:12]
    history = options.keep / f"{script.owner}-{name}.pickle"
    said = "" if history.exists() else run(script, history, options.sources, options.packages)
    seconds = time.perf_counter() - started
    try:
        ours = read_snapshot(history)["device_traces"][0]
    except VramcastError as error:
        return [Comparison(row["path"], seconds=seconds, message=said or str(error)) for row in rows]
    found = []
    for row in rows:
        path = data_folder() / "public" / "snapshots" / row["file"].replace("/", "__")
        try:
            recorded = read_snapshot(path)["device_traces"][int(row["device"] or 0)]
        except VramcastError as error:
            found.append(Comparison(row["path"], message=str(error)))
            continue
        found.append(compare(row["path"], recorded, ours, seconds))
    return found


def report(found: Sequence[Comparison]) -> str:
    """Return the table, and below it the differences, as Markdown."""
    rows: list[list[object]] = []
    notes = []
    for one in found:
        owner = SCRIPTS[one.path].owner
        name = f"{owner} {Path(one.path).name.removesuffix('.pickle').removeprefix('memory_').removeprefix('snapshot_')}"
        if one.message:
            rows.append([name, "-", "-", "-", "-", one.message[:100]])
            continue
        rows.append([
            name, f"{one.recorded:,}", f"{one.here:,}", f"{100 * one.share:.2f} %", f"{one.segments[0]} / {one.segments[1]}",
            f"-{len(one.missing)} +{len(one.extra)}",
        ])  # fmt: skip
        if one.missing or one.extra:
            notes.append(f"- {name}: {described(one)}")
    columns = ["history", "recorded", "here", "equal", "segment events", "only there, only here"]
    return "\n".join([table(columns, rows), "", *notes])


def described(one: Comparison, most: int = 6) -> str:
    """Return the most common requests of only one side."""
    parts = []
    for sign, events in (("-", one.missing), ("+", one.extra)):
        counted = Counter(size for kind, size in map(tuple, events) if kind == "alloc")
        parts += [f"{sign}{n} x {size / MIB:.3f} MiB" for size, n in counted.most_common(most)]
    return ", ".join(parts) or "frees alone, in another order"


def main() -> None:
    """Run what has no stored answer, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, metavar="FOLDER", help="the authors' repositories")
    parser.add_argument("--only", default="", metavar="TEXT", help="only recordings whose owner or path contains TEXT")
    keep_help = "folder to write these runs' histories to, and to read them from"
    parser.add_argument("--keep", type=Path, default=BUILD / "recorded", metavar="FOLDER", help=keep_help)
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FOLDER",
        help="each owner's own packages (FOLDER/OWNER), found before the installed ones",
    )
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    rows = [row for row in read_rows(_TABLE) if row["path"] in SCRIPTS and options.only in f"{row['repo']} {row['path']}"]
    out = BUILD / "recorded.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Comparison] = {}
    if out.exists() and not options.fresh:
        for line in out.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if not record["message"]:  # retry failures
                kept[record["path"]] = Comparison(**record)
    by_script: dict[Script, list[Mapping[str, str]]] = {}
    for row in rows:
        if row["path"] not in kept:
            by_script.setdefault(SCRIPTS[row["path"]], []).append(row)
    for script, its in by_script.items():
        for one in compared(script, its, options):
            kept[one.path] = one
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            said = one.message or f"{one.equal} of {one.recorded} and {one.here} equal"
            print(f"{script.owner} {one.path} {one.seconds:.0f} s: {said}", file=sys.stderr, flush=True)
    print(report([kept[row["path"]] for row in rows]))


if __name__ == "__main__":
    main()
