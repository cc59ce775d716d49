"""A followed plan: footprints, statistics, refusals, and that no block overlaps another, on the null GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.follow import __main__ as benchmark
from benchmarks.follow import on_null
from benchmarks.follow.jobs import LARGE
from benchmarks.follow.on_null import MIB, Asked
from tests.plans.runtime import small_jobs
from vramcast.core.errors import CompilerError, OtherAllocator, UsageError
from vramcast.hardware.cards import device
from vramcast.plans.runtime import library
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob, PlannedPool, RankPlan
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.client import NullGpuTracer


@pytest.fixture(scope="module")
def plans(needs_null_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the plans of two jobs."""
    folder = tmp_path_factory.mktemp("plans")
    for name in ("cnn", "transformer"):
        on_null.plan(name, folder)
    return folder


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU-only torch pass for a CUDA build."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "13.0")


def test_every_virtual_function_of_the_installed_torch_is_forwarded() -> None:
    import torch

    known = library.virtuals(Path(torch.__file__).parent / "include")
    assert {"allocate", "recordStream", "createOrIncrefPool", "getExpandableSegmentSizes"} <= known
    assert known - library.forwarded() == {"is_simple_data_ptr", "getMemoryInfo"}


def test_unknown_virtual_function_is_refused(cuda_build: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "forwarded", lambda: {"allocate"})
    with pytest.raises(CompilerError, match=r"does not forward \(.*recordStream.*\): use torch \d"):
        library.load()


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (PlannedJob("train.py", "cd"), "the script differs: train.py as it was in the plan, train.py as it is now here"),
        (PlannedJob(torch="2.12.0"), r"the release of torch differs: 2\.11\.0 in the plan, 2\.12\.0 here"),
        (PlannedJob(card="T4"), "the card differs: A100 in the plan, T4 here"),
        (PlannedJob(world_size=4), "the number of ranks differs: 2 in the plan, 4 here"),
    ],
)
def test_plan_of_another_job_is_refused(here: PlannedJob, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PlannedJob("train.py", "ab", "2.11.0", "A100", 2).require(here)


def test_unknown_facts_are_not_compared() -> None:
    PlannedJob(torch="2.11.0").require(PlannedJob("train.py", "ab", "2.11.0", "T4", 3))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_job_takes_the_arena_and_nothing_else(plans: Path, name: str) -> None:
    plan = plans / f"{name}.json"
    ran = on_null.run_script(name, 8, plan, plans)
    assert set(ran.device) == {-(-benchmark.arena(plan) // (2 * MIB)) * 2 * MIB}
    assert ran.counts is not None
    assert (ran.counts["holes"], ran.counts["strays"]) == (0, 0)
    stats = ran.found["stats"]
    assert stats["allocated_bytes.all.current"] == ran.found["in_snapshot"]["active_allocated"]
    assert stats["allocation.all.current"] == ran.found["blocks"]
    assert stats["allocated_bytes.all.peak"] == benchmark.arena(plan) or stats["allocated_bytes.all.peak"] < benchmark.arena(
        plan
    )


@pytest.mark.release
def test_one_rank_of_ddp_follows_its_pool_and_its_hooks(needs_null_gpu: None, tmp_path: Path) -> None:
    plan = on_null.plan("one_rank", tmp_path, "--swap")
    swap = PlanFile.read(plan).of_rank(0).swap
    assert swap is not None
    assert swap["hooks"]["moved_bytes"] > 50 * MIB
    ran = on_null.run_script("one_rank", on_null.N_TRACED, plan, tmp_path)
    assert benchmark.arena(plan) < swap["peak_live"]
    assert set(ran.device) == {-(-benchmark.arena(plan) // (2 * MIB)) * 2 * MIB}


@pytest.mark.integration
def test_unchanged_script_follows_from_the_command_line(plans: Path) -> None:
    plan = plans / "cnn.json"
    ran = on_null.run_script("cnn", 3, None, plans, before=[sys.executable, "-m", "vramcast", "follow", str(plan), "--"])
    assert ran.found["stats"]["reserved_bytes.all.peak"] == -(-benchmark.arena(plan) // (2 * MIB)) * 2 * MIB


@pytest.mark.integration
@pytest.mark.parametrize("deviation", ["evaluates", "raises", "averages", "smaller"])
def test_deviation_takes_at_most_a_twentieth_more_than_without_a_plan(plans: Path, deviation: str) -> None:
    native, followed = (on_null.run(Asked("cnn", 7, plan, deviation)) for plan in ("", str(plans / "cnn.json")))
    assert followed.most <= 1.05 * native.most


@pytest.mark.integration
@pytest.mark.parametrize("is_slow", [False, True])
def test_live_blocks_never_overlap_and_no_request_is_lost(plans: Path, is_slow: bool) -> None:
    total, wrong = benchmark.judged(plans / "transformer.json", range(6), is_slow=is_slow)
    assert wrong == 0
    assert total["planned"] > 10_000


@pytest.mark.integration
@pytest.mark.parametrize("fault", benchmark.FAULTS)
def test_planted_fault_is_found(plans: Path, fault: str, tmp_path: Path) -> None:
    source = benchmark.faulty_source(fault, tmp_path)
    assert benchmark.judged(plans / "transformer.json", range(6), is_slow=True, source=source)[1] > 0


@pytest.mark.integration
def test_job_fits_on_a_small_card_only_with_its_plan(needs_null_gpu: None, tmp_path: Path) -> None:
    plan = on_null.plan(LARGE, tmp_path)
    native, followed = (on_null.run(Asked(LARGE, 3, path), total_bytes=benchmark.SMALL_CARD) for path in ("", str(plan)))
    assert "out of memory" in native.found["out_of_memory"]
    assert not followed.found["out_of_memory"]


@pytest.mark.integration
def test_command_ends_with_the_scripts_exit_code_and_refusals_with_two(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch, sys; sys.exit(7)\n")
    pool = PlannedPool(1024, (512,), (0,))
    rank = RankPlan(0, 2, {"birth": (0,), "death": (1,), "row": (0,), "requested_bytes": (4,)}, pool)

    def follow(job: PlannedJob) -> tuple[int, str]:
        PlanFile("a job", job, (rank,)).write(tmp_path / "plan.json")
        words = [sys.executable, "-m", "vramcast", "follow", str(tmp_path / "plan.json"), "--", sys.executable, "train.py"]
        ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        return ran.returncode, ran.stderr

    assert follow(PlannedJob("other.py"))[0] == 7  # another program: nothing is followed
    code, said = follow(PlannedJob("train.py", "ab"))
    assert (code, "the script differs" in said) == (2, True)
    code, said = follow(PlannedJob("train.py", None, "1.0"))
    assert (code, "the release of torch differs" in said) == (2, True)
    (tmp_path / "plan.json").write_text("{")
    words = [sys.executable, "-m", "vramcast", "follow", str(tmp_path / "plan.json"), "--", sys.executable, "train.py"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, "is not JSON" in ran.stderr, "Traceback" in ran.stderr) == (2, True, False)


def test_missing_compiler_is_refused_with_the_remedy(cuda_build: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    with pytest.raises(CompilerError, match=r"No C compiler found \(no-such-compiler\): install one") as refused:
        library.load()
    assert refused.value.exit_code == 3


def test_cpu_only_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(OtherAllocator, match="is a CPU-only one: install a CUDA build") as refused:
        library.load()
    assert refused.value.exit_code == 3


def _small(name: str, folder: Path, *, total_bytes: int = 0) -> Any:
    card = device(on_null.CARD).with_memory(total_bytes) if total_bytes else device(on_null.CARD)
    root = (str(Path(__file__).parents[3]),)
    return NullGpuTracer.shared().run(Program(small_jobs.__name__, (name, str(folder)), card, True, root))


@pytest.mark.integration
def test_full_card_uses_holes_and_takes_pages_of_the_arena(needs_null_gpu: None, tmp_path: Path) -> None:
    in_hole, at_end, is_served = _small("fill_card", tmp_path, total_bytes=600 * MIB)
    assert (in_hole.holes, in_hole.arena_bytes) == (1, 320 * MIB)
    assert is_served
    assert at_end.arena_bytes <= 20 * MIB


@pytest.mark.integration
def test_graph_capture_gets_no_planned_places(needs_null_gpu: None, tmp_path: Path) -> None:
    before, captured, after = _small("capture", tmp_path)
    assert (before.planned, captured.planned, after.planned) == (2, 2, 4)
    assert captured.strays >= before.strays + 2


@pytest.mark.integration
def test_blocks_of_several_threads_lie_apart(needs_null_gpu: None, tmp_path: Path) -> None:
    wrong, counts = _small("threads", tmp_path)
    assert wrong == 0
    assert counts.planned > 100


@pytest.mark.integration
def test_plan_for_another_card_is_refused_where_the_card_is_known(needs_null_gpu: None, tmp_path: Path) -> None:
    assert "the card differs: Tesla T4 in the plan, NVIDIA GeForce RTX 4090 here" in _small("another_card", tmp_path)


@pytest.mark.integration
def test_allocator_of_cuda_is_refused(needs_null_gpu: None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    PlanFile("a job", PlannedJob(), (small_jobs.plan((512,)),)).write(tmp_path / "plan.json")
    words = [sys.executable, "-m", "vramcast", "follow", "plan.json", "--", sys.executable, "train.py"]
    conf = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=conf)
    assert ran.returncode == 3
    assert "needs PyTorch's native allocator, and this process has cudaMallocAsync" in ran.stderr
    assert "Traceback" not in ran.stderr
