"""Lanes of the tests: their marks, and the limits for a unit test.

Marks:
    integration: The test traces a job, starts a process, compiles, trains a model, or reads recorded histories.
        Its fixtures or its path imply the mark, else the test sets it.
    release: The test proves a property that a release needs and a commit seldom breaks: packages, browsers, clusters,
        sanitizers, notebooks. Only `make test-all` runs it.
    torch: The result depends on the release of torch, because the test uses a tracer or its file imports torch.
        An older release runs these tests again.

A test that is neither `integration` nor `release` is a unit test. It starts no process, uses no worker from an earlier test,
and should take less than two seconds of CPU time on an idle machine.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies

from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes.warm_worker import WarmWorker

ROOT = Path(__file__).parents[1]
TRACER_FIXTURES = {"tracer", "auto_tracer", "needs_null_gpu", "on_cpu", "on_fake", "oracle"}
INTEGRATION_FIXTURES = TRACER_FIXTURES | {"libraries", "nvml_library", "wheel"}
INTEGRATION_PATHS = (
    "tests/adoption/test_adopt.py",
    "tests/cli/test_signals.py",
    "tests/integrations/test_trainers.py",
    "tests/learner/test_artifact.py",
    "tests/learner/test_dask_engine.py",
    "tests/learner/test_judging.py",
    "tests/learner/test_training.py",
    "tests/native",
    "tests/cluster/test_dask.py",
    "tests/cluster/test_ray.py",
    "tests/cluster/slurm/test_cluster.py",
    "tests/serving",
    "tests/test_packaging.py",
    "tests/tracer/cpu",
    "tests/tracer/fake",
    "tests/tracer/nullgpu/test_cudnn_engines.py",
    "tests/tracer/nullgpu/test_cudnn_download.py",
    "tests/tracer/processes/test_thread_pool.py",
    "tests/tracer/processes/test_job_process.py",
    "tests/tracer/processes/test_warm_worker.py",
)
# An older torch shows nothing new in these, although they trace jobs: they test what is done with a trace, or how a program's
# text is read. The newest torch runs them each night.
ANY_TORCH_PATHS = (
    "tests/benchmarks",
    "tests/cli",
    "tests/datasets",
    "tests/docs",
    "tests/report",
    "tests/cluster",
    "tests/cluster/service",
    "tests/test_docstrings.py",
    "tests/test_doors.py",
    "tests/test_typing.py",
    "tests/tracer/cpu",
    "tests/tracer/processes",
    "tests/tracer/program/test_adapters.py",
    "tests/tracer/program/test_carried.py",
    "tests/tracer/program/test_diffusers_inputs.py",
    "tests/tracer/program/test_passes_seen.py",
    "tests/tracer/program/test_sampled_loops.py",
    "tests/views",
)
RELEASE_PATHS = (
    "tests/benchmarks/test_notebooks.py",
    "tests/learner/test_dask_engine.py",
    "tests/native",
    "tests/report/test_in_browser.py",
    "tests/cluster/slurm/test_cluster.py",
    "tests/cluster/test_dask.py",
    "tests/cluster/test_ray.py",
    "tests/serving",
    "tests/test_packaging.py",
)
# measured: the slowest takes 1.5 s on an idle machine. One that took 0.9 s there took 2.2 s in CI, so a limit below three times
# the slowest would test the machine.
_UNIT_TEST_CPU_S = 6.0
_IMPORTS_TORCH = re.compile(r"^\s*(?:import torch|from torch)\b", re.MULTILINE)

_unit_test = ""  # the unit test that is running
_shared_s = 0.0  # CPU time of preparations, which counts for no test


@cache
def _imports_torch(path: Path) -> bool:
    return bool(_IMPORTS_TORCH.search(path.read_text(encoding="utf-8")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by their fixtures and paths; a path that names no file is an error."""
    missing = [path for path in (*INTEGRATION_PATHS, *RELEASE_PATHS, *ANY_TORCH_PATHS) if not (ROOT / path).exists()]
    if missing:
        raise pytest.UsageError(f"tests/lanes.py names paths that do not exist: {', '.join(missing)}")
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & INTEGRATION_FIXTURES or path.startswith(INTEGRATION_PATHS):
            item.add_marker("integration")
        if (fixtures & TRACER_FIXTURES or _imports_torch(item.path)) and not path.startswith(ANY_TORCH_PATHS):
            item.add_marker("torch")
        if path.startswith(RELEASE_PATHS):
            item.add_marker("release")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a unit test if only unit tests are selected: importing them takes time."""
    if "not integration" not in config.option.markexpr or not collection_path.is_relative_to(ROOT):
        return None
    return collection_path.relative_to(ROOT).as_posix().startswith(INTEGRATION_PATHS) or None


def pytest_collection_finish() -> None:
    """Prepare the process: exclude its imports from garbage collection, and write no more bytecode.

    A test may write a module twice within a second; the bytecode of the first would then replace the second.
    """
    strategies.text().validate()  # builds a table of characters: a second on a fresh checkout, outside any test's time
    gc.collect()
    gc.freeze()
    sys.dont_write_bytecode = True


def pytest_configure() -> None:
    """Keep the unit tests in their lane: they start no process and use no warm worker."""
    ask, widen, start_ahead = WarmWorker.ask, WarmWorker.widen, NullGpuTracer.start_ahead

    def start_ahead_of_jobs() -> None:  # the command line does so even if no job follows
        if not _unit_test:
            start_ahead()

    def widen_for_others(worker: WarmWorker, lanes: int) -> None:  # `in_parallel` notifies every warm worker
        if not _unit_test:
            widen(worker, lanes)

    def guarded(*arguments: Any, **options: Any) -> Any:
        _fail_unit_test("asks a worker")
        return ask(*arguments, **options)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        is_of_torch = str(arguments[0]).endswith("/ldconfig") if arguments else False  # its import asks since 2.14
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") and not is_of_torch:
            _fail_unit_test(f"starts a process {arguments!r:.200}")

    WarmWorker.ask = guarded  # type: ignore[method-assign]
    WarmWorker.widen = widen_for_others  # type: ignore[method-assign]
    NullGpuTracer.start_ahead = start_ahead_of_jobs  # type: ignore[method-assign, assignment]
    sys.addaudithook(audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the running unit test."""
    global _unit_test
    is_unit_test = not any(item.get_closest_marker(mark) for mark in ("integration", "release"))
    _unit_test = item.nodeid if is_unit_test else ""
    try:
        return (yield)
    finally:
        _unit_test = ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Apply the time limit to the fixtures of a unit test."""
    with _limited_cpu_time(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Apply the time limit to a unit test."""
    with _limited_cpu_time(item):
        return (yield)


