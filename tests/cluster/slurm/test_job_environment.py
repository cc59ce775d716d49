"""The environment variables of a job, as passed by sbatch."""

from __future__ import annotations

import pytest

from vramcast.cluster.slurm.job_environment import job_environment

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


@pytest.mark.parametrize(
    "code",
    [
        "main(auto_envvar_prefix='TRAIN')",
        "class S(BaseSettings, env_prefix='TRAIN_'):\n    batch: int = 8",
        "class S(BaseSettings):\n    train_batch: int = 8",
        "os.environ[f'{p}_BATCH']",
        "os.environ.get(prefix + 'BATCH')",
        "os.getenv('TRAIN_' + name)",
        "for name, value in os.environ.items(): ...",
        "for name in os.environ: ...",
        "{**os.environ}",
        "dict(os.environ)",
        "env = environs.Env()",
    ],
)
def test_sends_variables_under_computed_names(code: str) -> None:
    login = {"SSH_TTY": "x", "XDG_RUNTIME_DIR": "x", "TERM": "x", "MY_TOKEN": "x", "PATH": "x"}
    job = job_environment({"TRAIN_BATCH": "512", **login}, "ALL,TRAIN_LR=1", [code])
    assert job == {"TRAIN_BATCH": "512", "TRAIN_LR": "1"}


@pytest.mark.parametrize(
    "code", ["os.environ['OTHER_X']", "os.environ.get('OTHER_X', '8')", 'os.getenv("OTHER_X")', "x.items()"]
)
def test_omits_other_variables_for_known_names(code: str) -> None:
    assert job_environment({"TRAIN_BATCH": "512"}, "", [code]) == {}


def test_sends_variables_of_launchers_and_libraries() -> None:
    names = (
        "PET_NPROC_PER_NODE",
        "NCCL_BUFFSIZE",
        "NVTE_FLASH_ATTN",
        "CUDA_MODULE_LOADING",
        "UV_ENV_FILE",
        "APPTAINERENV_BATCH",
    )
    assert set(job_environment({**dict.fromkeys(names, "1"), "CUDA_HOME": "/x"}, "", [""])) == set(names)
