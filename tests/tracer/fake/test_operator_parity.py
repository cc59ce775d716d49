"""The operators of the survey on the fake card and on the null GPU: equal requests, or a reason for the difference.

Every eighth in a commit; `make test-all` runs every one.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import VramcastError
from vramcast.jobs.job import Command, Job
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes.job_process import python_path
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

ROOT = Path(__file__).parents[3]
OPERATORS = Path(__file__).with_name("operators.py")
_SAMPLED = 8  # arbitrary: one operator represents eight in a commit

# Operators rejected by the fake tracer, and a part of the error text.
REFUSED: dict[str, str] = {
    "torch.compile mlp": "torch.compile",
    "torch.compile conv net": "torch.compile",
    "torch.compile reduce-overhead (CUDA graphs)": "torch.compile",
}
_LINEAR_ALGEBRA = "cuSOLVER's and MAGMA's buffers, and the masks and ranges around them, are not modeled"
_VALUES = "the host reads values of the card, which are zero here"
_SPARSE = "sparse tensors are not followed: the fake card's tensors have one storage each"
_DRIVER = "asks C++ for the driver, which does not exist"
_GROUP = "distributed groups and wrappers look for the card in C++"
_SUBCLASS = "autograd takes another formula for tensors of a subclass"
# Operators with different requests, and the reason.
EXPLAINED: dict[str, str] = {
    "LSTM dropout": "cuDNN's dropout state is not modeled",
    "LSTM without bias": "cuDNN keeps biases of its own, which are not modeled",
    "LSTM amp-bf16": "autocast lays the casts of all weights side by side, here they are one by one",
    "LSTMCell and GRUCell": _SUBCLASS,
    "batch norm 3d amp-bf16 channels_last": "channels_last_3d without cuDNN is not modeled",
    "cudnn disabled": "PyTorch's own convolutions and recurrent layers are not modeled",
    "flex_attention without compile": "a higher-order operator, which requires FakeTensor",
    "ASGD foreach=True": _VALUES,
    "CUDA graph capture and replay": _DRIVER,
    "fft": "cuFFT's workspaces are not modeled",
    **{
        f"{name}{size}": _LINEAR_ALGEBRA
        for name in ("cholesky", "svd", "svdvals", "solve", "inv", "qr", "eigh", "slogdet")
        for size in ("", " batched", " large")
    },
    **dict.fromkeys(
        (
            "lstsq", "solve_triangular", "cholesky_solve", "cholesky_inverse", "pinv", "matrix_exp", "householder_product",
            "cholesky complex", "svd float64",
        ),
        _LINEAR_ALGEBRA,
    ),
    "eig": _VALUES,
    "sort, topk, cumsum, kthvalue, median, mode": _SUBCLASS + "; sorting long rows is not modeled",
    "unique, nonzero, masks, bincount, histc, searchsorted": _VALUES,
    "repeat_interleave with counts on the device": "the scan of the counts, and its reads, are not modeled",
    "embedding and embedding bag": _SPARSE,
    **dict.fromkeys(("sparse coo mm", "sparse csr mm"), _SPARSE),
    "interpolate and grid_sample": "affine_grid is one operator here, and several on the card",
    "ctc_loss targets in a row, lengths on the device": "whether the targets' number fits is not checked",
    "ctc_loss cuDNN": "cuDNN's CTC loss is not modeled: PyTorch's own is taken",
    "bmm, baddbmm, addmm, einsum, outer, vdot": "the parts of bilinear and cdist are not modeled",
    "random numbers": _VALUES,
    **dict.fromkeys(("pinned memory, streams and events", "memory pool and per-process fraction"), _DRIVER),
    "cudaMemGetInfo, device properties and memory statistics": "the whole card is free, always",
    "activation offload (save_on_cpu)": "returned tensors have another order in memory",
    **dict.fromkeys(("FSDP2 on a fake group", "FSDP1 on a fake group", "NCCL group of one"), _GROUP),
}  # fmt: skip


@pytest.fixture(scope="module")
def survey_operators(needs_null_gpu: None) -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "surveys"))
    yield importlib.import_module("survey_operators")
    sys.path.remove(str(ROOT / "benchmarks" / "surveys"))


@pytest.fixture(scope="module", params=["sample", pytest.param("all", marks=pytest.mark.release)])
def results(
    survey_operators: Any,
    tracer: Callable[[], NullGpuTracer],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> tuple[dict[str, Result | str], dict[str, Result | str]]:
    """Return the answers of the null GPU and of the fake card by operator, errors as text; both run concurrently."""
    jobs = {name: job for name, job, _ in survey_operators.jobs()}
    assert sorted((EXPLAINED.keys() | REFUSED.keys()) - jobs.keys()) == [], "the survey has no such operators"
    if request.param == "sample":
        jobs = {name: jobs[name] for name in (*sorted(jobs)[::_SAMPLED], *REFUSED)}
    answers = tmp_path_factory.mktemp("operators") / "fake.pickle"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(OPERATORS), str(answers), *jobs],
        env={**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            null = {
                name: _traced(tracer(), dataclasses.replace(job, command=Command((str(OPERATORS), "--here", name))))
                for name, job in jobs.items()
                if name not in REFUSED
            }
            process.wait()
        finally:
            process.kill()
    fake = pickle.loads(answers.read_bytes())
    return null, {name: r.message if isinstance(r, Result) and r.status == "error" else r for name, r in fake.items()}


def _traced(tracer: NullGpuTracer, job: Job) -> Result | str:
    try:
        result = tracer.trace(job, RunOptions(limited=False))
        return result.ended or result
    except VramcastError as error:
        return str(error)


def _difference(null: Result | str, fake: Result | str) -> str:
    """Return the difference of the fake card's requests from the null GPU's; empty if they are equal."""
    if isinstance(null, str) or isinstance(fake, str):
        return "" if isinstance(null, str) and isinstance(fake, str) else f"null GPU: {null!s:.80}; fake: {fake!s:.80}"
    assert null.trace is not None
    assert fake.trace is not None
    theirs, ours = _without_workspaces(null.trace), _without_workspaces(fake.trace)
    missing, extra = _sizes(theirs) - _sizes(ours), _sizes(ours) - _sizes(theirs)
    if missing or extra:
        return f"missing {dict(missing)}, extra {dict(extra)}"
    expected, found = simulate(theirs), simulate(ours)
    peaks = (found.allocated - expected.allocated, found.reserved - expected.reserved)
    return "" if peaks == (0, 0) else f"peaks of allocated and reserved are {peaks} B off"


def _sizes(trace: Trace) -> Counter[int]:
    return Counter(trace.size_bytes[trace.action == Action.ALLOC].tolist())


def _without_workspaces(trace: Trace) -> Trace:
    """Return the trace without workspaces of convolutions: they die before any other request."""
    live = [row for row in range(len(trace)) if trace.action[row] in (Action.ALLOC, Action.FREE_REQUESTED)]
    rows = [
        row for row, following in itertools.pairwise(live)
        if trace.category[row] == Category.WORKSPACE
        and trace.block[following] == row
        and trace.op[row] >= 0
        and "convolution" in trace.ops[trace.op[row]]
    ]  # fmt: skip
    return trace.without_blocks(rows) if rows else trace


def test_requests_match_null_gpu(results: Any) -> None:
    null, fake = results
    differing = {name: said for name in null if (said := _difference(null[name], fake[name]))}
    unexplained = {name: said for name, said in differing.items() if name not in EXPLAINED}
    assert not unexplained
    assert sorted(set(EXPLAINED) & set(null) - set(differing)) == [], "these are equal now: remove them from the table"


def test_rejection_names_a_way_out(results: Any) -> None:
    _, fake = results
    for name, text in REFUSED.items():
        assert text in fake[name], name
        assert "--tracer nullgpu" in fake[name], name
