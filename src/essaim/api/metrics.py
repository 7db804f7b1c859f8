"""What Prometheus is told: this process's requests, and the whole control plane's figures.

Figures of the database are the same from every API process: ask one of them, or take the maximum.
Counters begin at 0 with the process, as counters of an exporter do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from essaim.model.fleet import LeaseState, NodeState
from essaim.model.runs import RunState
from essaim.usecases import watching

if TYPE_CHECKING:
    from enum import StrEnum

    from prometheus_client.core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from essaim.model.fleet import User
    from essaim.usecases.services import Services

#: Seconds: a heartbeat takes about a millisecond, a rent waits for its machine for up to ten.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HEARTBEAT = "/api/workers/heartbeat"
STREAM = b"text/event-stream"
OK = 200


class Exporter:
    """The metrics of one API process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._seen: watching.Seen | None = None
        self._requests = Histogram(
            "essaim_http_request_duration_seconds",
            "Time to answer a request, by route; streams of events are not counted.",
            ("method", "route", "status"),
            registry=self.registry,
            buckets=BUCKETS,
        )
        self._heartbeats = self._counter("essaim_heartbeats", "Heartbeats this process accepted.")
        self._events = self._counter("essaim_events", "What happened, by kind.", "kind")
        self._migrations = self._counter(
            "essaim_lease_migrations", "Leases that moved to another node."
        )
        self._sessions = self._counter(
            "essaim_gateway_sessions", "Sessions that ended at the gateways.", "result"
        )
        self._bytes = self._counter(
            "essaim_gateway_bytes", "Bytes of sessions that ended, by direction.", "direction"
        )

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests.labels(method, route, str(status)).observe(seconds)
        if route == HEARTBEAT and status == OK:
            self._heartbeats.inc()

    def text(self, services: Services, by: User | None) -> bytes:
        """Return all metrics in the text format of Prometheus, for operators."""
        found = watching.numbers(services, by)
        with self._lock:  # two at once would count the same news twice
            self._count(services)
            answer = generate_latest(self.registry)
        figures = CollectorRegistry()
        figures.register(_Figures(found))
        return answer + generate_latest(figures)

    def _count(self, services: Services) -> None:
        news, self._seen = watching.news(services, self._seen)
        for kind, count in news.events.items():
            self._events.labels(kind).inc(count)
        self._migrations.inc(news.events["lease.moved"])
        traffic = news.traffic
        self._sessions.labels("served").inc(traffic.ended)
        self._sessions.labels("refused").inc(traffic.refused)
        self._bytes.labels("in").inc(traffic.bytes_in)
        self._bytes.labels("out").inc(traffic.bytes_out)


class _Figures:
    """The figures of the database, read beforehand."""

    def __init__(self, found: watching.Numbers) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Give them to the registry."""
        found, backlog = self._found, self._found.backlog
        leases = [state for state in LeaseState if state.open]
        runs = [state for state in RunState if not state.over]
        yield _by_state("essaim_nodes", "Nodes by state.", found.nodes, NodeState)
        yield _gauge("essaim_nodes_drained", "Nodes that take no more leases.", found.drained)
        yield _gauge(
            "essaim_heartbeat_age_seconds",
            "Age of the oldest last heartbeat of the nodes in service.",
            backlog.silent,
        )
        yield _by_state("essaim_leases", "Open leases by state.", found.leases, leases)
        queue = found.leases[LeaseState.QUEUED]
        yield _gauge("essaim_queue_length", "Leases that wait for nodes.", queue)
        yield _gauge(
            "essaim_queue_age_seconds", "How long the oldest of them has waited.", backlog.queued
        )
        yield _by_state("essaim_runs", "Runs that are not over, by state.", backlog.runs, runs)
        yield _gauge(
            "essaim_run_delay_seconds",
            "How long the oldest run has been due without a worker taking it.",
            backlog.overdue,
        )
        yield _gauge(
            "essaim_gateway_sessions_open", "Open sessions at the gateways.", backlog.sessions
        )
        if found.pool:
            family = GaugeMetricFamily(
                "essaim_database_connections",
                "This process's connections to the database.",
                labels=["state"],
            )
            family.add_metric(["in use"], found.pool.in_use)
            family.add_metric(["idle"], found.pool.idle)
            yield family


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _by_state(name: str, about: str, counts: Tally[Any], states: Iterable[StrEnum]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=["state"])
    for state in states:
        family.add_metric([state.value], counts[state])
    return family


class Measured:
    """Measures how long requests take."""

    def __init__(self, app: ASGIApp, exporter: Exporter) -> None:
        self._app = app
        self._exporter = exporter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, stream = 500, False
        began = time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                stream = any(value.startswith(STREAM) for _name, value in message["headers"])
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            if not stream:
                # Paths nobody serves would each be a time series of their own.
                route = getattr(scope.get("route"), "path", "unknown")
                took = time.perf_counter() - began
                self._exporter.observe(_method(scope["method"]), route, status, took)


def _method(name: str) -> str:
    """Tell a known method; others would each be a time series of their own."""
    return name if name in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"} else "OTHER"
