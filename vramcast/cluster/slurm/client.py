"""A client of the service that uses only Python's standard library and never exceeds its time limit."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from vramcast.cluster.answer import Answer, Unanswerable
from vramcast.cluster.slurm.site_settings import SiteSettings
from vramcast.core.errors import NoAnswer

_MOST_BYTES: Final = 1 << 20  # arbitrary: an answer has a few kB
_OF_THE_QUESTION: Final = (400, 403, 404, 413, 422)  # spec: docs/serving.md: errors caused by the request itself
_WORTH_ASKING_S: Final = 0.05  # arbitrary: no answer comes in less time
# The service reports that it is still working shortly before the client gives up.
_LEAD_S: Final = 0.3  # arbitrary


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """A client for one service.

    Attributes:
        address: http://host:port
        token: Token sent with each request; "": none.
    """

    address: str
    token: str = ""

    @classmethod
    def of(cls, settings: SiteSettings) -> ServiceClient:
        """Return the client of a site."""
        return cls(settings.service.rstrip("/"), settings.token())

    def check(self, path: str, job: Mapping[str, Any], latest: float) -> Answer:
        """Return the service's answer for a job.

        Args:
            path: `/v1/checks` or `/v1/scripts`.
            job: The body.
            latest: The time (`time.monotonic`) at which to give up.
        Raises:
            NoAnswer: There is none.
        """
        rest_s = latest - time.monotonic()
        status, found = self.post(path, {**job, "wait_s": max(0.0, rest_s - _LEAD_S)}, latest)
        if status == 202:
            raise NoAnswer("the estimate is not ready yet")
        if status == 429:
            raise NoAnswer("the service has too many requests")
        if status != 200:
            kind = Unanswerable if status in _OF_THE_QUESTION else NoAnswer
            raise kind(_message(found) or f"the service returned status {status}")
        return Answer.of(found)

    def check_each(self, path: str, jobs: Mapping[str, Mapping[str, Any]], timeout_s: float) -> dict[str, Answer | NoAnswer]:
        """Return the answers to several requests, sent at the same time; each has the whole timeout."""
        latest = time.monotonic() + timeout_s

        def ask(job: Mapping[str, Any]) -> Answer | NoAnswer:
            try:
                return self.check(path, job, latest)
            except NoAnswer as missing:
                return missing

        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            return dict(zip(jobs, pool.map(ask, jobs.values()), strict=True))

    def post(self, path: str, body: Mapping[str, Any], latest: float) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of the response.

        Raises:
            NoAnswer: There was no response.
        """
        rest_s = latest - time.monotonic()
        if not rest_s > _WORTH_ASKING_S or math.isinf(rest_s):
            raise NoAnswer("no time was left to ask the service")
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), headers, method="POST")
        try:
            with _DIRECT.open(request, timeout=rest_s) as answer:
                return answer.status, _read(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error)
        except (OSError, ValueError) as error:
            why = "it did not answer in time" if isinstance(error, TimeoutError) else str(getattr(error, "reason", error))
            raise NoAnswer(f"the service at {self.address} is unreachable ({why})") from None


# A proxy from the user's environment does not reach the cluster's service.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read(answer: Any) -> dict[str, Any]:
    try:
        found = json.loads(answer.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _message(found: Mapping[str, Any]) -> str:
    error = found.get("error")
    return " ".join(str(error.get("message", "")).split())[:300] if isinstance(error, dict) else ""
