"""The part of the page below the form: the answer, the largest batch, and progress until then.

The page has no script: the response stays open while a job is traced, and lines of progress and then the answer follow.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request

from vramcast.core.units import gib
from vramcast.estimates.sweep import Tried, search
from vramcast.hardware.cards import DEVICES
from vramcast.report import facts
from vramcast.report.answer import Line
from vramcast.report.card_bar import card_bar
from vramcast.service.access import Refused, asker_of, client_of
from vramcast.service.page_form import LARGEST, Asked, UnknownModel
from vramcast.service.requests import Question, read_question
from vramcast.service.service import LASTING, Answer, Service
from vramcast.views.charts.page import Table, render

_WAIT_S: Final = 600.0  # spec: the longest wait of the API
_AT_ONCE_S: Final = 0.3  # arbitrary: shorter waits need no progress
_TELL_S: Final = 1.0  # arbitrary: between two lines of progress
_COLUMNS: Final = ("batch size", "peak", "upper bound", "verdict")
_SHOWN_CARDS: Final = 8  # arbitrary: the smallest ones; the others unfold
_HEADINGS: Final = {"usage": "The question is wrong", "unauthorized": "A token is needed", "overloaded": "Too many questions"}


@dataclass
class Reply:
    """The reply to one request for the page."""

    service: Service
    request: Request
    asked: Asked
    _asking: asyncio.Task[Answer] | None = None

    async def at_once(self) -> str | None:
        """Return the answer, or None if it takes a while.

        Raises:
            UsageError: The question is wrong.
            Refused: There is no answer.
        """
        question = _question(self.asked.job)
        if LARGEST in self.asked.address:
            return None
        self._asking = asyncio.create_task(self._answer(question))
        done, _ = await asyncio.wait({self._asking}, timeout=_AT_ONCE_S)
        return self._drawn(self._asking.result()) if done else None

    async def parts(self) -> AsyncIterator[str]:
        """Yield progress, and then the answer or an error."""
        yield render("ask_waiting.html", asked=self.asked)
        try:
            async for part in self._one(self._asking) if self._asking else self._largest():
                yield part
        except Refused as error:
            yield "</section>\n" + failure(error.kind, str(error), self.asked.link())

    async def _one(self, asking: asyncio.Task[Answer]) -> AsyncIterator[str]:
        async for line in self._progress(asking, ""):
            yield line
        yield f"</section>\n{self._drawn(asking.result())}"

    async def _largest(self) -> AsyncIterator[str]:
        sizes, rows = search(), {}
        size, _ = next(sizes)
        while True:
            asking = asyncio.create_task(self._tried(size))
            async for line in self._progress(asking, f"batch size {size}, "):
                yield line
            tried, rows[size] = asking.result()
            try:
                size, _ = sizes.send(tried)
            except StopIteration:
                break
        table = Table("Batch sizes tried", _COLUMNS, [(str(size), *cells) for size, cells in sorted(rows.items())])
        largest = max((size for size, cells in rows.items() if cells[-1] == "fits"), default=0)
        yield "</section>\n" + render("ask_largest.html", asked=self.asked, tried=table, largest=largest)

    async def _progress(self, asking: asyncio.Task[Any], words: str) -> AsyncIterator[str]:
        """Yield a line each second until a task is done."""
        began = time.monotonic()
        try:
            while not asking.done():
                seconds, waiting = time.monotonic() - began, self.service.waiting
                yield f'<p class="seconds">Tracing: {words}{seconds:.0f} s. Waiting questions of all clients: {waiting}.</p>\n'
                await asyncio.wait({asking}, timeout=_TELL_S)
        finally:
            asking.cancel()  # if the client has gone; the service traces on

    async def _answer(self, question: Question) -> Answer:
        """Return the service's answer, as a client of the API gets it.

        Raises:
            Refused: There is none.
        """
        _, found = await self.service.answer(question, asker_of(self.request))
        if found is None:
            raise Refused("timeout", "The answer is not ready yet: ask again later for it.")
        if isinstance(found, dict):
            error = found["error"]
            retry = {"Retry-After": str(error["retry_after_s"])} if "retry_after_s" in error else None
            raise Refused(error["kind"], error["message"], retry)
        return found

    async def _tried(self, size: int) -> tuple[Tried, tuple[str, str, str]]:
        """Return whether a batch size fits, and its cells of the table; it counts as a request of the client.

        Raises:
            Refused: There is no answer for a reason other than the job.
        """
        while wait_s := client_of(self.request).wait_s():
            await asyncio.sleep(wait_s)
        try:
            answer = await self._answer(_question({**self.asked.job, "batch_size": size}))
        except Refused as error:
            if error.kind != LASTING:
                raise
            return "refused", ("", "", str(error))
        verdict, found = answer.verdict.value, answer.estimate
        cells = (gib(found["peaks"]["process"]), gib(found["upper_bound"]["bytes"]), verdict)
        return "fits" if verdict == "fits" else "too large", cells

    def _drawn(self, answer: Answer) -> str:
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
            answer=facts.Answer(words.headline, facts.COLOURS[answer.verdict.value], lines, tuple(words.sentences)),
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
