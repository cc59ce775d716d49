"""The cause of a job's failure: the job itself, or the machine that traced it."""

from __future__ import annotations

import errno
import os

import pytest

from vramcast.core.errors import CompilerError, JobError, TimeLimit, UsageError, WorkerError
from vramcast.tracer.processes.job_process import checked
from vramcast.tracer.protocol.job_result import Result


def raised(error: BaseException, cause: BaseException | None = None) -> JobError:
    result = Result("error")
    try:
        raise error from cause
    except BaseException as seen:
        result.fail(seen)
    with pytest.raises(JobError) as found:
        checked(result)
    return found.value


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE)),
        MemoryError(),
        BlockingIOError("Caught BlockingIOError in DataLoader worker process 0."),
        RuntimeError("can't start new thread"),
    ],
    ids=repr,
)
def test_exhausted_machine_is_cause(error: BaseException) -> None:
    assert raised(error).is_of_machine
    assert raised(ValueError("no data"), error).is_of_machine


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(errno.ENOENT, "x"), RuntimeError("CUDA out of memory")])
def test_jobs_own_error_is_not_machines(error: BaseException) -> None:
    assert not raised(error).is_of_machine


def test_process_and_compiler_errors_are_machines() -> None:
    assert [kind.is_of_machine for kind in (WorkerError, TimeLimit, CompilerError, UsageError, JobError)] == [True] * 3 + [
        False
    ] * 2
