"""Why a job failed: of itself, or of the machine it was traced on."""

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
def test_a_machine_that_had_no_more_of_something_is_the_reason(error: BaseException) -> None:
    assert raised(error).is_of_machine
    assert raised(ValueError("no data"), error).is_of_machine


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(errno.ENOENT, "x"), RuntimeError("CUDA out of memory")])
def test_a_job_s_own_error_is_its_own(error: BaseException) -> None:
    assert not raised(error).is_of_machine


def test_of_our_errors_those_of_processes_and_compilers_are_the_machine_s() -> None:
    assert [kind.is_of_machine for kind in (WorkerError, TimeLimit, CompilerError, UsageError, JobError)] == [True] * 3 + [
        False
    ] * 2
