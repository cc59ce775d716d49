"""Decisions on the variables of the caller's shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.core.errors import JobError
from vramcast.jobs.caller_variables import VariableRule, decision, note
from vramcast.jobs.commands import reading
from vramcast.jobs.ranks import Rank, World
from vramcast.tracer.protocol.alloc_conf import UNCACHED, VARIABLES
from vramcast.tracer.protocol.job_result import Result

Probe = Callable[..., tuple[dict[str, Any], Result]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES", VariableRule.REPLACED), ("RANK", VariableRule.REPLACED),
        ("SLURM_PROCID", VariableRule.REPLACED),
        ("CUBLAS_WORKSPACE_CONFIG", VariableRule.OBEYED), ("TORCH_NCCL_AVOID_RECORD_STREAMS", VariableRule.OBEYED),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", VariableRule.OBEYED), ("NCCL_BUFFSIZE", VariableRule.OBEYED),
        ("CUDA_LAUNCH_BLOCKING", VariableRule.IGNORED), ("NVIDIA_VISIBLE_DEVICES", VariableRule.IGNORED),
        ("TORCHINDUCTOR_CACHE_DIR", VariableRule.IGNORED), ("TORCHINDUCTOR_MAX_AUTOTUNE", VariableRule.OBEYED), ("HOME", None),
    ],
)  # fmt: skip
def test_each_variable_has_one_decision(name: str, expected: VariableRule | None) -> None:
    assert decision(name) is expected


@pytest.mark.parametrize("name", [*VARIABLES, UNCACHED])
def test_settings_of_the_allocator_are_obeyed(name: str) -> None:
    assert decision(name) is VariableRule.OBEYED


def test_every_number_of_a_rank_is_replaced() -> None:
    rank = Rank(5, World(8, 4))
    names = ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "SLURM_NTASKS"]
    found = rank.variables(dict.fromkeys([*names, "HOME"], "77"))
    assert [found[name] for name in names] == ["5", "1", "5", "5", "8", "8"]
    assert found["HOME"] == "77"
    assert {decision(name) for name in rank.numbers} == {VariableRule.REPLACED}


def test_a_command_names_what_counts() -> None:
    shell = {
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_HOME": "/usr",
        "HOME": "/",
    }
    expected = (
        "variables of the shell: CUDA_VISIBLE_DEVICES replaced by those of the job's own ranks; "
        "PYTORCH_CUDA_ALLOC_CONF obeyed, because they may change its memory"
    )
    assert reading.read(["python", "-c", "pass"], shell).notes == (expected,)
    assert note({"CUDA_HOME": "/usr"}) == ""


@pytest.mark.integration
@pytest.mark.parametrize("selected", ["3", "", "-1", "GPU-12345678-1234", "2,3", "no card"])
def test_the_callers_choice_is_replaced(probe: Probe, monkeypatch: pytest.MonkeyPatch, selected: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", selected)
    said, result = probe("""
        import os
        note(available=torch.cuda.is_available(), count=torch.cuda.device_count())
        note(shown=os.environ["CUDA_VISIBLE_DEVICES"], name=torch.cuda.get_device_name(0))
        torch.empty(8, device="cuda")
    """)
    assert (said["available"], said["count"], said["shown"]) == (True, 1, "0")
    assert said["name"]
    assert result.status == "ok"


@pytest.mark.integration
@pytest.mark.parametrize(("selected", "count"), [("3", 1), ("", 0), ("-1", 0), ("MIG-1/2", 1), ("5,6", 1)])
def test_a_jobs_own_choice_counts(probe: Probe, selected: str, count: int) -> None:
    said, _ = probe(
        f"""
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = {selected!r}
        note(available=torch.cuda.is_available(), count=torch.cuda.device_count())
        torch.empty(8, device="cuda" if torch.cuda.is_available() else "cpu")
        """
    )
    assert (said["available"], said["count"]) == (count > 0, count)


@pytest.mark.integration
def test_an_absent_card_is_named(probe: Probe) -> None:
    with pytest.raises(JobError, match=r"do you have enough GPUs\? .*The job has one card: --world-size 2 gives it one more"):
        probe('torch.empty(8, device="cuda:1")')
