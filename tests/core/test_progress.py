"""Reports of long work reach the listener of the process, from its threads and from its forks."""

from __future__ import annotations

import threading

import pytest

from vramcast.core import progress
from vramcast.core.progress import Board, Event, Listener, Stage, heard_by, part, tell, tell_numbers


class Heard(Listener):
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(Stage.MODEL), "building the model"),
        (Event(Stage.STEPS, 2, 3), "step 2 of 3"),
        (Event(Stage.STEPS, 2), "step 2"),
        (Event(Stage.STEPS, 20, 3), "step 20 (3 wanted)"),
        (Event(Stage.STEPS, 1, 3, Event("batch 8", 2, 4)), "batch 8 (2 of 4): step 1 of 3"),
        (Event(Stage.CARDS, part=Event("batch 8", 2)), "batch 8 (attempt 2): comparing cards"),
    ],
)
def test_report_in_words(event: Event, text: str) -> None:
    assert str(event) == text


def test_listener_hears_reports_of_its_block_alone() -> None:
    heard = Heard()
    tell(Stage.MODEL)
    with heard_by(heard):
        tell(Stage.STEPS, 1, 3)
    tell(Stage.HISTORY)
    assert heard.events == [Event(Stage.STEPS, 1, 3)]


def test_report_belongs_to_the_part_of_its_own_thread() -> None:
    heard = Heard()
    with heard_by(heard), part("batch 8", 1, 2):
        thread = threading.Thread(target=tell, args=(Stage.MODEL,))
        thread.start()
        thread.join()
        tell(Stage.MODEL)
    assert [event.part for event in heard.events] == [None, Event("batch 8", 1, 2)]


def test_board_passes_the_latest_report_on() -> None:
    board, heard = Board(), Heard()
    empty = board.read()
    with heard_by(board):
        tell(Stage.STEPS, 1, 3)
        tell(Stage.STEPS, 2)
    with heard_by(heard):
        tell_numbers(empty)
        tell_numbers(board.read())
    assert heard.events == [Event(Stage.STEPS, 2)]


@pytest.mark.parametrize("numbers", [[], [1], [99, 1, 1], [-1, 0, 0], ["x", 0, 0], [1, 2, 3, 4], None])
def test_ignores_what_no_board_says(numbers: object) -> None:
    heard = Heard()
    with heard_by(heard):
        tell_numbers(numbers)  # type: ignore[arg-type]
    assert heard.events == []


def test_board_needs_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("vramcast.core.progress.mmap.mmap", refuse)  # as in the service's sandbox
    board = Board()
    board.hear(Event(Stage.COMMAND))
    assert board.read()[0] >= 0


def test_one_run_of_a_job_writes_its_output() -> None:
    said: list[bytes] = []

    class Heard(progress.Listener):
        def output(self, text: bytes) -> None:
            said.append(text)

    first, second = object(), object()
    with progress.heard_by(Heard()):
        with progress.one_output():
            progress.output(b"a", first)
            progress.output(b"b", second)
            with progress.one_output():  # of a further run of the same job
                progress.output(b"c", second)
            progress.output(b"d", first)
        progress.output(b"e", second)
    assert said == [b"a", b"d", b"e"]
