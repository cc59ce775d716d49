"""The part of the page below the form: the answer, the largest batch, and progress until then.

The page has no script: while a job is traced, it says how far that is, and the browser loads it again (`RELOAD_S`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request

from vramcast.cluster.service.access import RefusedRequest, asker_of, client_of
from vramcast.cluster.service.page_form import LARGEST, PageQuestion, UnknownModel
from vramcast.cluster.service.requests import Question, read_question
from vramcast.cluster.service.service import LASTING, CachedAnswer, Service
from vramcast.core.units import gib
from vramcast.estimates.axes.search import Ladder, TracedSize, edge, search
from vramcast.hardware.cards import DEVICES, checked_card_bytes, device
from vramcast.report import facts
from vramcast.report.answer import Line
from vramcast.report.card_bar import card_bar
from vramcast.views.charts.page import ChartTable, render

RELOAD_S: Final = 2  # arbitrary
_WAIT_S: Final = 0.5  # arbitrary: a shorter wait needs no progress
_COLUMNS: Final = ("batch size", "peak", "upper bound", "verdict")
_MOST_SIZES: Final = 64  # arbitrary: enough for an exact answer in a range of 2^20
_SHOWN_CARDS: Final = 8  # arbitrary: the smallest ones; the others unfold
_HEADINGS: Final = {
    "usage": "Check the form",
    "unauthorized": "A token is needed",
    "overloaded": "Too many questions",
}


@dataclass
class Reply:
    """The reply to one request for the page."""

    service: Service
    request: Request
    asked: PageQuestion

    async def html(self) -> tuple[str, bool]:
        """Return the answer or progress as HTML, and whether it is the answer.

        Raises:
            UsageError: The question is wrong.
            Refused: There is no answer.
        """
        question = _question(self.asked.job)
        if LARGEST in self.asked.address:
            return await self._largest()
        id_, found = await self._answer(question)
        return (self._waiting(id_), False) if found is None else (self._drawn(found), True)

    def _waiting(self, id_: str, words: str = "") -> str:
        seconds, waiting = time.monotonic() - self.service.began.get(id_, time.monotonic()), self.service.waiting
        return render("ask_waiting.html", asked=self.asked, words=words, seconds=f"{seconds:.0f}", waiting=waiting)

    async def _largest(self) -> tuple[str, bool]:
        """Return the largest batch once the answers for all sizes of the search are known; each reload goes on from there."""
        said = _question(self.asked.job).values
        card_bytes = checked_card_bytes(said["memory"]) if said.get("memory") else device(said["device"]).total_bytes
        sizes, rows, seen = search(1, Ladder(), card_bytes, _MOST_SIZES), {}, {}
        size = next(sizes)
        while True:
            id_, found = await self._tried(size)
            if found is None:
                return self._waiting(id_, f"batch size {size}, "), False
            seen[size], rows[size] = found
            try:
                size = sizes.send(seen[size])
            except StopIteration:
                break
        table = ChartTable("Batch sizes tried", _COLUMNS, [(str(size), *cells) for size, cells in sorted(rows.items())])
        return render("ask_largest.html", asked=self.asked, tried=table, largest=edge(seen)[0]), True

    async def _answer(self, question: Question) -> tuple[str, CachedAnswer | None]:
        """Return the question's id and the service's answer, as a client of the API gets it; None: it is not ready.

        Raises:
            Refused: There is none.
        """
        id_, found = await self.service.answer(question, asker_of(self.request))
        if isinstance(found, dict):
            error = found["error"]
            retry = {"Retry-After": str(error["retry_after_s"])} if "retry_after_s" in error else None
            raise RefusedRequest(error["kind"], error["message"], retry)
        return id_, found

    async def _tried(self, size: int) -> tuple[str, tuple[TracedSize, tuple[str, str, str]] | None]:
        """Return a question's id, and whether its batch size fits with its cells of the table; None: it is not known yet.

        Raises:
            Refused: There is no answer for a reason other than the job.
        """
        question = _question({**self.asked.job, "batch_size": size})
        if not self.service.knows(question) and client_of(self.request).wait_s():  # each counts as a request of the client
            return "", None
        try:
            id_, answer = await self._answer(question)
        except RefusedRequest as error:
            if error.kind != LASTING:
                raise
            return "", (TracedSize(None), ("", "", str(error)))
        if answer is None:
            return id_, None
        verdict, found = answer.verdict.value, answer.estimate
        bound_bytes = found["upper_bound"]["bytes"]
        return id_, (TracedSize(verdict == "fits", bound_bytes), (gib(found["peaks"]["process"]), gib(bound_bytes), verdict))

    def _drawn(self, answer: CachedAnswer) -> str:
        found, words = answer.estimate, answer.words
        lines = tuple(Line(*one) for one in words.lines.items())
        bar, process_bytes = card_bar(found), found["peaks"]["process"]
        fitting = sorted((card for key, card in DEVICES.items() if found["fits"].get(key)), key=lambda card: card.total_bytes)
        cards = [
            (card.name.removeprefix("NVIDIA "), gib(card.total_bytes), self.asked.link(device=card.key)) for card in fitting
        ]
        return render(
            "ask_answer.html",
            asked=self.asked,
            answer=facts.AnswerText(words.headline, facts.COLOURS[answer.verdict.value], lines, tuple(words.sentences)),
            assumed=words.assumed,
            card=bar,
            parts=[(one.look, gib(one.size_bytes), one.size_bytes / max(process_bytes, 1)) for one in bar.held],
            totals=[("process peak", gib(process_bytes))],
            cards=[cards[:_SHOWN_CARDS], cards[_SHOWN_CARDS:]],
            largest=self.asked.link(**{LARGEST: "on"}),
        )


def _question(job: Mapping[str, Any]) -> Question:
    """Return the question of the API for a job; only about a model by name, whatever the rules allow clients.

    Raises:
        UsageError: It is wrong.
    """
    question = read_question(json.dumps({**job, "wait_s": _WAIT_S}).encode())
    if question.is_code:
        raise UnknownModel(job["target"])
    return question


def failure(kind: str, message: str, here: str, meant: Sequence[tuple[str, str]] = ()) -> str:
    """Return an error as HTML.

    Args:
        kind: Its kind in the API.
        message: Its message.
        here: The address of the question.
        meant: Names that may have been meant, and the addresses of their questions.
    """
    again = "" if kind in ("usage", LASTING) else here
    return render("ask_error.html", heading=_HEADINGS.get(kind, "No answer"), message=message, meant=meant, again=again)
