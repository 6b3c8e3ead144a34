"""A Prometheus endpoint of the launcher: the numbers of all processes, as they have told them last.

It answers in threads of its own, from what the launcher knows, and asks no process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.metrics.counters import COUNTERS
from mpilaunch.descriptors import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from mpilaunch.seeing.job_view import JobView, Row

LOOPBACK = "127.0.0.1"
PREFIX = "kvstore_mpi_"
LABELS = ("process", "host")

MOST_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Return address and port of ``[ADDRESS:]PORT``.

    Raises:
        UsageError: It is no such text.
    """
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > MOST_PORT:
        raise UsageError(f"--metrics {text}: give a port, 0 to have one chosen, or ADDRESS:PORT")
    return address.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


class JobCollector:
    """Makes metrics of what is known of a job, whenever somebody asks."""

    def __init__(self, view: JobView, clock: Callable[[], float] = time.monotonic) -> None:
        """Look at a job."""
        self._view = view
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``."""
        from prometheus_client.core import (  # noqa: PLC0415  an extra
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        rows = [row for row in self._view.rows(self._clock()) if row.counters and not row.is_over]
        for name, counter in COUNTERS.items():
            family = CounterMetricFamily if counter.total else GaugeMetricFamily
            told = family(PREFIX + name, counter.text, labels=LABELS)
            for row in rows:
                if name in row.counters:
                    told.add_metric([row.name, row.host], row.counters[name])
            yield told
        for name, text, value in (
            ("silent_seconds", "since the process has told about itself", lambda row: row.age),
            ("longest_wait_seconds", "for which it has waited for others", _longest_wait),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
            for row in rows:
                gauge.add_metric([row.name, row.host], value(row))
            yield gauge


def _longest_wait(row: Row) -> float:
    return max((wait.seconds for wait in row.waits), default=0.0)


@contextlib.contextmanager
def serve(where: str, view: JobView, say: Callable[[str], None]) -> Iterator[None]:
    """Serve a job's metrics during the block, and say where.

    Args:
        where: ``[ADDRESS:]PORT``, or nothing for no endpoint.
        view: The job.
        say: Tells the user.

    Raises:
        UsageError: ``where`` is no address.
        ConfigurationError: prometheus-client is not installed, or the port is taken.
    """
    if not where:
        yield
        return
    address, port = parse_address(where)
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  an extra

        from mpilaunch.seeing.metrics_server import PATH, MetricsServer  # noqa: PLC0415  needs it, too
    except ImportError as error:
        text = "--metrics needs prometheus-client: pip install 'kvstore_mpi[metrics]'"
        raise ConfigurationError(text) from error
    # One of its own: the default one has numbers of this process, which is not what anybody asks for.
    registry = CollectorRegistry()
    registry.register(JobCollector(view))
    try:
        server = MetricsServer(address, port, registry, METRICS)
    except (OSError, UnicodeError) as error:  # the latter where it cannot be a name of the DNS
        why = error.strerror if isinstance(error, OSError) else f"{address!r} is no name of a host"
        raise ConfigurationError(f"--metrics {where} cannot be listened on: {why}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    shown = f"[{address}]" if ":" in address else address
    say(f"metrics: http://{shown}:{server.server_port}{PATH}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
