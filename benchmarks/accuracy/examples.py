"""Public measured runs as examples to learn from: traces each job once and stores its features in build/accuracy/.

    python -m benchmarks.accuracy.examples SET [--limit N] [--shuffled] [--jobs 2]
                                                                 SET: xmem, further, timm, cnn, mlp, transformer, real
    python -m benchmarks.accuracy.examples SET [--scripts FOLDER]          SET: golf, titan, qlora, nanovlm

Existing examples are not traced again; delete build/accuracy/examples-SET.jsonl after a change of the tracer. The sets of the
second line are rebuilt from the answers that their benchmarks store (`benchmarks.accuracy.kept_examples`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest import mock

import joblib

from benchmarks.accuracy import gpumemnet_mlp, real_world, timm_a100, xmem
from benchmarks.accuracy.kept_examples import KEPT, report
from benchmarks.accuracy.runner import BUILD, Case, data_folder, python_path, read_rows
from benchmarks.accuracy.scripts import cnn_script
from benchmarks.peers.authors import gpumemnet, transformers
from vramcast.core.errors import VramcastError
from vramcast.core.units import MIB
from vramcast.datasets.run import Workload
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.learner_input import observed
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training
from vramcast.learner import examples
from vramcast.learner.examples import Example
from vramcast.tracer.protocol.run_options import RunOptions

SEED: Final = 0  # arbitrary
TIMEOUT_S: Final = 300.0  # arbitrary
_CHUNK: Final = 40  # arbitrary: cases per process; results are written after each chunk


def xmem_cases() -> list[Case]:
    """Return xMem's rows; `ground` refers to the reserved peak."""
    return _of_xmem("xmem", xmem.cases())


def xmem_further_cases() -> list[Case]:
    """Return xMem's further rows."""
    return _of_xmem("further", xmem.further_cases())


def _of_xmem(name: str, cases: list[Case]) -> list[Case]:
    return [
        replace(
            case,
            name=f"{name} {number} {case.name}",
            facts={
                **case.facts,
                "group": case.facts["model"],
                "family": "torchvision" if case.facts["family"] == "cnn" else "hf",
                "stack": "xmem",
                "censored": case.facts["real_oom"],
            },
        )
        for number, case in enumerate(cases)
    ]


def timm_rows() -> list[dict[str, str]]:
    """Return the sheet's clean rows, with the models in a seeded order: any prefix is a fair sample."""
    rows = timm_a100.clean_rows(read_rows("timm_a100.csv"))
    models = sorted({row["model"] for row in rows})
    random.Random(SEED).shuffle(models)
    place = {model: number for number, model in enumerate(models)}
    return sorted(rows, key=lambda row: place[row["model"]])


def timm_cases() -> list[Case]:
    """Return the cases of the sheet's clean rows."""
    cases = [timm_a100.case_of(row) for row in timm_rows()]
    return [replace(case, options=replace(case.options, limited=False), facts=_timm_facts(case)) for case in cases]


def _timm_facts(case: Case) -> dict[str, str]:
    return {
        "group": case.facts["model"],
        "family": "timm",
        "stack": "a100 sheet",
        "process": "1",
        "settled": "1",
        "context": str(timm_a100.CONTEXT_BYTES),
        "optimizer": case.facts["optimizer"],
    }


def cnn_cases() -> list[Case]:
    """Return GPUMemNet's CNNs as their script trains them: those that ran and those that ran out of memory."""
    runs = gpumemnet.read(data_folder() / "gpumemnet_cnn_step1.csv").runs
    return [
        Case(
            run.id,
            _cnn_job(run.workload),
            run.measurement.process_bytes,
            {
                "group": run.id,
                "family": "cnn",
                "stack": "gpumemnet cnn",
                "process": "1",
                "context": str(timm_a100.CONTEXT_BYTES),
                "censored": str(run.measurement.censored),
            },
            RunOptions(limited=False),
        )
        for run in runs
        if run.measurement.status in ("ok", "oom") and run.measurement.process_bytes and run.workload.target
    ]


def _cnn_job(workload: Workload) -> Job:
    batch = workload.batch_size
    assert workload.target is not None
    assert batch is not None
    described = {"network": json.loads(workload.target.partition("?")[2]), "batch": batch}
    return Job(
        device("a100-40gb"),
        command=Command((cnn_script.__file__, json.dumps(described))),
        training=Training(steps=len(cnn_script.batch_sizes(batch))),
        search_path=tuple(sys.path),
        stack=timm_a100.STACK,
    )


def mlp_cases() -> list[Case]:
    """Return GPUMemNet's MLPs in a seeded order, as their script trains them."""
    rows = [(row, file) for file in gpumemnet_mlp.FILES for row in read_rows(file) if not gpumemnet_mlp.is_broken(row)]
    random.Random(SEED).shuffle(rows)
    cases = [gpumemnet_mlp.case_of(row, file) for row, file in rows]
    return [
        replace(
            case,
            facts={
                "group": case.name,
                "family": "mlp",
                "stack": f"gpumemnet {case.facts['file']}",
                "process": "1",
            },
        )
        for case in cases
    ]


