"""The cuDNN oracle: a process that answers requests on cuDNN's own heuristics for an absent GPU.

    python -m vramcast.tracer.nullgpu.cudnn.oracle --cudnn-dir DIR --libraries DIR [--cache FILE]

The null cuDNN inside PyTorch has no algorithms, so it queries this process for the engines that cuDNN would suggest and for the
workspaces of their plans. It is a separate process because the real library must not share one with the null libraries.

It makes a folder with its socket, writes the socket's path to stdout when it takes connections, and removes the folder when it
ends: when its stdin closes or its parent is gone. It must be started without LD_PRELOAD. Each request is one line of ASCII. The
answers:

    DEVICE <json>               OK                   the device-property record of this connection
    VERSION                     OK <version>         or ERROR: no cuDNN, or one older than 9.8
    HEUR <mode> <graph>         OK <n>, then n lines "<engine> <numerical notes> <behaviour notes>", notes a,b,c or -
    PLAN <mode> <i> <graph>     OK <workspace bytes> <limit bytes> <withheld>, or FAIL <cudnn status>: the plan does not
                                build; limit: further bytes that cuBLASLt could have requested; withheld: number of engines
                                that cuDNN left out of the list because it had no device or no NVRTC; see PlanSize
    ENGINE <index> <knobs> <graph>                   as PLAN; knobs type=value,type=value or -

All other requests get ERROR <text>. graph.py describes the graph's text, and cuDNN's documentation of deviceless compilation
lists the record's keys.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from vramcast.core.files import digest
from vramcast.tracer.nullgpu.cudnn import backend
from vramcast.tracer.nullgpu.cudnn import graph as cudnn_graph
from vramcast.tracer.nullgpu.cudnn.answer_cache import AnswerCache

MAX_LINE_BYTES = 1 << 20  # arbitrary; the graph of an attention backward pass has some ten thousand
_PARENT_CHECK_S = 1.0  # arbitrary
_REMEMBERED = 8192  # arbitrary: answers in memory, some 3 KB each; a training step of ResNet-50 asks for 60
_ENVIRONMENT_STATUS = {3008, 3009}  # spec: RUNTIME_PREREQUISITE_MISSING, SUBLIBRARY_UNAVAILABLE: not kept permanently
# spec: if this is 0, NVIDIA's libraries, including cuDNN, use no TF32, whatever the graph allows; read once per process.
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_KNOB = re.compile(r"(\d{1,6})=(-?\d{1,18})")


class RequestError(ValueError):
    """A request does not follow the protocol; the message goes back to the client."""


class Oracle:
    """Answers requests from the cache, else from cuDNN, which is loaded for the first request that needs it."""

    def __init__(self, cudnn_dir: Path, libraries: Path, cache: AnswerCache) -> None:
        self._cudnn_dir = cudnn_dir
        self._libraries = libraries
        self._cache = cache
        self._lock = threading.Lock()
        self._backend: backend.Backend | None = None
        self._unusable: backend.CudnnUnusable | None = None
        self._override = os.environ.get(_OVERRIDE, "")
        self._remembered: dict[tuple[str, str], str] = {}  # by device record and request line: no need to read the graph again

    @property
    def loaded(self) -> bool:
        """Return whether cuDNN has been loaded into this process."""
        return self._backend is not None

    def version(self) -> int:
        """Return the version of cuDNN, e.g. 91900; raise CudnnUnusable if there is none."""
        library = backend.find_library(self._cudnn_dir)
        version = self._cache.version(library)
        if version is None:
            with self._lock:
                version = self._load().version
            self._cache.keep_version(library, version)
        return version

    def remembered(self, record: str, line: str, ask: Callable[[str], str]) -> str:
        """Return the answer to a request line; `ask(record)` is called for new ones, and for those with a passing failure."""
        answer = self._remembered.get((record, line))
        if answer is None:
            answer = ask(record)
            if _lasting(answer):
                if len(self._remembered) >= _REMEMBERED:
                    self._remembered.clear()
                self._remembered[record, line] = answer
        return answer

    def ask(self, record: str, request: str, compute: Callable[[backend.Backend], str]) -> str:
        """Return the answer to a canonical request; raise CudnnFailure or CudnnUnusable if there is none."""
        circumstances = f"{record} {_OVERRIDE}={self._override}" if self._override else record
        device = digest(circumstances, digits=64)
        version = self.version()
        answer = self._cache.answer(version, device, request)
        if answer is None:
            with self._lock:
                cudnn = self._load()
                answer = compute(cudnn)
            if cudnn.has_nvrtc and _lasting(answer):
                self._cache.keep_answer(version, device, request, answer)
        return answer

    def _load(self) -> backend.Backend:
        if self._unusable is not None:
            raise self._unusable
        if self._backend is None:
            try:
                self._backend = backend.load(self._cudnn_dir, self._libraries)
            except backend.CudnnUnusable as error:
                self._unusable = error
                raise
        return self._backend


def _lasting(answer: str) -> bool:
    """Return whether an answer depends only on its key: not on memory, compilers or files of this machine."""
    if answer.startswith("OK"):
        return True
    status = int(answer.removeprefix("FAIL "))
    return 2000 <= status < 4000 and status not in _ENVIRONMENT_STATUS  # spec: cudnnStatus_t, BAD_PARAM, NOT_SUPPORTED


class Session:
    """One connection: its device record and its requests."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._record: str | None = None

    def answer(self, line: str) -> str:
        """Return the answer to one request line, without the final newline; never raises."""
        try:
            verb, _, rest = line.partition(" ")
            if verb in _QUESTIONS:
                if self._record is None:
                    raise RequestError("No device record was set on this connection: send DEVICE <json> first.")
                return self._oracle.remembered(self._record, line, lambda record: self._question(record, verb, rest))
            if verb not in ("DEVICE", "VERSION"):
                raise RequestError(f"{verb[:40]!r} is not a request: expected DEVICE, VERSION, HEUR, PLAN or ENGINE.")
            return self._device(rest) if verb == "DEVICE" else self._version(rest)
        except (RequestError, IndexError, cudnn_graph.GraphError, backend.CudnnFailure, backend.CudnnUnusable) as error:
            return _error(str(error))
        except Exception as error:  # one request must not end the service for the others
            return _error(f"{type(error).__name__}: {error}")

    def _device(self, rest: str) -> str:
        try:
            record = json.loads(rest)
        except ValueError as error:
            raise RequestError(f"The device record is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise RequestError("The device record is not a JSON object.")
        version = record.get("deviceVer")
        if not isinstance(version, int) or version < 300 or version % 10:
            # cuDNN treats 806 as an unknown Ampere and silently suggests almost nothing. measured: cuDNN 9.19, 2026-11
            raise RequestError(f"deviceVer is {version!r}, expected 100 x major + 10 x minor, e.g. 860 for sm_86.")
        self._record = json.dumps(record, sort_keys=True, separators=(",", ":"))
        return "OK"

    def _version(self, rest: str) -> str:
        if rest:
            raise RequestError("VERSION takes nothing.")
        return f"OK {self._oracle.version()}"

    def _question(self, record: str, verb: str, rest: str) -> str:
        """Answer a request that depends on a card and a graph; the cache stores it by its canonical text."""
        readers, answer = _QUESTIONS[verb]
        *options, text = _split(rest, len(readers) + 1)
        values = [read(option) for read, option in zip(readers, options, strict=True)]
        graph = _graph(text)
        canonical = [str(value) if isinstance(value, int) else option for value, option in zip(values, options, strict=True)]
        request = " ".join([verb, *canonical, cudnn_graph.write(graph)])
        return self._oracle.ask(record, request, lambda cudnn: answer(cudnn, record, *values, graph))


def _listed(cudnn: backend.Backend, *question: Any) -> str:
    configs = cudnn.heuristics(*question)
    lines = [f"{c.engine} {_notes(c.numerical_notes)} {_notes(c.behavior_notes)}" for c in configs]
    return "\n".join([f"OK {len(configs)}", *lines])


def _built(ask: Callable[..., backend.PlanSize], *question: Any) -> str:
    try:
        size = ask(*question)
        return f"OK {size.workspace_bytes} {size.cublaslt_limit_bytes} {size.withheld}"
    except backend.PlanFailure as failure:
        return f"FAIL {failure.status}"


def _error(text: str) -> str:
    return "ERROR " + " ".join(text.split())


def _split(rest: str, count: int) -> list[str]:
    words = rest.split(" ")
    if len(words) != count:
        raise RequestError(f"The request has {len(words)} words after its name, expected {count}.")
    return words


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(f"{text[:40]!r} is not a small number.")
    return int(text)


def _knobs(text: str) -> list[tuple[int, int]]:
    if text == "-":
        return []
    found = [_KNOB.fullmatch(word) for word in text.split(",")]
    if not all(found):
        raise RequestError(f"Knobs are {text[:40]!r}, expected type=value,type=value or -.")
    return [(int(match[1]), int(match[2])) for match in found if match]


def _graph(text: str) -> cudnn_graph.Descriptor:
    graph = cudnn_graph.renumber(cudnn_graph.parse(text))
    if graph.type != cudnn_graph.OPERATION_GRAPH:
        raise RequestError(f"The graph's root has type {graph.type}, expected {cudnn_graph.OPERATION_GRAPH}.")
    return graph


def _notes(notes: tuple[int, ...]) -> str:
    return ",".join(map(str, notes)) or "-"


# Readers for the words before the graph, and the function that answers.
_QUESTIONS: dict[str, tuple[tuple[Callable[[str], Any], ...], Callable[..., str]]] = {
    "HEUR": ((_number,), _listed),
    "PLAN": ((_number, _number), lambda cudnn, *question: _built(cudnn.plan, *question)),
    "ENGINE": ((_number, _knobs), lambda cudnn, *question: _built(cudnn.engine, *question)),
}


def serve(oracle: Oracle, path: Path) -> socket.socket:
    """Accept connections on a new socket file, in threads; return the listening socket.

    The file gets its name only when it takes connections, so a client may wait for it to appear.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    listener.bind(str(hidden))
    hidden.chmod(0o600)
    listener.listen(64)
    hidden.replace(path)
    threading.Thread(target=_accept, args=(oracle, listener), daemon=True).start()
    return listener


def _accept(oracle: Oracle, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the listener was closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(oracle, connection), daemon=True).start()


def _converse(oracle: Oracle, connection: socket.socket) -> None:
    session = Session(oracle)
    with contextlib.suppress(OSError), connection, connection.makefile("rb") as requests:  # the client went away
        while line := requests.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                connection.sendall(f"ERROR A request has more than {MAX_LINE_BYTES} bytes or no end.\n".encode())
                return
            answer = session.answer(line[:-1].decode("ascii", "replace"))
            connection.sendall(answer.encode("ascii", "replace") + b"\n")


def wait_for_parent() -> None:
    """Return when stdin is closed or the parent process is gone; a fork of the parent may still hold a copy of its end."""
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
        if readable and not os.read(0, 4096):
            return


class _Leave(BaseException):
    """A signal to end this process."""


def _leave(*_: object) -> NoReturn:
    raise _Leave


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(prog="cudnn_oracle", description="Answers on cuDNN's heuristics, without a GPU.")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the socket, made here and removed at the end")
    parser.add_argument("--cudnn-dir", type=Path, required=True, help="folder of libcudnn_graph.so.9")
    parser.add_argument("--libraries", type=Path, required=True, help="folder of the stand-ins that cuDNN finds")
    parser.add_argument("--cache", type=Path, help="sqlite3 file of answers; without it no answer is kept")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    folder: Path = arguments.folder
    folder.mkdir(mode=0o700)  # it must be new, and accessible only to us
    try:
        serve(Oracle(arguments.cudnn_dir, arguments.libraries, AnswerCache(arguments.cache)), folder / "oracle")
        with contextlib.suppress(BrokenPipeError):  # the parent is gone already
            print(folder / "oracle", flush=True)
        os.dup2(2, 1)  # cuDNN's own output is not an answer
        wait_for_parent()
    except _Leave:
        pass
    except OSError as error:
        sys.exit(f"vramcast: cannot listen in {folder}: {error}; a TMPDIR of at most 70 characters is safe.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)  # other threads may still be inside cuDNN


if __name__ == "__main__":
    main()
