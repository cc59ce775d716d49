"""Orderly exit of the command line after a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLEEPS = """
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
{before}
from vramcast.cli.signals import end_orderly
end_orderly()
try:
    print("ready", flush=True)
    time.sleep({seconds})
finally:
    print("closed", flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def signalled(number: signal.Signals, before: str = "", seconds: int = 60) -> tuple[int, str]:
    source = SLEEPS.format(before=before, seconds=seconds)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        return process.wait(20), process.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_closes_files_and_sets_exit_code(number: signal.Signals) -> None:
    assert signalled(number) == (128 + number, "closed\n")


def test_keeps_signals_that_nohup_ignores() -> None:
    assert signalled(signal.SIGHUP, "signal.signal(signal.SIGHUP, signal.SIG_IGN)", 1) == (0, "closed\n")


STOPS = """
from vramcast.cli.signals import first_interrupt
import time
with first_interrupt(lambda: not print("stopped", flush=True)):
    print("ready", flush=True)
    for _ in range(2):
        time.sleep(60)
"""


def test_first_interrupt_stops_and_second_leaves() -> None:
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    with subprocess.Popen(
        [sys.executable, "-c", STOPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=default
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) not in (0, None)
        assert "KeyboardInterrupt" in process.communicate()[1]