@contextmanager
def _limited_cpu_time(item: pytest.Item) -> Iterator[None]:
    """Fail a unit test above the limit, in CPU time: a machine's load changes it, but less than the time on the clock."""
    start_s = time.process_time() - _shared_s
    yield
    taken_s = time.process_time() - _shared_s - start_s
    is_traced = "COVERAGE_RUN" in os.environ  # `make coverage`: each line takes longer
    if _unit_test and taken_s > _UNIT_TEST_CPU_S and not is_traced:
        pytest.fail(f"{_unit_test} took {taken_s:.1f} s of CPU time, a unit test may take {_UNIT_TEST_CPU_S:.0f} s")


@contextmanager
def processes_allowed() -> Iterator[None]:
    """Allow processes and time in the block, regardless of the current test."""
    global _unit_test, _shared_s
    test, _unit_test = _unit_test, ""
    start_s = time.process_time()
    try:
        yield
    finally:
        _unit_test = test
        _shared_s += time.process_time() - start_s


def _fail_unit_test(what: str) -> None:
    """Fail a unit test that behaves like an integration test."""
    if _unit_test:
        pytest.fail(f"{_unit_test} {what}: mark it integration")


def sampled(values: Sequence[Any], every: int) -> list[Any]:
    """Return parameters of a test: each `every`-th of the values for every commit, the others for a release."""
    return [value if number % every == 0 else _for_release(value) for number, value in enumerate(values)]


def _for_release(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.release)
