"""Hosts whose names are no text."""

from __future__ import annotations

import socket

import pytest

from kvstore_mpi.host_name import host_name
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.messages import Join


@pytest.mark.parametrize(
    ("name", "told"), [("node0", "node0"), ("b\udcfcro", "b\\xfcro"), ("b\u00fcro", "b\u00fcro")]
)
def test_a_name_with_any_bytes_can_be_sent(monkeypatch, name, told):
    """The kernel takes any; messages and the files of processes are UTF-8."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert host_name() == told
    transport = SocketTransport()
    join = Join(transport.bind("127.0.0.1"), host_name(), 1, 0)
    transport.close(0)
    assert codec.decode_message(codec.encode_message(join)) == join
