"""Whom a server that cannot save asks to keep copies of its values."""

from __future__ import annotations

from types import SimpleNamespace

from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.server.kept_copies import KeptCopies
from kvstore_mpi.wire import messages as m

WORKERS = [NodeId(Role.WORKER, rank) for rank in range(4)]


def test_one_rank_of_each_client_is_asked_and_whoever_comes_later(caplog):
    """Who is not connected is asked when it is; before that nobody is."""
    asked, connected = [], {WORKERS[0], WORKERS[1]}
    loop = SimpleNamespace(
        endpoint=SimpleNamespace(is_connected=connected.__contains__),
        send=lambda worker, message: asked.append((worker, message)),
    )
    copies = KeptCopies(NodeId(Role.SERVER, 0), Topology(2, 4, 1), loop)
    copies.connected(WORKERS[0])
    assert (asked, copies.wanted) == ([], False)
    copies.want()
    assert (asked, copies.wanted) == ([(WORKERS[0], m.KeepValues())], True)
    connected.add(WORKERS[2])
    copies.connected(WORKERS[2])
    assert asked[1:] == [(WORKERS[2], m.KeepValues())]
    assert [each.message for each in caplog.records] == [
        "server0 cannot save: clients keep copies of what is in asynchronous stores"
    ]