def real_cases() -> list[Case]:
    """Return the CARMA project's scripts."""
    facts = {"family": "script", "stack": "carma", "process": "1", "context": str(real_world.CONTEXT_MIB * MIB)}
    return [replace(case, facts={**case.facts, **facts, "group": case.facts["model"]}) for case in real_world.cases()]


SETS: dict[str, Callable[[], list[Case]]] = {
    "xmem": xmem_cases,
    "further": xmem_further_cases,
    "timm": timm_cases,
    "cnn": cnn_cases,
    "mlp": mlp_cases,
    "transformer": transformers.cases,
    "real": real_cases,
}


def estimate_of(case: Case, cudnn: str = "") -> Estimate:
    """Return the estimate of a case.

    Args:
        case: The job.
        cudnn: The one cuDNN to ask; "": as in `vramcast estimate`.
    Raises:
        VramcastError: There is none.
    """
    return Estimator(tracer="nullgpu", timeout_s=TIMEOUT_S).uncorrected(case.job, RunOptions(cudnn=cudnn))


def example_of(case: Case) -> Example | str:
    """Return the example (the features of `vramcast estimate` with the measured peaks), or the reason why there is none."""
    try:
        return example_from(case, estimate_of(case))
    except VramcastError as error:
        return f"{case.name}: {type(error).__name__}: {error}"[:300]


def example_from(case: Case, estimate: Estimate) -> Example:
    """Return the example of a case and its estimate.

    The fact `figure` says what was measured; without it, `process` says that it was the process, and else it is the reserved
    peak. A device's figure counts without `outside`, the bytes that it has besides the process.
    """
    seen, optimizer = observed(estimate, settled="settled" in case.facts), case.job.training.optimizer
    figure = case.facts.get("figure", "process peak" if "process" in case.facts else "reserved peak")
    measured = case.measured_bytes - int(case.facts.get("outside", 0))
    return replace(
        seen,
        id=case.name,
        group=case.facts["group"],
        family=case.facts["family"],
        stack=case.facts["stack"],
        measured_allocated=measured if figure == "allocated peak" else None,
        measured_reserved=measured if figure.startswith("reserved") else None,
        measured_process=measured if figure in ("process peak", "device peak") else None,
        censored=case.facts.get("censored") == "True",
        optimizer=str(case.facts.get("optimizer", optimizer if isinstance(optimizer, str) else "")),
        context=int(case.facts.get("context", seen.context)),
        facts={name: value for name, value in case.facts.items() if name in ("model", "batch", "generation", "gpu")},
    )


def _chunk(cases: list[Case]) -> list[Example | str]:
    return [example_of(case) for case in cases]


def _portions(cases: list[Case]) -> Iterator[list[Case]]:
    for start in range(0, len(cases), _CHUNK):
        yield cases[start : start + _CHUNK]


def path_of(name: str) -> Path:
    """Return the path of a set's examples."""
    return BUILD / f"examples-{name}.jsonl"


def main() -> None:
    """Trace the missing examples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=[*SETS, *KEPT])
    parser.add_argument(
        "--scripts", type=Path, default=BUILD / "scripts", metavar="FOLDER", help="golf: folder of logs, see logged_sources"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--shuffled", action="store_true", help="in a seeded order, in which any prefix is a fair sample")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    path = path_of(options.set)
    if options.set in KEPT:
        made = list(KEPT[options.set](options.scripts))
        path.unlink(missing_ok=True)
        examples.append(made, path)
        print(f"{len(made)} examples in {path}\n\n{report(made)}")
        return
    known = {example.id for example in examples.read(path)[0]} if path.exists() else set()
    cases = SETS[options.set]()
    if options.shuffled:
        random.Random(SEED).shuffle(cases)
    cases = [case for case in cases[: options.limit] if case.name not in known]
    started = time.perf_counter()
    done = 0
    with joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered") as parallel:
        for answers in parallel(joblib.delayed(_chunk)(portion) for portion in _portions(cases)):
            examples.append([one for one in answers if isinstance(one, Example)], path)
            for problem in answers:
                if isinstance(problem, str):
                    print(problem, file=sys.stderr)
            done += len(answers)
            print(f"{done} of {len(cases)} in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # transformers 4.51 comes first for xMem's rows: the worker finds it on the inherited path.
    packages = xmem.TRANSFORMERS if {"xmem", "further"} & {*sys.argv} and xmem.TRANSFORMERS.is_dir() else None
    with mock.patch.dict(os.environ, {"PYTHONPATH": python_path(packages)}):
        main()
