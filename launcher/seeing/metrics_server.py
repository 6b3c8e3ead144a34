"""The HTTP server of ``--metrics``: who reaches its port cannot make it take much of the launcher.

A few connections at a time, each with a thread and a descriptor, which are counted before the job starts.
When there is no room the oldest connection goes: one that asks is answered within milliseconds, so that the
old ones are of those that ask nothing. Loaded only where metrics are served, as the modules for HTTP are.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING

from prometheus_client import MetricsHandler

from kvstore_mpi.host_name import host_name

if TYPE_CHECKING:
    from typing import Any

    from prometheus_client import CollectorRegistry

    # What the standard library calls so: a socket.
    Request = Any

PATH = "/metrics"

SILENCE_S = 10.0
"""Seconds in which a connection says or takes nothing, after which it ends."""


class MetricsServer(ThreadingHTTPServer):
    """Serves the metrics of a registry."""

    def __init__(self, address: str, port: int, registry: CollectorRegistry, most: int) -> None:
        """Listen.

        Args:
            address: Where: an address or a name of this host's.
            port: Of it; 0 has one chosen.
            registry: Whose metrics.
            most: Connections at a time.

        Raises:
            OSError: It cannot be listened there.
            UnicodeError: The address is nothing that could be one.
        """
        self._room = threading.BoundedSemaphore(most)
        self._open: dict[Request, None] = {}  # the oldest first
        self._lock = threading.Lock()
        [(self.address_family, *_, place), *_] = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.names = {address.lower(), "localhost", host_name().lower()}
        super().__init__((str(place[0]), port), _Handler.factory(registry))

    def server_bind(self) -> None:
        """Bind, without the question to the resolver for this host's name that the library has here."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_port: int = self.server_address[1]

    def process_request(self, request: Request, client_address: Any) -> None:
        """Give a connection a thread, when there is room for one."""
        if not self._room.acquire(blocking=False):
            self._end_oldest()
            self._room.acquire()
        with self._lock:
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        """Close a connection; its room is another's then."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)
        self._room.release()

    def _end_oldest(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # it has just ended by itself
            for oldest in self._open:
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes, and closes it
                break

    def is_own(self, host: str) -> bool:
        """Tell whether a request for a host may be meant for this one.

        A page in a browser can have the name of its own site lead here, and read what it then asks for.
        """
        name, _, port = host.rpartition(":")
        name = (name if name and port.isdecimal() else host).lower().removesuffix(".")
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            return True
        return name in self.names or name == socket.getfqdn().lower()


class _Handler(MetricsHandler):
    """Answers one request."""

    timeout = SILENCE_S
    server: MetricsServer

    def handle(self) -> None:
        """Answer; who has gone needs none."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:  # noqa: N802  the library's name
        """Give metrics at their path alone, and say elsewhere where that is."""
        host = self.headers.get("Host", "localhost")
        path = self.path.partition("?")[0]
        if not self.server.is_own(host):
            self._say(HTTPStatus.FORBIDDEN, "ask for this host by its address or its name")
        elif path == PATH:
            super().do_GET()
        else:
            found = HTTPStatus.OK if path == "/" else HTTPStatus.NOT_FOUND
            self._say(found, f"the numbers of the job are at {PATH}")

    def _say(self, status: HTTPStatus, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(f"{text}\n".encode())
