"""The table of speed in docs/evidence.md: the CPU time of estimates and that of `import torch`, and their host memory.

    python -m benchmarks.speed.command_line            print the table
    python -m benchmarks.speed.command_line --write    write it into docs/evidence.md (`make speed`)
    python -m benchmarks.speed.command_line --check    fail if a ratio is 15 % larger than the page's (`make speed-check`)

Each row is measured with `import torch` next to it (the faster of two), in turns, and its ratio is the median: a slower or
busy machine changes both. CPU times are user and system time of all processes; host memory is that of the job's
process. "first ever" compiles the stand-ins and the simulator and asks cuDNN; "cold" has both in the cache; "warm" repeats a
call on one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import tables
from benchmarks.accuracy.runner import ROOT
from vramcast.core.process_tree import descendants, running
from vramcast.core.units import GIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.verdict import EXIT_CODES
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec

PAGE: Final = ROOT / "docs" / "evidence.md"
COLUMNS: Final = ("job", "CPU time / `import torch`", "CPU s", "`import torch`, CPU s", "host memory")
MOST_GROWTH: Final = 1.15  # spec: the aim
TURNS: Final = 3  # arbitrary
WARM_CALLS: Final = 10  # arbitrary: the clock of /proc has ticks of 10 ms
IMPORT_TORCH: Final = (sys.executable, "-c", "import torch")
# The published shape of Llama 3 70B. spec: Llama 3 model card and its config.json
LLAMA_70B: Final = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
RESNET: Final = ("torchvision:resnet50", "--batch", "32x3x224x224", "--labels", "32:int64<1000")
_8_RANKS: Final = ("--parallel", "fsdp", "--world-size", "8")
LLAMA_8B: Final = (
    "hf:meta-llama/Llama-3.1-8B",
    "--parallel",
    "fsdp",
    "--world-size",
    "8",
    "--batch-size",
    "1",
    "--seq",
    "2048",
)


class Spent(NamedTuple):
    """The cost of something: CPU time and host memory."""

    cpu_s: float
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: what each turn took, and its `import torch`."""

    name: str
    turns: tuple[tuple[Spent, Spent], ...]

    @property
    def ratio(self) -> float:
        """CPU time / that of `import torch`, the median of the turns."""
        return statistics.median(own.cpu_s / torch.cpu_s for own, torch in self.turns)

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        own_s, torch_s = (statistics.median(turn[at].cpu_s for turn in self.turns) for at in range(2))
        host_bytes = statistics.median(own.host_bytes for own, _ in self.turns)
        return [self.name, f"{self.ratio:.2f}", f"{own_s:.2f}", f"{torch_s:.2f}", f"{host_bytes / GIB:.2f} GiB"]


def command(words: tuple[str, ...], **environment: str) -> Spent:
    """Return what a command took, all its processes included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {**os.environ, **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs, torch here, vramcast elsewhere
    done = subprocess.run(words, capture_output=True, text=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in EXIT_CODES.values():
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    host_bytes = json.loads(done.stdout)["host_peak_bytes"] if done.stdout else 0
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, host_bytes)


def estimate(words: tuple[str, ...], **environment: str) -> Spent:
    """Return what an estimate on the command line took."""
    return command((sys.executable, "-m", "vramcast", "estimate", *words, "--json"), **environment)


def warm(job: Job) -> Spent:
    """Return what a repeated call took."""
    estimator = Estimator(tracer="nullgpu")
    for _ in range(2):  # the first starts the worker, the second warms its imports
        found = estimator.estimate_job(job)
    before = _ticks()
    for _ in range(WARM_CALLS):
        estimator.estimate_job(job)
    ticks = _ticks() - before
    return Spent(ticks / os.sysconf("SC_CLK_TCK") / WARM_CALLS, found.max_resident_bytes)


def _ticks() -> int:
    found, own = running(), os.getpid()
    return sum(found[number].ticks for number in (own, *descendants(own)) if number in found)


def measured(folder: Path) -> list[Row]:
    """Return the rows; `folder` is empty."""
    cache = str(folder / "cache")
    config = folder / "llama-3-70b.json"
    config.write_text(json.dumps(LLAMA_70B))
    tokens = "1x2048:int64<128256"
    llama = (f"hf:{config}", "--batch", f"input_ids={tokens}", "--batch", f"labels={tokens}")
    adamw = ("--precision", "bf16", "--optimizer", "adamw", "--on", "h200")
    job = Job(device("h200"), target=RESNET[0], batch=TensorSpec.parse(RESNET[2]), labels=TensorSpec.parse(RESNET[4]))
    works: tuple[tuple[str, int, Callable[[], Spent]], ...] = (
        ("ResNet-50 batch 32, 3 steps, first ever: compiles", 1, lambda: estimate(RESNET, VRAMCAST_CACHE=cache)),
        ("the same, cold command line", TURNS, lambda: estimate(RESNET, VRAMCAST_CACHE=cache)),
        ("the same with fake tensors", TURNS, lambda: estimate((*RESNET, "--tracer", "fake"), VRAMCAST_CACHE=cache)),
        ("the same, warm call", TURNS, lambda: warm(job)),
        ("Llama 3 70B shape, bf16, AdamW, 1 x 2048 tokens", 1, lambda: estimate((*llama, *adamw))),
        ("Llama 3.1 8B, FSDP on 8 ranks, the same", 1, lambda: estimate((*LLAMA_8B, *adamw))),
    )
    command(IMPORT_TORCH)  # reads its files
    rows = []
    for name, turns, work in works:
        rows.append(Row(name, tuple((work(), min(command(IMPORT_TORCH) for _ in range(2))) for _ in range(turns))))
        print(tables.row(*rows[-1].cells()), file=sys.stderr, flush=True)
    return rows


# ------------------------------------------------------------------------------------------------ the page
def written(page: str, rows: list[Row]) -> str:
    """Return the page with the rows in place of its table of speed."""
    return page.replace(_table(page), tables.table(COLUMNS, [row.cells() for row in rows]))


def ratios(page: str) -> dict[str, float]:
    """Return the page's ratios by the name of the row."""
    lines = [line.strip("| ").split(" | ") for line in _table(page).splitlines()[2:]]
    return {cells[0]: float(cells[1]) for cells in lines}


def _table(page: str) -> str:
    found = re.search(rf"^{re.escape(tables.row(*COLUMNS))}\n(?:\|.*\n?)+", page, re.MULTILINE)
    if found is None:
        sys.exit(f"{PAGE} has no table with the columns {', '.join(COLUMNS)}.")
    return found[0].rstrip("\n")


def grown(rows: list[Row], known: dict[str, float]) -> list[str]:
    """Return the rows with a ratio much larger than the known one, in words."""
    return [
        f"{row.name}: {row.ratio:.2f} times `import torch`; the page says {known.get(row.name, 0):.2f}"
        for row in rows
        if row.ratio > MOST_GROWTH * known.get(row.name, 0)
    ]


def main() -> int:
    """Measure, and print, write or check the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true", help="write the table into docs/evidence.md")
    choice.add_argument("--check", action="store_true", help="exit with 1 if a ratio has grown by 15 %%")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder))
    print(tables.table(COLUMNS, [row.cells() for row in rows]))
    page = PAGE.read_text(encoding="utf-8")
    if options.write:
        PAGE.write_text(written(page, rows), encoding="utf-8")
    wrong = grown(rows, ratios(page)) if options.check else []
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
