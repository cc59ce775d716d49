"""The caller's end of the cuDNN oracle: starts its process, and sends it requests from Python."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from vramcast.core.errors import NullGpuError, WorkerError
from vramcast.tracer.nullgpu.cudnn.backend import EngineConfig, PlanSize
from vramcast.tracer.processes.fork_safety import Lock, forget_in_forks
from vramcast.tracer.processes.job_process import python_path

START_LIMIT_S = 20.0  # arbitrary; it starts in about a tenth of a second
_ENDING_S = 2.0  # arbitrary: a process takes milliseconds from its last closed connection to its end
ANSWER_LIMIT_S = 120.0  # arbitrary; the first question takes about a second on a cold disk


class OracleError(NullGpuError):
    """The oracle answered ERROR, or not at all."""


class PlanDoesNotBuild(NullGpuError):
    """cuDNN refused a plan; `status` is its cudnnStatus_t."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The plan does not build: cuDNN status {status}.")
        self.status = status


class _Talk:
    """One connection to an oracle; a request without a complete answer ends it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_LIMIT_S)
        try:
            self._socket.connect(str(path))
        except BaseException:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("r", encoding="ascii", newline="\n")

    def ask(self, request: str) -> list[str]:
        """Return all lines of the answer; raise ConnectionError if the oracle is gone."""
        try:
            self._socket.sendall(request.encode("ascii") + b"\n")
            first = self._line()
            kind, _, count = first.partition(" ")
            more = int(count) if request.startswith("HEUR ") and kind == "OK" else 0
            return [first, *(self._line() for _ in range(more))]
        except BaseException:
            self.close()
            raise

    def _line(self) -> str:
        line = self._lines.readline()
        if not line:  # cuDNN has ended its process
            raise ConnectionError
        return line.rstrip("\n")

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()


class CudnnOracle:
    """An oracle process and one connection to it; a context manager.

    The process makes the folder of its socket, under a name chosen here, and removes it when it ends. It ends when this process
    is gone, however that ended. Forks of this process do not share it.

    Args:
        cudnn_dir: Folder of the installed cuDNN's libraries.
        libraries: Folder of its stand-ins, from `oracle_libraries`.
        cache: File of answers, or None.
        device: Device-property record; `set_device` may follow.
    """

    def __init__(
        self, cudnn_dir: Path, libraries: Path, *, cache: Path | None = None, device: Mapping[str, object] | None = None
    ) -> None:
        paths = {"--cudnn-dir": cudnn_dir, "--libraries": libraries, "--cache": cache}
        # Absolute: the process starts in another folder.
        self._options = [word for name, path in paths.items() if path is not None for word in (name, os.path.abspath(path))]
        self._device = device
        self._lock = Lock()
        self._talk: _Talk | None = None  # no request is pending on it
        self._is_ours = True

    def __enter__(self) -> Self:
        # Named here, so that it can be removed whenever the process is killed, even before its first output.
        self._folder = Path(tempfile.gettempdir()) / f"vramcast-{secrets.token_hex(8)}"
        # -P, and another folder: nothing is imported from the current folder.
        command = [sys.executable, "-P", "-m", "vramcast.tracer.nullgpu.cudnn.oracle", "--folder", str(self._folder)]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        environment.pop("LD_PRELOAD", None)
        self.process = subprocess.Popen(
            [*command, *self._options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=self._folder.anchor,
            start_new_session=True,  # a Ctrl-C at the terminal is for us
        )  # fmt: skip
        forget_in_forks(self)
        try:
            self.socket_path = self._await_socket()
            if self._device is not None:
                self.set_device(self._device)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running and belongs to this process."""
        return self._is_ours and self.process.poll() is None

    @property
    def was_killed(self) -> bool:
        """Return whether it was killed from outside (out of memory?), through no fault of cuDNN's."""
        return self.process.poll() == -signal.SIGKILL

    def _await_socket(self) -> Path:
        """Return the path of the socket, which the process prints once it takes connections.

        Raises:
            WorkerError: It was killed; this must not look like a machine without a usable cuDNN.
            OracleError: It does not start here.
        """
        assert self.process.stdout is not None
        with self.process.stdout as said:
            readable, _, _ = select.select([said], [], [], START_LIMIT_S)
            path = said.readline().decode().rstrip("\n") if readable else ""
        if not path:
            if readable and self.process.wait() == -signal.SIGKILL:
                raise WorkerError("The cuDNN oracle was killed while it started: is the machine out of memory? Try again.")
            self.process.kill()
            raise OracleError(f"The cuDNN oracle did not start (exit status {self.process.wait()}).")
        return Path(path)

    def close(self) -> None:
        """End the process."""
        self._hang_up()
        if not self._is_ours:
            return
        self._close_pipes()  # the process ends with its stdin
        try:
            self.process.wait(timeout=START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.was_killed:  # it could not do this itself
            shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Drop the process in a fork; see `forks.Owner`. It ends when our parent closes its stdin, even before this fork."""
        self._is_ours = False
        self._hang_up()
        self._close_pipes()
        self.process.returncode = 0  # this fork must neither wait for it nor miss it

    def _hang_up(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def ask(self, request: str) -> str:
        """Send one request line and return the first line of the answer."""
        return self._question(request)[0]

    def _question(self, request: str) -> list[str]:
        """Return all lines of an answer.

        While a request is pending its connection serves no other one. If anything interrupts it (a signal handler's exception),
        the connection is closed, so no later request gets this answer.
        """
        with self._lock:
            talk, self._talk = self._talk, None
            started = time.monotonic()
            try:
                talk = talk or self._connect()
                answer = talk.ask(request)
            except (ConnectionError, FileNotFoundError):
                # A killed process closes its connections before it counts as ended: the next check of `is_alive` must see its
                # end.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_ENDING_S)
                raise OracleError("The cuDNN oracle ended without an answer; its stderr says why.") from None
            except TimeoutError:  # a signal handler may raise it as well
                if time.monotonic() - started < ANSWER_LIMIT_S:
                    raise
                raise OracleError(f"The cuDNN oracle did not answer within {ANSWER_LIMIT_S:.0f} s.") from None
            self._talk = talk
            return answer

    def _connect(self) -> _Talk:
        if not self.is_alive:
            raise ConnectionError
        talk = _Talk(self.socket_path)
        if self._device is not None:
            talk.ask(f"DEVICE {json.dumps(self._device)}")
        return talk

    def set_device(self, record: Mapping[str, object]) -> None:
        """Set the device-property record of the following requests."""
        self._device = record
        self._ok(f"DEVICE {json.dumps(record)}")

    def version(self) -> int:
        """Return cuDNN's version, e.g. 91900."""
        return int(self._ok("VERSION")[0])

    def heuristics(self, mode: int, graph: str) -> list[EngineConfig]:
        """Return the suggestions of a heuristics mode (0 INSTANT, 1 B, 2 FALLBACK, 3 A), in cuDNN's order."""
        lines = [line.split() for line in self._ok(f"HEUR {mode} {graph}")[1:]]
        return [EngineConfig(int(engine), _notes(numerical), _notes(behavior)) for engine, numerical, behavior in lines]

    def plan(self, mode: int, index: int, graph: str) -> PlanSize:
        """Return the workspace of one suggestion's plan; raise PlanDoesNotBuild if there is none."""
        return _plan_size(self._ok(f"PLAN {mode} {index} {graph}")[0])

    def engine(self, engine: int, graph: str, knobs: Mapping[int, int] | None = None) -> PlanSize:
        """Return the workspace of a hand-made configuration's plan; raise PlanDoesNotBuild if there is none."""
        text = ",".join(f"{knob}={value}" for knob, value in (knobs or {}).items()) or "-"
        return _plan_size(self._ok(f"ENGINE {engine} {text} {graph}")[0])

    def _ok(self, request: str) -> list[str]:
        """Return the text after OK, and the further lines."""
        first, *further = self._question(request)
        kind, _, rest = first.partition(" ")
        if kind == "FAIL":
            raise PlanDoesNotBuild(int(rest))
        if kind != "OK":
            raise OracleError(f"The cuDNN oracle says: {rest}")
        return [rest, *further]


def _plan_size(text: str) -> PlanSize:
    workspace_bytes, limit_bytes, withheld = map(int, text.split())
    return PlanSize(workspace_bytes, limit_bytes, withheld)


def _notes(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(map(int, text.split(",")))
