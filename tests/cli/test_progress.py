"""Progress and Ctrl-C of whole commands, on a terminal and as JSON lines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.process_tree import running

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.usefixtures("needs_null_gpu")]

LOOP = """
import time, torch
weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
optimizer = torch.optim.SGD([weight])
while True:
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""
SHORT = LOOP.replace("while True", "for _ in range(2)")
MLP = 'vramcast.datasets.workloads.networks:mlp?{"inputs":64,"outputs":10,"width":64,"depth":2}'
JOB = (MLP, "--batch", "8x64", "--on", "t4")
_END_S = 60.0  # arbitrary: a test must end


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vramcast", *arguments]


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def stages(stderr: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stderr.splitlines() if line.startswith('{"progress"')]
    return [line["progress"] for line in lines]


@pytest.fixture
def terminal(need: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a function that starts a command in a terminal of its own."""
    pexpect = need("pexpect")

    def start(*arguments: str) -> Any:
        command = words(*arguments)
        heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
        return pexpect.spawn(command[0], command[1:], timeout=_END_S, encoding="utf-8", preexec_fn=heed, dimensions=(24, 200))

    return start


def descendants(pid: int) -> set[int]:
    found, ours = running(), {pid}
    while more := {number for number, one in found.items() if one.parent in ours} - ours:
        ours |= more
    return ours


def have_ended(processes: set[int]) -> bool:
    """Wait until processes have ended; a killed one takes a moment."""
    end = time.monotonic() + _END_S
    while (left := processes & running().keys()) and time.monotonic() < end:
        time.sleep(0.05)
    return not left


def interrupt(process: Any, *said: str, exit_code: int) -> None:
    """Press Ctrl-C, and check what is said, the exit code, and that nothing is left behind."""
    ours = descendants(process.pid)
    process.sendintr()
    for words_said in said:
        process.expect(words_said)
    rest = process.read()
    process.close()
    assert process.exitstatus == exit_code
    assert "Traceback" not in rest
    assert have_ended(ours)


def test_terminal_shows_steps_and_interrupt_gives_uncertain_answer(terminal: Callable[..., Any], tmp_path: Path) -> None:
    slow = LOOP.replace("0.05", "0.5")  # each stage is longer than the interval between two looks
    process = terminal("run", "--on", "t4", "--until", "end", "--", script(tmp_path, slow))
    process.expect(r"train\.py: starting the worker")
    process.expect(r"train\.py: step \d+ of 3")
    process.expect(r"train\.py: step \d+, following the job")
    interrupt(process, "vramcast: stopping", "uncertain", exit_code=4)


def test_interrupt_while_the_worker_starts_ends_everything(terminal: Callable[..., Any], tmp_path: Path) -> None:
    process = terminal("run", "--on", "t4", "--", script(tmp_path, LOOP))
    process.expect("starting the worker")
    interrupt(process, "vramcast: interrupted", exit_code=130)


def test_interrupted_sweep_ends_without_traceback_or_orphans(terminal: Callable[..., Any]) -> None:
    process = terminal("sweep", *JOB, "--batch-sizes", ",".join(map(str, range(1, 500))))
    process.expect(r"batch \d+ \(\d+ of 499\)")
    interrupt(process, "vramcast: interrupted", exit_code=130)


def test_json_lines_name_the_stages_in_order(tmp_path: Path) -> None:
    done = subprocess.run(
        words("run", "--on", "t4", "--json", "--progress", "json", "--", script(tmp_path, SHORT)),
        capture_output=True, text=True, timeout=_END_S,
    )  # fmt: skip
    assert json.loads(done.stdout)["schema"] == 1
    known = ["starting the worker", "before the first step", "step", "evaluating", "reading the history", "simulating"]
    seen = [one["doing"] for one in stages(done.stderr) if one["doing"] in known]
    assert seen[0] == "starting the worker"
    assert seen[-1] == "simulating"
    assert [known.index(one) for one in seen] == sorted(known.index(one) for one in seen)
    assert all(one["total"] == 3 for one in stages(done.stderr) if one["doing"] == "step")


def test_json_lines_of_a_sweep_count_its_sizes() -> None:
    done = subprocess.run(
        words("sweep", *JOB, "--batch-sizes", "4,8", "--progress", "json"), capture_output=True, text=True, timeout=_END_S
    )
    assert done.returncode == 0
    parts = [one["part"] for one in stages(done.stderr) if one["part"] and one["part"]["done"]]
    known = [{"doing": f"batch {size}", "done": number, "total": 2, "part": None} for number, size in ((1, 4), (2, 8))]
    assert parts
    assert all(part in known for part in parts)


def test_only_a_line_each_ten_seconds_is_shown_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        words("run", "--on", "t4", "--", script(tmp_path, SHORT)), capture_output=True, text=True, timeout=_END_S
    )
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) <= _END_S / 10
    assert all(re.fullmatch(r"vramcast: running .* \.\.\. \d+0 s", line) for line in done.stderr.splitlines())
    assert not re.search("\x1b|progress", done.stdout)
