"""Measurement of any training script as it runs: `vramcast measure -- python train.py`.

The script runs inside this Python (`script_process.py`), at no cost until its end, when torch's own counters are written
down. NVML is sampled from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from vramcast.core.errors import UsageError
from vramcast.core.files import sha256_of
from vramcast.datasets.collector.nvml import observed, sampling
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.tracer.processes.job_process import python_path


def measure_script(command: list[str], out: Path, *, sample_ms: float) -> int:
    """Run `command`, append its row to OUT/runs.jsonl, and return the script's exit code.

    Args:
        command: `python train.py args`, `python -m module args`, or `train.py args`.
        out: Folder of the data set.
        sample_ms: Requested time between two samples of NVML.
    Raises:
        UsageError: The command has another form, or the script does not exist.
        DatasetError: The row cannot be written; raised before the script starts.
    """
    interpreter, arguments = _python(command)
    script = None if arguments[0] == "-m" else Path(arguments[0])
    if script is not None and not script.is_file():
        raise UsageError(f"The script '{script}' does not exist: write vramcast measure --out FOLDER -- python train.py args.")
    with Journal(out / "runs.jsonl") as runs, tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        environment = {**os.environ, "PYTHONPATH": python_path()}
        with sampling(None, sample_ms, lambda line: print(f"vramcast: {line}", file=sys.stderr)) as sampler:
            window = sampler.open() if sampler else None
            started = time.perf_counter()
            process = subprocess.Popen(
                [interpreter, "-m", "vramcast.datasets.collector.script_process", str(answer), *arguments], env=environment
            )
            code = process.wait()
            seconds = time.perf_counter() - started
            if sampler and window:
                sampler.close(window)
            period_ms = sampler.period_ms if sampler else None
        reply: dict[str, Any] = {"status": "killed", "message": "", "passport": {}, "counters": {}}
        if answer.exists():
            reply = json.loads(answer.read_text())
        seen, how = observed(window, process.pid, alone=True)
        status = reply["status"]
        measurement = Measurement(
            status,
            censored=status in ("oom", "killed"),
            seconds=round(seconds, 3),
            message=reply["message"] or (f"exit code {code}" if code else ""),
            **seen,
            **reply["counters"],
        )
        workload = Workload(
            name=" ".join(arguments[:2]) if script is None else script.name,
            family="script",
            script=tuple(arguments),
            script_sha256=sha256_of(script) if script is not None else None,
            alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            gpus=1,
        )
        passport = Passport("vramcast measure", how=how, period_ms=period_ms, **reply["passport"])
        runs.append(Run(f"script-{uuid.uuid4().hex[:12]}", workload, passport, measurement).to_dict())
    return code if code >= 0 else 128 - code  # spec: the shell's exit code for a process that a signal ended


def _python(command: list[str]) -> tuple[str, list[str]]:
    name = Path(command[0]).name
    if name.startswith("python"):
        interpreter, arguments = command[0], command[1:]
    else:
        interpreter, arguments = sys.executable, command
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        raise UsageError("No script is given: write vramcast measure --out FOLDER -- python train.py args.")
    if arguments[0] != "-m" and not arguments[0].endswith(".py"):
        raise UsageError(
            f"'{' '.join(command[:3])}' is not a Python script: write vramcast measure --out FOLDER -- python train.py."
        )
    return interpreter, arguments
