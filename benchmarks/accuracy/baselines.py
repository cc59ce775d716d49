"""Comparison of all baselines with the simulated estimate on one set, cross-validated over groups.

    python -m benchmarks.accuracy.baselines SET [--limit N] [--no-networks] [--without METHOD]      SET: xmem, timm, cnn, mlp

Reads build/accuracy/examples-SET.jsonl (from `benchmarks.accuracy.examples`) and the public tables. Each model is inspected
once on fake tensors; the result is stored in build/accuracy/networks-SET.jsonl. Methods that learn are fitted on four fifths
of the groups and evaluated on the fifth, five times. Errors are relative to the measured peak: reserved for xmem, process
for the others. `simulated` is vramcast without its learned part, with the contexts of the training rows' stacks; `corrected`
is all of vramcast. Runs with only a lower bound of the peak are left out. "Holds" is the share of runs whose peak is at or
below the estimate, and below the estimate plus 15 %: the coverage if a scheduler uses either as a bound. The last column is
the share of estimates in the memory class of the measured peak, GPUMemNet's own metric.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from sklearn.model_selection import GroupKFold

from benchmarks.accuracy import examples as sets
from benchmarks.accuracy import gpumemnet_mlp, timm_a100, xmem
from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import BUILD, data_folder, read_rows
from benchmarks.measured.measured_run import runs_of
from benchmarks.peers.authors import gpumemnet
from benchmarks.peers.baselines import published
from benchmarks.peers.baselines.baseline import Baseline, Sample, Target
from benchmarks.peers.baselines.dnnmem import DnnMem
from benchmarks.peers.baselines.fake_tensor import FakeTensor
from benchmarks.peers.baselines.gpumemnet import Bins, GpuMemNet
from benchmarks.peers.baselines.horus import Horus
from benchmarks.peers.baselines.llmem import LlMem
from benchmarks.peers.baselines.look import look
from benchmarks.peers.baselines.network import Network
from benchmarks.peers.baselines.published import Published
from benchmarks.peers.baselines.schedtune import SchedTune
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.core.plain import from_plain, to_plain
from vramcast.core.units import MIB
from vramcast.datasets.journal import Journal, RejectedRow, read_lines
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.learner import examples, stacks, training
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel
from vramcast.learner.stacks import StackContext
from vramcast.learner.table import subject_of

FOLDS: Final = 5  # arbitrary
SEED: Final = 0  # arbitrary
MORE: Final = 1.15  # arbitrary: a common safety factor
MLP_BIN_MIB: Final = 1000  # spec: GPUMemNet
OTHER_BIN_MIB: Final = 8000  # spec: GPUMemNet, CNNs and transformers
_FILES: Final = {"mlp": gpumemnet_mlp.FILES, "cnn": ("gpumemnet_cnn_step1.csv",)}


class Simulated:
    """The null GPU's segments; for processes, plus the context of the training rows."""

    name = "simulated"

    def __init__(self, target: Target) -> None:
        self.target: Target = target
        self.contexts: dict[str, StackContext] = {}

    def fit(self, train: Sequence[Sample]) -> None:
        """Store the contexts."""
        self.contexts = stacks.learn([sample.example for sample in train])

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the sum of segments and context."""
        beside = [stacks.context_of(s.example, self.contexts) if self.target == "process" else 0 for s in test]
        return [None if size is None else s.example.reserved + size for s, size in zip(test, beside, strict=True)]


class Corrected:
    """The null GPU's segments with the correction learned from the training rows: all of vramcast."""

    name = "corrected"

    def __init__(self, target: Target) -> None:
        self.target: Target = target
        self.learned: LearnedModel | None = None

    def fit(self, train: Sequence[Sample]) -> None:
        """Train the correction."""
        self.learned = training.train([sample.example for sample in train])

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the corrected peaks."""
        assert self.learned is not None
        subjects = [subject_of(sample.example, self.learned.contexts) for sample in test]
        peak = self.learned.process if self.target == "process" else self.learned.reserved
        return [peak(subject) for subject in subjects]


def bin_mib_of(name: str) -> int:
    """Return the width of a set's memory classes."""
    return MLP_BIN_MIB if name == "mlp" else OTHER_BIN_MIB


def target_of(name: str) -> Target:
    """Return the peak that a set is judged by."""
    return "reserved" if name == "xmem" else "process"


def baselines_of(name: str) -> list[Baseline]:
    """Return the baselines of a set."""
    target = target_of(name)
    bin_mib = bin_mib_of(name)
    found: list[Baseline] = [
        Simulated(target),
        Corrected(target),
        Horus(),
        FakeTensor(),
        FakeTensor(with_optimizer=True),
        DnnMem(target=target),
        SchedTune(target=target),
        LlMem(),
        GpuMemNet("mlp", bin_mib, target=target),
        GpuMemNet("transformer", bin_mib, target=target),
    ]
    if name == "xmem":
        found += [Published(tool, f"{title}, published", "reserved") for tool, title in published.TOOLS.items()]
    if name == "timm":
        found.append(Published("faketensor", "FakeTensor, published", "process"))
    return found


# Inputs of the baselines --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kept:
    id: str
    network: Network | None


def networks_of(name: str, jobs: dict[str, Job], *, look_at: bool) -> dict[str, Network]:
    """Return the networks of these runs; stored networks are not inspected again."""
    path = BUILD / f"networks-{name}.jsonl"
    known: dict[str, Network | None] = {}
    if path.exists():
        for _, values in read_lines(path):
            if not isinstance(values, RejectedRow):
                kept = from_plain(_Kept, values, "network")
                known[kept.id] = kept.network
    missing = [run for run in jobs if run not in known] if look_at else []
    if missing:
        with Journal(path) as lines:
            for done, run in enumerate(missing):
                try:
                    known[run] = look(jobs[run])
                except VramcastError as error:
                    known[run] = None
                    print(f"{run}: {error}"[:300], file=sys.stderr)
                lines.append_all([to_plain(_Kept(run, known[run]))])
                if done % 50 == 49:
                    print(f"{done + 1} of {len(missing)} looked at", file=sys.stderr, flush=True)
    return {run: network for run, network in known.items() if network is not None}


