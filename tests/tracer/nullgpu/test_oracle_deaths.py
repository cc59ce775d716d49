"""Deaths of the cuDNN oracle, and forks next to it: a job's result is the undisturbed one, or an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.deadline import Deadline
from vramcast.core.errors import NullGpuError, WorkerError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn import client as cudnn_client
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result

MODELS = """
    import os, signal, socket, struct
    from pathlib import Path
    import torch

    def oracle():
        if os.environ.get("NULLGPU_CUDNN_SOCKET"):  # the null GPU's oracle; the job uses this socket
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(os.environ["NULLGPU_CUDNN_SOCKET"])
                return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        return next(int(n) for n in children if b"cudnn.oracle" in Path(f"/proc/{n}/cmdline").read_bytes())

    class Convolutions(torch.nn.Module):
        def __init__(self, between=lambda: None):
            super().__init__()
            self.between = between
            self.first, self.second = torch.nn.Conv2d(3, 64, 3), torch.nn.Conv2d(64, 128, 5)

        def forward(self, x):
            x = self.first(x)
            self.between()
            return self.second(x)

    def kill_once(path):
        if not Path(path).exists():
            Path(path).touch()
            os.kill(oracle(), signal.SIGKILL)

    def calm(): return Convolutions()
    def forks(): return Convolutions(lambda: os.fork())
    def kills(): return Convolutions(lambda: os.kill(oracle(), signal.SIGKILL))
    def kills_once(path): return Convolutions(lambda: kill_once(path))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Callable[[str], Job]:
    try:
        choose(None)
    except NullGpuError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("models") / "oracle_models.py"
    path.write_text(textwrap.dedent(MODELS))
    batch = TensorSpec((16, 3, 48, 48))
    training = Training(steps=1, mode="infer")
    return lambda name: Job(
        device("a100-40gb"), target=f"{path}:{name}", batch=batch, training=training, search_path=tuple(sys.path)
    )


@pytest.fixture
def calm(tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job]) -> list[int]:
    return sizes(tracer().trace(job("calm")))


def sizes(result: Result) -> list[int]:
    assert result.trace is not None
    return [int(n) for n in result.trace.size_bytes]


def oracle(tracer: NullGpuTracer) -> CudnnOracle:
    found = tracer._oracle_for(None)
    assert found is not None
    return found


def test_sizes_include_workspace(calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job]) -> None:
    nobody = tracer()._cudnn_environment(device("a100-40gb"), None)
    assert sizes(tracer()._ask(job("calm"), nobody, Deadline.after(60))) != calm  # otherwise the other tests could not fail


def test_restarts_killed_oracle_and_removes_folder(
    calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job]
) -> None:
    before = oracle(tracer())
    before.process.kill()
    before.process.wait()
    assert sizes(tracer().trace(job("calm"))) == calm
    assert "cuDNN 9" in tracer().cudnn_answer()
    assert not before.socket_path.parent.exists()


def test_reruns_job_after_oracle_was_killed(
    calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job], tmp_path: Path
) -> None:
    killing = f'kills_once?{{"path": "{tmp_path / "killed"}"}}'
    assert sizes(tracer().trace(job(killing))) == calm
    assert (tmp_path / "killed").exists()


def test_raises_if_oracle_is_killed_repeatedly(
    tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job], calm: list[int]
) -> None:
    with pytest.raises(WorkerError, match="oracle was killed twice"):
        tracer().trace(job("kills"))
    assert sizes(tracer().trace(job("calm"))) == calm


def test_raises_if_oracle_is_killed_at_start(
    calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle(tracer()).close()
    starting = subprocess.Popen

    def start_and_kill(*arguments: Any, **options: Any) -> Any:
        process = starting(*arguments, **options)
        process.kill()
        return process

    monkeypatch.setattr(cudnn_client.subprocess, "Popen", start_and_kill)
    with pytest.raises(WorkerError, match="was killed while it started"):
        tracer().trace(job("calm"))
    monkeypatch.undo()
    assert sizes(tracer().trace(job("calm"))) == calm


@pytest.mark.integration
def test_fake_tracer_restarts_oracle(job: Callable[[str], Job], tmp_path: Path) -> None:
    killing = f'kills_once?{{"path": "{tmp_path / "killed"}"}}'
    results = [FAKE.trace(job(name), timeout_s=120) for name in ("calm", killing)]
    assert (tmp_path / "killed").exists()
    assert [one.ledger for one in results] == [[], []]
    assert sizes(results[0]) == sizes(results[1])


def test_fork_of_job_takes_no_answers(calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job]) -> None:
    for _ in range(5):
        assert sizes(tracer().trace(job("forks"), timeout_s=60)) == calm


def test_fork_of_caller_leaves_oracle_alone(
    calm: list[int], tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job]
) -> None:
    before = oracle(tracer())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = NullGpuTracer.shared()._oracle_for(None)  # with its own oracle
            code = 0 if own is not None and own.process.pid != before.process.pid and own.version() else 2
            NullGpuTracer.shared().close()  # as atexit does
            code += 4 * own.socket_path.parent.exists() if own is not None else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert before.is_alive
    assert before.socket_path.exists()
    assert sizes(tracer().trace(job("calm"))) == calm


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_oracle_removes_folder(
    tracer: Callable[[], NullGpuTracer], job: Callable[[str], Job], death: signal.Signals
) -> None:
    found = oracle(tracer())
    found.process.send_signal(death)
    found.process.wait(5)
    assert not found.socket_path.parent.exists()
