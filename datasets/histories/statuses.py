"""Words for the end of a job, by the program that writes them, and their meaning: complete, out of memory, or cut short.

A peak is complete only if the job is. Every other word makes it a lower bound, an unknown word too.
"""

from __future__ import annotations

from typing import Final, get_args

from vramcast.datasets.run import Status

# spec: sacct(1), JOB STATE CODES. OUT_OF_MEMORY comes from the kernel, for lack of host memory; a job that exhausts its card
# is FAILED.
SLURM: Final[dict[str, Status]] = {
    "COMPLETED": "ok", "OUT_OF_MEMORY": "killed", "FAILED": "error", "CANCELLED": "killed", "TIMEOUT": "timeout",
    "NODE_FAIL": "killed", "PREEMPTED": "killed", "BOOT_FAIL": "killed", "DEADLINE": "timeout", "REVOKED": "killed",
    "LAUNCH_FAILED": "error", "RECONFIG_FAIL": "killed",
    "RUNNING": "unknown", "SUSPENDED": "unknown", "REQUEUED": "unknown", "RESIZING": "unknown", "COMPLETING": "unknown",
}  # fmt: skip
WAITING: Final = ("PENDING", "CONFIGURING")  # spec: likewise; the job has not run
# spec: Ray's JobStatus (docs.ray.io, ray.job_submission.JobStatus)
_RAY: Final[dict[str, Status]] = {"SUCCEEDED": "ok", "FAILED": "error", "STOPPED": "killed", "RUNNING": "unknown"}
# spec: kubernetes.io, "Pod Lifecycle" (phases), "Jobs" (conditions), "Assign Memory Resources" (OOMKilled: host memory),
# "Node-pressure Eviction" (Evicted); Completed and Error are reasons of ended containers
_KUBERNETES: Final[dict[str, Status]] = {
    "SUCCEEDED": "ok", "COMPLETE": "ok", "COMPLETED": "ok", "FAILED": "error", "ERROR": "error", "OOMKILLED": "killed",
    "EVICTED": "killed", "DEADLINEEXCEEDED": "timeout", "RUNNING": "unknown",
}  # fmt: skip
# spec: docs.wandb.ai, "Run states"
_WANDB: Final[dict[str, Status]] = {
    "FINISHED": "ok", "FAILED": "error", "CRASHED": "killed", "KILLED": "killed", "RUNNING": "unknown",
}  # fmt: skip
# spec: mlflow.org, RunStatus
_MLFLOW: Final[dict[str, Status]] = {"FINISHED": "ok", "FAILED": "error", "KILLED": "killed", "RUNNING": "unknown"}
# arbitrary: what people write
_PEOPLE: Final[dict[str, Status]] = {
    "DONE": "ok", "SUCCESS": "ok", "PASSED": "ok", "CUDA_OOM": "oom", "CUDA_OUT_OF_MEMORY": "oom", "GPU_OOM": "oom",
    "CANCELED": "killed", "TIMED_OUT": "timeout",
}  # fmt: skip
_OURS: Final[dict[str, Status]] = {status.upper(): status for status in get_args(Status)}
# spec: Alibaba's cluster-trace-gpu-v2020; "Terminated" means an end without a fault only there
PAI: Final[dict[str, Status]] = {"TERMINATED": "ok", "FAILED": "error", "INTERRUPTED": "killed"}
WORDS: Final[dict[str, Status]] = {**_PEOPLE, **_MLFLOW, **_WANDB, **_KUBERNETES, **_RAY, **SLURM, **_OURS}


def word_of(text: str) -> str:
    """Return the word of a status: `CANCELLED by 1001` and `completed+` lose what follows, blanks become underscores."""
    word = "_".join(text.strip().rstrip("+").upper().replace("-", " ").split())
    return word.split("_BY", 1)[0]


def status_of(text: str) -> Status:
    """Return the meaning of any program's word; `unknown` if it is none.

    Example:
        >>> [status_of(word) for word in ("COMPLETED", "OOMKilled", "crashed", "CANCELLED by 7", "paused")]
        ['ok', 'killed', 'killed', 'killed', 'unknown']
    """
    return WORDS.get(word_of(text), "unknown")
