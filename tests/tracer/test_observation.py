"""Observations: their facts, their files, and a tracer that returns recorded ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.core.errors import CannotEstimate, DoesNotFit, JobError, TraceFileError
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import Action, Category, Phase, Trace
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.alloc_conf import AllocConf
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

MIB = 1 << 20
JOB = Job(device("t4"), target="file.py:model")
COLUMNS: dict[str, Any] = {
    "action": [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED],
    "size_bytes": [8 * MIB, 30 * MIB, 30 * MIB, 30 * MIB],
    "block": [0, 1, 1, 1],
    "step": [0] * 4,
    "phase": [Phase.FORWARD] * 4,
    "category": [Category.PARAMETER, Category.ACTIVATION, 7, 7],
    "operator": [0, 1, -1, -1],
}
OPERATORS = [Operator.of("aten::to"), Operator.of("aten::mm", "layer", ((2, 3),), ("float32",))]


def seen(**changes: Any) -> Observation:
    ledger = (Entry(CallHandling.READ, "values", 3), Entry.of(CallHandling.ASSUMED, Code.DRAWN_SHAPE, 1, name="nonzero"))
    trace = Trace.build(COLUMNS, operators=OPERATORS, ledger=ledger, header={"tracer": "fake"})
    return dataclasses.replace(Observation(trace, "fake", "2.11.0", steps=1), **changes)


def test_observation_round_trips_through_file(tmp_path: Path) -> None:
    one = seen(alloc_conf=AllocConf("expandable_segments:True", "script"), notes=("a note",), was_expandable=True)
    one.save(tmp_path / "job.npz")
    again = Observation.load(tmp_path / "job.npz")
    facts = {f.name for f in dataclasses.fields(Observation)} - {"trace"}
    assert {name: getattr(again, name) for name in facts} == {name: getattr(one, name) for name in facts}
    assert again.trace.operators == one.trace.operators
    assert again.ledger == one.ledger
    assert again.trace.header == {**one.trace.header}
    np.testing.assert_array_equal(again.trace.size_bytes, one.trace.size_bytes)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": "1"}, {"was_expandable": 1}, {"notes": [1]}, {"alloc_conf": ["", "nobody"]}, {"torch": None}, {"alloc_conf": 5}],
)
def test_rejects_file_with_wrong_facts(tmp_path: Path, wrong: dict[str, Any]) -> None:
    seen().save(tmp_path / "job.npz")
    trace = Trace.load(tmp_path / "job.npz")
    dataclasses.replace(trace, header={**trace.header, "observation": {**trace.header["observation"], **wrong}}).save(
        tmp_path / "job.npz"
    )
    with pytest.raises(TraceFileError, match="is not an observation"):
        Observation.load(tmp_path / "job.npz")


def test_rejects_trace_without_facts(tmp_path: Path) -> None:
    seen().trace.save(tmp_path / "job.npz")
    with pytest.raises(TraceFileError, match="its header has no facts"):
        Observation.load(tmp_path / "job.npz")


def test_libraries_come_from_calls_or_operators() -> None:
    assert seen().libraries == {"cublas"}
    ledger = (Entry(CallHandling.NOOP, "cudnnCreate", 1), Entry(CallHandling.READ, "ncclX", 1))
    answered = dataclasses.replace(seen().trace, header={"peaks": {}}, ledger=ledger)
    assert seen(trace=answered).libraries == {"cudnn"}


# ------------------------------------------------------------------------------------------------ estimates
def test_estimates_recorded_observation() -> None:
    estimate = Estimator(tracer=RecordedTracer(seen())).estimate_job(JOB)
    # 20 MiB of segment for requests below 10, and 30 for the request itself.
    assert (estimate.allocated, estimate.reserved, estimate.tracer) == (38 * MIB, 50 * MIB, "fake")
    assert estimate.host_reads == 3
    assert estimate.unknown == ("values drawn for nonzero",)
    assert estimate.peak_at == {"step": 1, "phase": "forward", "module": "layer", "op": "aten::mm"}
    assert estimate.libraries == {"cublas"}


def test_estimate_records_its_tracer() -> None:
    tracer = RecordedTracer(seen())
    estimate = Estimator(device="t4", tracer=tracer, level=0.9, timeout_s=7.0).estimate_job(JOB)
    assert (estimate.estimator.tracer, estimate.estimator.level, estimate.estimator.timeout_s) == (tracer, 0.9, 7.0)
    again = estimate.estimator.estimate_job(JOB)
    assert again.to_dict() | {"seconds": 0} == estimate.to_dict() | {"seconds": 0}


def test_unfitting_job_runs_on_unlimited_card() -> None:
    asked: list[RunOptions] = []

    def answer(job: Job, options: RunOptions) -> Observation:
        asked.append(options)
        return seen()

    small = dataclasses.replace(JOB, memory_bytes=600 * MIB)  # the context takes most of it
    estimate = Estimator(tracer=RecordedTracer(answer)).estimate_job(small)
    assert estimate.out_of_memory is None or "Tried to allocate" in estimate.out_of_memory
    tiny = Estimator(tracer=RecordedTracer(answer)).estimate_job(
        dataclasses.replace(JOB, memory_bytes=estimate.context.bytes + 35 * MIB)
    )
    assert tiny.out_of_memory == "CUDA out of memory. Tried to allocate 30.00 MiB in step 1, forward, layer, aten::mm."
    assert tiny.reserved == estimate.reserved
    assert len(asked) == 2  # a tracer without an allocator of its own is not called twice


def test_reports_tracers_errors() -> None:
    def answer(job: Job, options: RunOptions) -> Observation:
        raise JobError("The job raised ValueError", "", after_reads=False)

    with pytest.raises(JobError, match="ValueError"):
        Estimator(tracer=RecordedTracer(answer)).estimate_job(JOB)


def test_reports_batch_larger_than_card(make_job: Callable[..., Job]) -> None:
    def answer(job: Job, options: RunOptions) -> Observation:
        raise JobError("The job raised MemoryError", "", after_reads=False)

    job = make_job(target="file.py:model", batch="100000x100000", device="t4")
    with pytest.raises(DoesNotFit, match="one batch alone takes"):
        Estimator(tracer=RecordedTracer(answer)).estimate_job(job)


def answer_of_some(job: Job, options: RunOptions) -> Observation:
    """Answer for every batch but that of two."""
    if job.batch.shape[0] == 2:
        raise JobError("The job raised ValueError", "", after_reads=False)
    return seen()


def test_sweep_reports_result_of_each_size(make_job: Callable[..., Job]) -> None:
    job = make_job(target="file.py:model", batch="4x8", device="t4")
    found = Estimator(tracer=RecordedTracer(answer_of_some)).sweep(job, [1, 2, 4])
    assert list(found) == [1, 2, 4]
    assert isinstance(found[2], CannotEstimate)
    assert not isinstance(found[4], CannotEstimate)
    assert found[4].job.batch.shape == (4, 8)
    assert repr(found) == "<Sweep of batch sizes 1, 2, 4>"
    sizes = [row["reserved_bytes"] for row in found.rows()]
    assert sizes == [50 * MIB, None, 50 * MIB]


@pytest.mark.release  # only there is pandas sure to be installed
def test_sweep_becomes_data_frame(make_job: Callable[..., Job]) -> None:
    found = Estimator(tracer=RecordedTracer(answer_of_some)).sweep(
        make_job(target="file.py:model", batch="4x8", device="t4"), [2, 4]
    )
    table = pytest.importorskip("pandas").DataFrame(found.rows()).set_index("batch_size")
    assert table.equals(found.to_pandas())
    assert table.loc[2, "error"] == "The job raised ValueError"
    assert table.loc[4, "verdict"] == "fits"


@pytest.mark.integration
@pytest.mark.parametrize("name", ["nullgpu", "fake", "cpu"])
def test_every_tracer_returns_observation(name: str, tiny_models: Path, make_job: Callable[..., Job], request: Any) -> None:
    if name == "nullgpu":
        request.getfixturevalue("needs_null_gpu")
    from vramcast.estimates.estimator import _TRACERS

    job = make_job(target=f"{tiny_models}:mlp", batch="8x16", device="a100-40gb", search_path=())
    one = _TRACERS[name]().observe(job, RunOptions(shapes=True), timeout_s=120.0)
    assert (one.tracer, one.is_answered, one.libraries, one.out_of_memory) == (name, name == "nullgpu", {"cublas"}, "")
    products = [operator for operator in one.trace.operators if operator.name == "aten::addmm"]
    assert products
    assert {operator.module for operator in products} <= {"0", "2", ""}
    assert any(operator.shapes == ((32,), (8, 16), (16, 32)) for operator in products)
    assert all(set(operator.dtypes) == {"float32"} for operator in products)


def test_shapes_change_no_allocation(tracer: Any, tiny_models: Path, make_job: Callable[..., Job]) -> None:
    job = make_job(target=f"{tiny_models}:mlp", batch="8x16", device="a100-40gb", search_path=())
    plain, shaped = (tracer().observe(job, options, timeout_s=120.0).trace for options in (AS_USUAL, RunOptions(shapes=True)))
    assert not any(operator.shapes for operator in plain.operators)
    np.testing.assert_array_equal(plain.size_bytes, shaped.size_bytes)
    np.testing.assert_array_equal(plain.action, shaped.action)
