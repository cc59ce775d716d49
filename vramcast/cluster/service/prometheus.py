"""Prometheus metrics of the service: latency, failures, and the coverage of requests by class of jobs."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vramcast.cluster.service.service import Service
from vramcast.cluster.service.workers import Workers

_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)  # arbitrary: cached answers to long jobs


class Metrics:
    """A collector that counts answers; the service's own numbers are read on each scrape."""

    def __init__(self, service: Service, pools: Sequence[Workers]) -> None:
        self._service = service
        self._pools = pools
        self.registry = CollectorRegistry()
        self._latency = Histogram(
            "vramcast_request_seconds", "Time to an answer", ["route"], buckets=_BUCKETS_S, registry=self.registry
        )
        self._answers = Counter("vramcast_requests", "Answers by status", ["route", "status"], registry=self.registry)
        self.registry.register(self)
        self._latency_of = functools.cache(self._latency.labels)
        self._answers_of = functools.cache(self._answers.labels)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._latency_of(route).observe(seconds)
        self._answers_of(route, status).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the service's own numbers."""
        service, pools = self._service, self._pools
        for name, about, value in (
            ("vramcast_cached_answers", "Answers from the cache", service.from_cache),
            ("vramcast_joined_questions", "Questions that waited for an equal one", service.joined),
            (
                "vramcast_replaced_workers",
                "Workers ended because of a job's time or memory",
                sum(pool.replaced for pool in pools),
            ),
        ):
            yield CounterMetricFamily(name, about, value=value)
        yield GaugeMetricFamily("vramcast_questions_in_flight", "Questions being answered", value=len(service.asking))
        waiting = sum(pool.waiting for pool in pools)
        yield GaugeMetricFamily("vramcast_questions_waiting", "Questions that wait for a worker", value=waiting)
        observed = CounterMetricFamily("vramcast_observed_jobs", "Jobs with a reported end", labels=["group"])
        coverage = GaugeMetricFamily("vramcast_coverage", "Share of jobs below their request", labels=["group"])
        over = GaugeMetricFamily("vramcast_overprovision", "Mean of request / measured - 1", labels=["group"])
        level = GaugeMetricFamily("vramcast_asked_level", "Level requested for the next job", labels=["group"])
        for name, by_client in service.groups.items():
            count = sum(state.observed for state in by_client.values())
            observed.add_metric([name], count)
            coverage.add_metric([name], sum(state.covered for state in by_client.values()) / count)
            over.add_metric([name], sum(state.over for state in by_client.values()) / count)
            level.add_metric([name], service.asked(name))
        yield from (observed, coverage, over, level)


class ResponseCounter:
    """An ASGI application that counts responses by route; unknown paths are not counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = time.perf_counter()
        status = 500  # spec: HTTP, if the application raises

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if (route := scope.get("route")) is not None:
                self._metrics.answered(route.path, status, time.perf_counter() - began)
