"""A Python client of the cuDNN oracle, for tests and for tools which fill its cache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from vramcast.errors import NullGpuError
from vramcast.tracer.nullgpu.cudnn_backend import EngineConfig, PlanSize

START_LIMIT_S = 20.0  # arbitrary; it starts in about a tenth of a second
ANSWER_LIMIT_S = 120.0  # arbitrary; the first question takes about a second on a cold disk


class OracleError(NullGpuError):
    """The oracle answered ERROR, or not at all."""


class PlanDoesNotBuild(NullGpuError):
    """cuDNN refused a plan; `status` is its cudnnStatus_t."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The plan does not build: cuDNN status {status}.")
        self.status = status


class CudnnOracle:
    """An oracle process and one connection to it; a context manager.

    Args:
        cudnn_dir: Folder of the installed cuDNN's libraries.
        libraries: Folder of the stand-ins beside it, from `oracle_libraries`.
        cache: File of answers, or None.
        device: Device-property record; `set_device` may follow.
    """

    def __init__(
        self, cudnn_dir: Path, libraries: Path, *, cache: Path | None = None, device: Mapping[str, object] | None = None
    ) -> None:
        self._options = ["--cudnn-dir", str(cudnn_dir), "--libraries", str(libraries)]
        if cache is not None:
            self._options += ["--cache", str(cache)]
        self._device = device

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="vramcast-")
        self.socket_path = Path(self._folder.name) / "oracle"
        module = "vramcast.tracer.nullgpu.cudnn_oracle"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--socket", str(self.socket_path), *self._options],
            stdin=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        try:
            self._await_socket()
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.settimeout(ANSWER_LIMIT_S)
            self._connection.connect(str(self.socket_path))
            self._answers = self._connection.makefile("r", encoding="ascii", newline="\n")
            if self._device is not None:
                self.set_device(self._device)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _await_socket(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.socket_path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise OracleError(f"The cuDNN oracle did not start (exit status {self.process.returncode}).")
            time.sleep(0.005)

    def _stop(self) -> None:
        for name in ("_answers", "_connection"):
            if hasattr(self, name):
                getattr(self, name).close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def ask(self, request: str) -> str:
        """Send one request line and return the first line of the answer, whatever it is."""
        try:
            self._connection.sendall(request.encode("ascii") + b"\n")
            answer = self._answers.readline()
        except ConnectionError:  # cuDNN has ended its process
            answer = ""
        if not answer:
            raise OracleError("The cuDNN oracle ended without an answer; its stderr says why.")
        return answer.rstrip("\n")

    def set_device(self, record: Mapping[str, object]) -> None:
        """Set the device-property record of the following questions."""
        self._ok(f"DEVICE {json.dumps(record)}")

    def version(self) -> int:
        """Return cuDNN's version, e.g. 91900."""
        return int(self._ok("VERSION"))

    def heuristics(self, mode: int, graph: str) -> list[EngineConfig]:
        """Return the suggestions of a heuristics mode (0 INSTANT, 1 B, 2 FALLBACK, 3 A), in cuDNN's order."""
        count = int(self._ok(f"HEUR {mode} {graph}"))
        lines = [self._answers.readline().split() for _ in range(count)]
        return [EngineConfig(int(engine), _notes(numerical), _notes(behavior)) for engine, numerical, behavior in lines]

    def plan(self, mode: int, index: int, graph: str) -> PlanSize:
        """Return the workspace of the plan of one suggestion; raises PlanDoesNotBuild."""
        return _plan_size(self._ok(f"PLAN {mode} {index} {graph}"))

    def engine(self, engine: int, graph: str, knobs: Mapping[int, int] | None = None) -> PlanSize:
        """Return the workspace of the plan of a hand-made configuration; raises PlanDoesNotBuild."""
        text = ",".join(f"{knob}={value}" for knob, value in (knobs or {}).items()) or "-"
        return _plan_size(self._ok(f"ENGINE {engine} {text} {graph}"))

    def _ok(self, request: str) -> str:
        kind, _, rest = self.ask(request).partition(" ")
        if kind == "FAIL":
            raise PlanDoesNotBuild(int(rest))
        if kind != "OK":
            raise OracleError(f"The cuDNN oracle says: {rest}")
        return rest


def _plan_size(text: str) -> PlanSize:
    workspace_bytes, limit_bytes, withheld = map(int, text.split())
    return PlanSize(workspace_bytes, limit_bytes, withheld)


def _notes(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(map(int, text.split(",")))
