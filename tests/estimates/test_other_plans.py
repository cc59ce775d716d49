"""The second run of a job with convolutions under another cuDNN, if that of its stack cannot be queried."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.core.errors import WorkerError
from vramcast.core.units import GIB, MIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.learner_input import observed
from vramcast.estimates.result import Estimate
from vramcast.estimates.runs import other_plans
from vramcast.hardware.cards import device
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Job, TensorSpec
from vramcast.report.answer_json import to_dict
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.nullgpu.cudnn.libraries import CudnnLibrary
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.run_options import RunOptions

FIRST, SECOND = "9.12.0.46", "9.19.0.56"
OLD = Stack("2.6.0", "12.4", "9.1.0.70", "given")


@pytest.fixture
def two_cudnns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one cuDNN answer for any stack, and another one give a second opinion."""
    monkeypatch.setattr(other_plans, "second_opinion", lambda stack: CudnnLibrary(Path("there"), SECOND, "in the cache"))
    monkeypatch.setattr("vramcast.estimates.runs.on_card.choose", lambda stack: _Chosen(stack))


class _Chosen:
    def __init__(self, stack: Stack | None) -> None:
        version = SECOND if stack is not None and stack.cudnn == SECOND else FIRST
        self.library = CudnnLibrary(Path("here"), version, "in the cache")


def of_workspace(size_mib: int, operator: str = "aten::cudnn_convolution", category: Category = Category.WORKSPACE) -> Trace:
    """Return a job that keeps 100 MiB and needs a workspace for a while."""
    columns = {
        "action": [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED],
        "size_bytes": [100 * MIB, *[size_mib * MIB] * 3],
        "block": [0, 1, 1, 1],
        "op": [0] * 4,
        "step": [0] * 4,
        "category": [Category.ACTIVATION, *[category] * 3],
    }
    return Trace.build(columns, ops=[operator])


def estimate(
    workspaces_mib: dict[str, int | Exception],
    category: Category = Category.WORKSPACE,
    target: str = "package.module:factory",
) -> tuple[Estimate, list[RunOptions]]:
    """Return the estimate of a job with these workspaces by cuDNN, and the options of its runs."""
    runs: list[RunOptions] = []

    def observe(job: Job, options: RunOptions) -> Observation:
        runs.append(options)
        answer = workspaces_mib[options.cudnn or FIRST]
        if isinstance(answer, Exception):
            raise answer
        return Observation(of_workspace(answer, category=category), "recorded", steps=1)

    job = Job(device("rtx4060"), target=target, batch=TensorSpec((1, 3, 32, 32)), stack=OLD)
    return Estimator(tracer=RecordedTracer(observe)).uncorrected(job), runs


@pytest.mark.parametrize(("first_mib", "second_mib", "cudnn"), [(20, 80, FIRST), (80, 20, SECOND), (50, 50, FIRST)])
def test_estimate_is_the_smaller_and_bound_covers_the_larger(
    two_cudnns: None, first_mib: int, second_mib: int, cudnn: str
) -> None:
    found, runs = estimate({FIRST: first_mib, SECOND: second_mib})
    assert [options.cudnn for options in runs] == ["", SECOND]
    assert (found.cudnn, found.reserved) == (cudnn, (100 + min(first_mib, second_mib)) * MIB)
    assert found.larger_plans is not None
    assert found.larger_plans.reserved == (100 + max(first_mib, second_mib)) * MIB
    assert found.without_workspaces == 100 * MIB
    assert found.quantile(0.9) >= found.larger_plans.reserved + found.context.bytes
    assert found.stack.cudnn == OLD.cudnn


@pytest.mark.parametrize("second", [80, WorkerError("killed")])
def test_model_of_images_runs_under_both_at_once(
    two_cudnns: None, monkeypatch: pytest.MonkeyPatch, second: int | Exception
) -> None:
    monkeypatch.setattr(other_plans, "n_free_lanes", lambda: 2)
    found, runs = estimate({FIRST: 20, SECOND: second}, target="torchvision:resnet18")
    assert sorted(options.cudnn for options in runs) == ["", SECOND]
    assert found.reserved == 120 * MIB
    assert (found.larger_plans is not None) == (second == 80)


def test_first_failure_is_raised(two_cudnns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_plans, "n_free_lanes", lambda: 2)
    with pytest.raises(WorkerError, match="killed"):
        estimate({FIRST: WorkerError("killed"), SECOND: 20}, target="torchvision:resnet18")


def test_example_json_and_traits_have_both_peaks(two_cudnns: None) -> None:
    found, _ = estimate({FIRST: 20, SECOND: 80})
    example = observed(found)
    assert (example.larger, example.larger_allocated, example.other_cudnn) == (180 * MIB, 180 * MIB, SECOND)
    assert example.without_workspaces == 100 * MIB
    assert to_dict(found)["plans"] == {
        "cudnn": FIRST,
        "without_workspaces_bytes": 100 * MIB,
        "larger": {"cudnn": SECOND, "allocated": 180 * MIB, "reserved": 180 * MIB},
    }
    assert found.traits["cudnns"] == "apart"


def test_failed_second_run_leaves_the_first(two_cudnns: None) -> None:
    found, runs = estimate({FIRST: 20, SECOND: WorkerError("killed")})
    assert (found.reserved, found.larger_plans, found.traits["cudnns"], len(runs)) == (120 * MIB, None, "alone", 2)
    assert any(text.startswith("no second cuDNN chose plans, which widens the bound: cuDNN") for text in found.warnings)


def test_smaller_plans_may_fit_where_the_first_do_not(two_cudnns: None) -> None:
    found, runs = estimate({FIRST: 8 * 1024, SECOND: 20}, Category.TEMPORARY)
    assert (found.reserved, found.out_of_memory, found.cudnn) == (120 * MIB, None, SECOND)
    assert [options.limited for options in runs] == [True, False]
    assert found.quantile(0.9) > 8 * GIB
    assert found.verdict.value == "uncertain"


def test_plans_beyond_the_card_do_not_fit(two_cudnns: None) -> None:
    found, _ = estimate({FIRST: 9 * 1024, SECOND: 8 * 1024}, Category.TEMPORARY)
    assert found.out_of_memory is not None
    assert found.verdict.value == "does not fit"


def test_needs_a_convolution(two_cudnns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without = of_workspace(20, "aten::mm")
    monkeypatch.setattr(f"{__name__}.of_workspace", lambda size_mib, category: without)
    found, runs = estimate({FIRST: 20, SECOND: 80})
    assert (found.larger_plans, len(runs)) == (None, 1)
