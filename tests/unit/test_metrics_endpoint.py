"""The Prometheus endpoint: what it serves, over HTTP, and that the dashboard asks for nothing else."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.host_name import host_name
from kvstore_mpi.metrics.counters import COUNTERS
from kvstore_mpi.metrics.status import Status, Wait
from mpilaunch.descriptors import METRICS
from mpilaunch.seeing.endpoint import JobCollector, parse_address, serve
from mpilaunch.seeing.job_view import JobView

prometheus_client = pytest.importorskip("prometheus_client", reason="an extra; the extra dev has it")
DASHBOARD = Path(__file__).parents[2] / "docs/dashboards/kvstore_mpi.json"


@pytest.fixture
def view():
    """Return a job of which one process has told every number."""
    seen = JobView(lease=30.0)
    seen.started("client9.9", "far", 0.0)
    wait = Wait("round", "round 1", 7.5, 9.0, ["client0.0"])
    seen.take(Status("server0", 0, "h", 7, dict.fromkeys(COUNTERS, 3.0), [wait]), 10.0)
    return seen


def test_it_serves_every_number_of_every_process(view):
    """Totals end in _total; who has told nothing yet has no numbers."""
    said = []
    with serve("0", view, said.append):
        [url] = re.findall(r"http://127\.0\.0\.1:\d+/metrics", said[0])
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
    assert 'kvstore_mpi_bytes_sent_total{host="h",process="server0"} 3.0' in text
    assert 'kvstore_mpi_queue_bytes{host="h",process="server0"} 3.0' in text
    assert 'kvstore_mpi_longest_wait_seconds{host="h",process="server0"} 7.5' in text
    assert "client9.9" not in text
    assert "python_info" not in text


@pytest.mark.parametrize(("path", "status"), [("/metrics?x=1", 200), ("/", 200), ("/nosuch", 404)])
def test_numbers_are_at_their_path_alone(view, path, status):
    """Elsewhere it is said where that is."""
    said = []
    with serve("0", view, said.append):
        [address] = re.findall(r"http://(127\.0\.0\.1:\d+)/metrics", said[0])
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.status == status
    assert ("kvstore_mpi_bytes_sent_total" in text) is path.startswith("/metrics")
    assert text.startswith("#") or text == "the numbers of the job are at /metrics\n"


def test_who_says_nothing_holds_up_nobody(view, monkeypatch):
    """Of many silent connections the oldest go, with their threads; who asks is answered."""
    monkeypatch.setattr("mpilaunch.seeing.metrics_server._Handler.timeout", 600.0)
    said, before = [], threading.active_count()
    with serve("0", view, said.append):
        [port] = map(int, re.findall(r":(\d+)/metrics", said[0]))
        silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(4 * METRICS)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert "kvstore_mpi_bytes_sent_total" in answer.read().decode()
        assert threading.active_count() <= before + 1 + METRICS
        for each in silent[: 3 * METRICS]:
            assert each.recv(1) == b""
        for each in silent:
            each.close()


def test_a_connection_that_goes_silent_ends(view, monkeypatch):
    """Also where there is room for more."""
    monkeypatch.setattr("mpilaunch.seeing.metrics_server._Handler.timeout", 0.01)
    said = []
    with serve("0", view, said.append):
        [port] = map(int, re.findall(r":(\d+)/metrics", said[0]))
        with socket.create_connection(("127.0.0.1", port), 60) as silent:
            silent.sendall(b"GET /metrics HTTP/1.0\r\n")
            assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("10.0.0.5:9100", 200), ("[::1]:80", 200), ("[::1]", 200)),
        *(("localhost:9100", 200), (f"{host_name().upper()}:80", 200)),
        *(("evil.example", 403), ("evil.example:9100", 403), ("127.0.0.1.evil.example", 403), ("", 403)),
    ],
)
def test_a_page_that_has_its_name_lead_here_reads_nothing(view, host, status):
    """Requests name this host by an address or its own name."""
    said = []
    with serve("0", view, said.append):
        [address] = re.findall(r"http://(127\.0\.0\.1:\d+)/metrics", said[0])
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.status == status
    assert ("kvstore_mpi_bytes_sent_total" in text) is (status == 200)


@pytest.mark.parametrize(
    ("text", "address"),
    [("0", ("127.0.0.1", 0)), ("::1:80", ("::1", 80)), ("[::1]:80", ("::1", 80)), ("h:80", ("h", 80))],
)
def test_addresses_are_read_as_people_write_them(text, address):
    """Those of IPv6 with brackets, as in a URL, or without."""
    assert parse_address(text) == address


def test_the_dashboard_asks_for_what_is_served(view):
    """Each name in it is one of the endpoint's, and no number is left out but those of the scheduler."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(JobCollector(view, clock=lambda: 11.0))
    text = prometheus_client.generate_latest(registry).decode()
    served = set(re.findall(r"^(kvstore_mpi_\w+)\{", text, re.MULTILINE))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"kvstore_mpi_\w+", target["expr"])
    }
    assert asked <= served
    assert len(asked) > 20


def test_where_it_listens():
    """On the loopback interface unless an address is given."""
    assert parse_address("9100") == ("127.0.0.1", 9100)
    assert parse_address("0.0.0.0:0") == ("0.0.0.0", 0)
    for wrong in ("", "x", "1:", "65536"):
        with pytest.raises(UsageError, match="give a port"):
            parse_address(wrong)


def test_a_port_that_is_taken_is_named(view):
    """Before anything is started."""
    said = []
    with serve("0", view, said.append):
        port = re.search(r":(\d+)/", said[0])[1]
        with (
            pytest.raises(ConfigurationError, match=f"--metrics {port} cannot be listened on"),
            serve(port, view, print),
        ):
            pass
    with serve("", view, said.append):
        assert len(said) == 1


@pytest.mark.parametrize("address", ["x..y", 64 * "x"])
def test_an_address_that_cannot_be_one_is_named(view, address):
    """Though Python finds that out before it asks for it."""
    with (
        pytest.raises(ConfigurationError, match=f"--metrics {address}:0 cannot .* '{address}' is no name"),
        serve(f"{address}:0", view, print),
    ):
        pass
