"""A worker process, which answers one question after another; an error ends one answer, never the service.

    python -P -m vramcast.cluster.service.worker_main [--artifact DIR] [--sandboxed]

A line of standard input is a question in JSON, a line of standard output its answer: `{"estimate": ..., "levels": ...,
"words": ...}` or `{"error": {"kind": ..., "message": ...}}`. The operator's log gets the `traceback` of an unexpected error.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import ctypes
import json
import os
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

from vramcast.cluster.service.requests import job_of_question
from vramcast.cluster.service.script_plans import plan_of_script
from vramcast.core.errors import CannotEstimate, CompilerError, UsageError, VramcastError
from vramcast.core.text import shorten
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.report import facts
from vramcast.simulator import compiled
from vramcast.tracer.format.snapshot import read_trace
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.messages import believe_data_alone

# arbitrary: levels at which the bound is stored, so that an online level between two of them has an answer
LEVELS: Final = (0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999)
_LONGEST_MESSAGE: Final = 2_000  # arbitrary: characters
_LONGEST_TRACEBACK: Final = 50_000  # arbitrary: characters
_PR_SET_DUMPABLE: Final = 4  # spec: Linux prctl(2)
_NPZ: Final = b"PK"  # spec: the first bytes of a zip file, the format of a trace; else it is a memory history


def answer(values: dict[str, Any], artifact: str | None = None, timeout_s: float = 1800.0) -> dict[str, Any]:
    """Return the answer to a question's values; an error is an answer too."""
    try:
        if "script" in values:
            _write(values["files"])
            return plan_of_script(values)
        estimator = Estimator(values["device"], level=values["level"], artifact=artifact, timeout_s=timeout_s)
        estimate = _estimate(values, estimator)
        levels = {str(level): estimate.bound_at(level) for level in LEVELS}
        return {"estimate": estimate.to_dict(), "levels": levels, "words": _words(estimate)}
    except UsageError as error:
        return failed("usage", error)
    except VramcastError as error:
        return failed("worker" if error.is_of_machine else "cannot_estimate", error)
    except Exception as error:  # unexpected, and the next question must still get an answer
        unexpected = failed("worker", CannotEstimate(f"{type(error).__name__}: {error}"))
        return {**unexpected, "traceback": traceback.format_exc()[-_LONGEST_TRACEBACK:]}


def _words(estimate: Estimate) -> dict[str, Any]:
    said = facts.answer(estimate)
    return {
        "headline": said.headline,
        "lines": dict(said.lines),
        "sentences": list(said.sentences),
        "assumed": facts.assumed(estimate),
    }


def failed(kind: str, error: object) -> dict[str, Any]:
    """Return an error as an answer."""
    return {"error": {"kind": kind, "message": shorten(str(error), _LONGEST_MESSAGE)}}


def _estimate(values: dict[str, Any], estimator: Estimator) -> Estimate:
    if values["trace"] is not None:
        return _of_trace(values, estimator)
    _write(values["files"])
    os.environ.update(values["environment"])  # variables of a command
    return estimator.estimate_job(job_of_question(values))


def _write(files: Mapping[str, str]) -> None:
    """Write a client's files to the current folder; only a sandbox gets files."""
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _of_trace(values: dict[str, Any], estimator: Estimator) -> Estimate:
    trace = _read(values["trace"])
    observed = Observation(trace, str(trace.header.get("tracer", "recorded")), str(trace.header.get("torch", "")))
    job = Job(device(values["device"]), target="trace", memory_bytes=values["capacity_bytes"])
    return replace(estimator, tracer=RecordedTracer(observed)).estimate_job(job)


def _read(text: str) -> Trace:
    """Return the trace in a request.

    Raises:
        UsageError: It is not base64.
        TraceFileError: It is not a trace.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"trace is not base64 ({error}): send the file's content encoded as base64.") from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.npz" if content.startswith(_NPZ) else "history.pickle")
        path.write_bytes(content)
        return read_trace(path)


def stand_alone() -> None:
    """Protect this process from a client's code, which runs as the same user.

    The code cannot inspect this process (pidfd_getfd, ptrace, /proc/PID/fd), and this process reads only data from the
    job's processes and loads no more libraries, which the code could have replaced.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    believe_data_alone()
    with contextlib.suppress(CompilerError):  # Python does it instead
        compiled.library()


def serve(questions: TextIO, answers: TextIO, artifact: str | None, timeout_s: float) -> None:
    """Answer until there are no more questions."""
    for line in questions:
        answers.write(json.dumps(answer(json.loads(line), artifact, timeout_s)) + "\n")
        answers.flush()


def main() -> None:
    """Answer the questions on standard input; output of a model goes to standard error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--artifact")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--sandboxed", action="store_true", help="run clients' code, isolated from this process")
    options = parser.parse_args()
    questions, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a job inherits standard input, and must not read other questions
    os.dup2(2, 1)
    NullGpuTracer.start_ahead()
    if options.sandboxed:
        stand_alone()
    serve(questions, answers, options.artifact, options.timeout_s)


if __name__ == "__main__":
    main()
