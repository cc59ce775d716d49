"""The environment variables of a job, as passed by sbatch."""

from __future__ import annotations

import pytest

from vramcast.schedulers.slurm.job_environment import job_environment

SUBMITTED = {"BATCH": "8", "LR": "0.1", "OTHER": "x", "API_TOKEN": "secret", "SLURM_NTASKS": "4", "HOME": "/home/ann"}
TEXT = 'python train.py --batch $BATCH --lr ${LR} --name "$NAME" $API_TOKEN $SLURM_NTASKS'


# spec: sbatch(1), --export
@pytest.mark.parametrize(
    ("export", "found"),
    [
        ("", {"BATCH": "8", "LR": "0.1"}),
        ("ALL", {"BATCH": "8", "LR": "0.1"}),
        ("ALL,BATCH=256", {"BATCH": "256", "LR": "0.1"}),
        ("BATCH=256,ALL", {"BATCH": "256", "LR": "0.1"}),
        ("NAME=n,BATCH", {"BATCH": "8", "LR": None, "NAME": "n"}),
        ("NONE", {"BATCH": None, "LR": None}),
        ("none", {"BATCH": None, "LR": None}),
        ("NIL", {}),
        ("ALL,NAME='a,b'", {"BATCH": "8", "LR": "0.1", "NAME": None}),
    ],
)
def test_export_selects_variables(export: str, found: dict[str, str | None]) -> None:
    job = job_environment(SUBMITTED, export, [TEXT])
    assert {name: value for name, value in job.items() if name not in ("HOME", "API_TOKEN")} == found


def test_omits_unused_and_secret_variables() -> None:
    job = job_environment(SUBMITTED, "", [TEXT])
    assert job["API_TOKEN"] is None
    assert job["HOME"] == "/home/ann"
    assert not {"OTHER", "SLURM_NTASKS"} & job.keys()


def test_sends_bytes_that_are_not_text() -> None:
    assert job_environment({"BATCH": "\udcff"}, "", [TEXT]) == {"BATCH": "?"}