def jobs_of(name: str) -> dict[str, Job]:
    """Return the job of each example's id, as a model that trains (for GPUMemNet's networks too, which run as scripts)."""
    if name == "timm":
        return {f"{row['model']} {row['batch']}": timm_a100.plain_job(row) for row in sets.timm_rows()}
    if name not in _FILES:
        return {case.name: case.job for case in sets.SETS[name]()}
    runs = [run for file in _FILES[name] for run in gpumemnet.read(data_folder() / file).runs if run.workload.target]
    card = device("a100-40gb")
    ids = {run.id: f"{run.workload.name}.out" if name == "mlp" else run.id for run in runs}
    return {ids[run.id]: run.workload.job(card, trust=True) for run in runs}


def published_of(name: str) -> dict[str, dict[str, int]]:
    """Return the estimates published by others for the examples of a set, by id."""
    if name == "xmem":
        said = [{tool: cells["bytes"] for tool, cells in run.published.items()} for run in runs_of(xmem.REPOSITORY)]
        return {case.name: sizes for case, sizes in zip(sets.xmem_cases(), said, strict=True)}
    if name == "timm":
        printed = {
            f"{row['model']} {row['batch']}": match
            for row in read_rows("timm_a100.csv")
            if (match := re.search(r"faketensor_est_MiB=([0-9.]+)", row["extra"]))
        }
        return {run: {"faketensor": round(float(match[1]) * MIB)} for run, match in printed.items()}
    return {}


def samples_of(name: str, *, limit: int | None, look_at: bool) -> list[Sample]:
    """Return the examples of a set with the inputs of the baselines; a limit takes a seeded sample."""
    target = target_of(name)
    path = sets.path_of(name)
    if not path.exists():
        sys.exit(f"'{path}' does not exist: run python -m benchmarks.accuracy.examples {name} first.")
    found: list[Example] = [e for e in examples.read(path)[0] if Sample(e).measured(target) is not None]
    if limit is not None and limit < len(found):
        found = random.Random(SEED).sample(found, limit)
    jobs = jobs_of(name)
    networks = networks_of(name, {e.id: jobs[e.id] for e in found if e.id in jobs}, look_at=look_at)
    printed = published_of(name)
    return [Sample(e, networks.get(e.id), printed.get(e.id, {})) for e in found]


# Comparison ---------------------------------------------------------------------------------------------------------


def held_out(baseline: Baseline, samples: Sequence[Sample]) -> list[int | None]:
    """Return an estimate for each sample from a baseline fitted on other groups only."""
    groups = [sample.example.group for sample in samples]
    found: list[int | None] = [None] * len(samples)
    for learnt, asked in GroupKFold(FOLDS).split(np.zeros(len(samples)), groups=groups):
        baseline.fit([samples[i] for i in learnt])
        for i, size_bytes in zip(asked, baseline.estimate([samples[i] for i in asked]), strict=True):
            found[i] = size_bytes
    return found


def compare(name: str, samples: Sequence[Sample], of: Sequence[Baseline]) -> str:
    """Return the table as Markdown: every baseline on all families, then on each."""
    target = target_of(name)
    families = sorted({sample.example.family for sample in samples})
    estimates = {baseline.name: held_out(baseline, samples) for baseline in of}
    bins = Bins.of([measured for sample in samples if (measured := sample.measured(target))], bin_mib_of(name))
    lines = []
    for family in [None, *families] if len(families) > 1 else [None]:
        for method, sizes in estimates.items():
            pairs = [
                (float(size), float(measured))
                for sample, size in zip(samples, sizes, strict=True)
                if size is not None and family in (None, sample.example.family) and (measured := sample.measured(target))
            ]
            if pairs:
                same = np.mean([bins.index(round(size)) == bins.index(round(measured)) for size, measured in pairs])
                held = [f"{100 * np.mean([more * size >= measured for size, measured in pairs]):.1f} %" for more in (1.0, MORE)]
                lines.append([method, family or "all", *summarize(pairs).cells(), *held, f"{same:.3f}"])
    columns = ["method", "rows", *SUMMARY_COLUMNS, "holds", f"with {MORE - 1:.0%} more", f"class of {bins.width_mib} MiB"]
    return table(columns, lines)


def main() -> None:
    """Print the table of one set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=sets.SETS)
    parser.add_argument("--limit", type=int, help="use a seeded sample of the runs")
    parser.add_argument("--no-networks", action="store_true", help="use stored networks only")
    parser.add_argument("--without", action="append", default=[], help="leave out methods whose names begin with METHOD")
    options = parser.parse_args()
    torch.set_num_threads(1)
    samples = samples_of(options.set, limit=options.limit, look_at=not options.no_networks)
    known = sum(sample.network is not None for sample in samples)
    print(f"{options.set}: {len(samples)} runs, {known} of them inspected\n")
    of = [baseline for baseline in baselines_of(options.set) if not baseline.name.startswith(tuple(options.without))]
    print(compare(options.set, samples, of))


if __name__ == "__main__":
    # transformers 4.51 comes first for xMem's rows, as in benchmarks.accuracy.examples.
    if "xmem" in sys.argv and xmem.TRANSFORMERS.is_dir():
        sys.path.insert(0, str(xmem.TRANSFORMERS))
    main()
