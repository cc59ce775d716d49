"""Terminal output: colors only where they belong, progress that leaves no trace."""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import pytest

from vramcast.cli import terminal
from vramcast.core import progress
from vramcast.core.progress import Listener, Stage, part, tell


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("variables", "stream", "coloured"),
    [
        ({}, Screen(), True),
        ({}, io.StringIO(), False),
        ({"FORCE_COLOR": "1"}, io.StringIO(), True),
        ({"NO_COLOR": "1"}, Screen(), False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, Screen(), False),
        ({"TERM": "dumb"}, Screen(), False),
        ({}, None, False),
    ],
)
def test_colors_only_on_terminals_without_no_color(
    variables: dict[str, str], stream: Any, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert terminal.has_colours(stream) is coloured
    assert terminal.painted("x", "red", stream) == ("\x1b[31mx\x1b[0m" if coloured else "x")
    assert terminal.painted("", "red", stream) == ""


def test_width_is_that_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    assert (terminal.width_of(Screen()), terminal.width_of(io.StringIO())) == (61, 100)


def test_wraps_at_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    said = "did you mean timm:resnet51q, or another-name-of-a-model-that-is-long?"
    assert terminal.wrapped(said, Screen()).splitlines() == [
        "did you mean", "timm:resnet51q, or", "another-name-of-a-model-that-is-long?",
    ]  # fmt: skip
    assert terminal.wrapped(said, io.StringIO()) == said
    assert terminal.wrapped(said, None) == said


def test_progress_line_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_TICK_S", 0.01)
    with terminal.progress("tracing x"):
        time.sleep(0.2)
    shown = screen.getvalue()
    assert "tracing x ... 0 s" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")


def test_progress_counts_parts_and_names_the_stage_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress("estimating runs") as count:
        count(20, 40)
        tell(Stage.SIMULATION)
    assert "\r\x1b[Kestimating runs (20 of 40) ... 0 s" in screen.getvalue()
    assert "\r\x1b[Kestimating runs (20 of 40): simulating ... 0 s" in screen.getvalue()


def test_progress_works_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Screen()
    gone.close()
    for stderr in (None, io.StringIO(), gone):
        monkeypatch.setattr(sys, "stderr", stderr)
        with terminal.progress("x") as count:
            count(1, 2)


def test_progress_is_silent_without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = io.StringIO()
    monkeypatch.setattr(sys, "stderr", silent)
    with terminal.progress("x"):
        pass
    assert silent.getvalue() == ""


def test_progress_names_activity_stage_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress("tracing x"):
        tell(Stage.STEPS, 2, 3)
    assert "\r\x1b[Ktracing x: step 2 of 3 ... 0 s" in screen.getvalue()


def test_progress_keeps_the_stage_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "30")
    with terminal.progress("running /a/long/path/of/a/script.py"):
        tell(Stage.STEPS, 2, 3)
    assert screen.getvalue().count(": step 2 of 3 ... 0 s") == 1
    assert max(len(line) for line in screen.getvalue().split("\r\x1b[K")) == 29


def test_output_of_a_command_replaces_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(Listener, "output", lambda self, said: screen.write(said.decode()))
    with terminal.progress("running x"):
        progress.listener.output(b"a bar: 10 %")
        tell(Stage.STEPS, 1, 3)  # it waits, because the command's line is not finished
        progress.listener.output(b"\rdone\n")
        tell(Stage.STEPS, 2, 3)
    assert screen.getvalue() == (
        "\r\x1b[Krunning x ... 0 s\r\x1b[Ka bar: 10 %\rdone\n\r\x1b[Krunning x: step 2 of 3 ... 0 s\r\x1b[K\n"
    )


def test_silent_command_with_unfinished_line_gets_a_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_QUIET_S", 0.0)
    monkeypatch.setattr(Listener, "output", lambda self, said: screen.write(said.decode()))
    with terminal.progress("running x"):
        progress.listener.output(b"a bar: 10 %")
        tell(Stage.STEPS, 1, 3)
    assert "a bar: 10 %\n\r\x1b[Krunning x: step 1 of 3 ... 0 s" in screen.getvalue()


def test_progress_as_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(terminal, "mode", "json")
    with terminal.progress("sweeping"), part("batch 8", 1, 2):
        tell(Stage.STEPS, 1, 3)
    first, last = map(json.loads, stream.getvalue().splitlines())
    assert first["progress"]["doing"] == "sweeping"
    assert last["progress"] == {
        "doing": "step", "done": 1, "total": 3, "part": {"doing": "batch 8", "done": 1, "total": 2, "part": None},
    }  # fmt: skip
    assert last["seconds"] >= 0


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(terminal, "_LOG_TICK_S", 0.01)
    with terminal.progress("running x"):
        tell(Stage.REST, 7, 30)
        while "running" not in stream.getvalue():
            time.sleep(0.001)
    assert stream.getvalue().startswith(
        "vramcast: running x: step 7, following the job to an evaluation and its end for at most 30 s ... 0 s\n"
    )


def test_quiet_shows_neither_progress_nor_output(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "mode", "quiet")
    with terminal.progress("running x"):
        progress.listener.output(b"loss 1.0\n")
        tell(Stage.STEPS, 1, 3)
    assert screen.getvalue() == ""


def test_no_color_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.painted("fits", "green", sys.stdout) != "fits"
    monkeypatch.setattr(terminal, "is_plain", True)
    assert terminal.painted("fits", "green", sys.stdout) == "fits"
