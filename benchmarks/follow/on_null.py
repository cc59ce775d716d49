"""The jobs of jobs.py on the null GPU, with and without a plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import VramcastError
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.client import NullGpuTracer

JOBS: Final = Path(__file__).with_name("jobs.py")
CARD: Final = "rtx4090"
MIB: Final = 1 << 20
N_TRACED: Final = 6


@dataclass(frozen=True)
class Asked:
    """A job of jobs.py with a deviation from its plan, and the plan; "" for none."""

    name: str
    n_steps: int
    plan: str = ""
    deviation: str = ""


@dataclass
class Ran:
    """The memory that a job took: `found` is what `jobs.measured` returns, `counts` the follower's."""

    found: dict[str, Any]
    counts: dict[str, Any] | None

    @property
    def device(self) -> list[int]:
        """Bytes that the device lost, after each step."""
        return list(self.found["device"])

    @property
    def most(self) -> int:
        """The most of these, or what torch had reserved at most."""
        return max([*self.device, self.found["stats"]["reserved_bytes.all.peak"]])


def command(name: str) -> list[str]:
    """Return the words that start a job, without its steps."""
    n_ranks = {"ranks": 2, "one_rank": 1}.get(name)
    return [*(["torchrun", "--nproc-per-node", str(n_ranks)] if n_ranks else [sys.executable]), str(JOBS), name]


def plan(name: str, folder: Path, *options: str) -> Path:
    """Make the plan of a job, as a user does."""
    from vramcast.cli.main import main

    path = folder / f"{name}.json"
    words = ["plan", "--on", CARD, "--pool", *options, "--steps", str(N_TRACED), "-o", str(path), "--", *command(name), "100"]
    if code := main(words):
        raise RuntimeError(f"{' '.join(words)} ended with {code}")
    return path


def run_script(name: str, n_steps: int, plan: Path | None, folder: Path, *, rank: int = 0, before: Sequence[str] = ()) -> Ran:
    """Run a job as a user does: a script that calls `vramcast.runtime.follow`, with words `before` its command."""
    from vramcast.cli import options
    from vramcast.estimates.estimator import Estimator

    out = folder / f"{name}.out.json"
    words = [*before, *command(name), str(n_steps), *(["--plan", str(plan)] if plan else []), "--out", str(out)]
    text = options.text_of({"command": words, "until": "end", "steps": n_steps, "ranks": (rank,)})
    with suppress(VramcastError):  # the allocator's history, from which it estimates, has no planned blocks
        Estimator(device=CARD).estimate_job(text.job(device(CARD)))
    found = json.loads(out.read_text())
    return Ran(found, found.pop("counts"))


def run(asked: Asked, *, total_bytes: int = 0, tracer: NullGpuTracer | None = None) -> Ran:
    """Run a job in a process of the null GPU without an observer."""
    card = device(CARD).with_memory(total_bytes) if total_bytes else device(CARD)
    program = Program(__name__, asdict(asked), card, True, (str(Path(__file__).parents[2]),))  # the worker lacks our folder
    return Ran(*(tracer or NullGpuTracer.shared()).run(program))


def run_job(asked_for: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run a job in this process, the null GPU's, and return what `Ran` has."""
    from vramcast.plans.runtime.follower import Follower
    from vramcast.plans.runtime.plan_file import PlanFile
    from vramcast.tracer.hooks import host_checks

    host_checks.take_as_passed()
    sys.path.insert(0, str(JOBS.parent))
    import jobs

    asked = Asked(**asked_for)
    follower = Follower(PlanFile.read(asked.plan).of_rank(0)) if asked.plan else None
    found = jobs.measured(asked.name, asked.n_steps, asked.deviation)
    return found, asdict(follower.counts()) if follower else None
