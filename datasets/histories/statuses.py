"""Words for the end of a job, by the program that writes them, and their meaning: complete, out of memory, or cut short.

A peak is complete only if the job is. Every other word makes it a lower bound, an unknown word too.
"""

from __future__ import annotations

import re
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
# spec: class JobStatus in
# https://github.com/ray-project/ray/blob/f924c52d9c9a00f3c8239351781285dcbbd09ecd/python/ray/dashboard/modules/job/common.py
_RAY: Final[dict[str, Status]] = {
    "PENDING": "unknown", "RUNNING": "unknown", "STOPPED": "killed", "SUCCEEDED": "ok", "FAILED": "error",
}  # fmt: skip
# spec: phases of a pod, then conditions of a Job and its reason, in
# https://github.com/kubernetes/website/blob/3842a2847339fe9ad1013653ef81c9aa0f77b639/content/en/docs/concepts/workloads/pods/pod-lifecycle.md
# https://github.com/kubernetes/website/blob/7a429867096690db609b8bb486bfd22500da7829/content/en/docs/concepts/workloads/controllers/job.md
# reasons of ended containers (OOMKilled: of host memory) and of evicted pods in
# https://github.com/containerd/containerd/blob/6d0545dc897936c088c821fbf6fdbe7c86e8e84e/internal/cri/server/helpers.go
# https://github.com/kubernetes/kubernetes/blob/de663b934f1fadd966d4136ea515c298f1e7f34a/pkg/kubelet/eviction/helpers.go
_KUBERNETES: Final[dict[str, Status]] = {
    "PENDING": "unknown", "RUNNING": "unknown", "SUCCEEDED": "ok", "FAILED": "error",
    "COMPLETE": "ok", "DEADLINEEXCEEDED": "timeout",
    "COMPLETED": "ok", "ERROR": "error", "STARTERROR": "error", "OOMKILLED": "killed", "EVICTED": "killed",
}  # fmt: skip
# spec: https://github.com/wandb/docs/blob/ca6e2da55911ccaec43a5aa1a692e2ac020259c2/models/runs/run-states.mdx
_WANDB: Final[dict[str, Status]] = {
    "FINISHED": "ok", "FAILED": "error", "CRASHED": "killed", "KILLED": "killed", "RUNNING": "unknown", "PENDING": "unknown",
}  # fmt: skip
# spec: https://github.com/mlflow/mlflow/blob/cd53ca0c761265e92ef610b7c740aa90bf75c5d6/mlflow/entities/run_status.py
_MLFLOW: Final[dict[str, Status]] = {
    "FINISHED": "ok", "FAILED": "error", "KILLED": "killed", "RUNNING": "unknown", "SCHEDULED": "unknown",
}  # fmt: skip
# arbitrary: what people write
_PEOPLE: Final[dict[str, Status]] = {
    "DONE": "ok", "SUCCESS": "ok", "PASSED": "ok", "CUDA_OOM": "oom", "CUDA_OUT_OF_MEMORY": "oom", "GPU_OOM": "oom",
    "CANCELED": "killed", "TIMED_OUT": "timeout",
}  # fmt: skip
_OURS: Final[dict[str, Status]] = {status.upper(): status for status in get_args(Status)}
# spec: pai_job_table in
# https://github.com/alibaba/clusterdata/blob/02a1be14f86d8221b53d3cbbde2c2b60ea68b95a/cluster-trace-gpu-v2020/README.md
# "only 'Terminated' tasks are successful", and only there "Terminated" means a good end
PAI: Final[dict[str, Status]] = {"TERMINATED": "ok", "FAILED": "error", "RUNNING": "unknown", "WAITING": "unknown"}
_CANCELLED_BY: Final = re.compile(r"CANCELLED BY \d+")  # spec: sacct(1); the user's number
WORDS: Final[dict[str, Status]] = {**_PEOPLE, **_MLFLOW, **_WANDB, **_KUBERNETES, **_RAY, **SLURM, **_OURS}


def word_of(text: str) -> str:
    """Return the word of a status: `CANCELLED by 1001` and `completed+` lose what follows, blanks become underscores."""
    word = _CANCELLED_BY.sub("CANCELLED", text.strip().rstrip("+").upper())
    return "_".join(word.replace("-", " ").split())


def status_of(text: str) -> Status:
    """Return the meaning of any program's word; `unknown` if it is none.

    Example:
        >>> [status_of(word) for word in ("COMPLETED", "OOMKilled", "crashed", "CANCELLED by 7", "paused")]
        ['ok', 'killed', 'killed', 'killed', 'unknown']
    """
    return WORDS.get(word_of(text), "unknown")
