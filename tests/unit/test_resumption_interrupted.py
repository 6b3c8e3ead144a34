"""Servers of a job that was resumed which are started again before they have saved anything themselves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.table_job import TableJob, table
from support.table_server import LEADER, TableServer, begin, push, spec_of

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import KeySpec, Topology
from kvstore_mpi.server.server import Server
from kvstore_mpi.values.row_payloads import CHANGED
from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.events import Received

MOD, RANGE = "rows", "row_ranges"
FORMER = table(None, 40, "float32", (MOD, 4))


@pytest.fixture
def former(tmp_path):
    """A job of two servers that has trained a table and ended."""
    job = TableJob(tmp_path, 2)
    job.give("adam")
    job.create(FORMER)
    for step in range(1, 4):
        job.push({step, step + 9, 39}, step)
    job.save()
    return job


def resumed(folder, servers, spec):
    job = TableJob(folder, servers, job="b")
    job.resume()
    job.create(spec)
    return job


def told(spec, shard):
    """What a worker says of a table to a server that is back."""
    return m.Create(spec, "sync", 0, shard, [shard], seed=True)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("cut", [(MOD, 4), (RANGE, 4), (MOD, 6)])
def test_tables_are_cut_as_the_workers_have_them(former, tmp_path, servers, cut):
    """And not as the former job had them, whose files are all that is there."""
    spec = replace(FORMER, layout=cut[0], partitions=cut[1])
    job = resumed(tmp_path, servers, spec)
    for index, was in enumerate(job.servers):
        shard = was.state.keys.by_id[0].shard
        server = TableServer(tmp_path, index, servers, job="b")
        assert server.restore(resume=True)
        assert not server.content()
        assert server.snapshots.take_up([told(spec, shard[1:])], server.state, server.store)
        assert server.content() == was.content()


def test_pieces_of_two_jobs_that_are_cut_otherwise_are_an_error(former, tmp_path):
    """Another server has saved already: rows of both would be mixed, and some would be missing."""
    spec = replace(FORMER, layout=RANGE)
    resumed(tmp_path, 2, spec).servers[1].save()
    server = TableServer(tmp_path, 0, 2, job="b")
    assert server.restore(resume=True)
    with pytest.raises(ConfigurationError, match=r"key 't' in the snapshots pieces are cut in two ways"):
        server.snapshots.take_up([told(spec, (0, 4))], server.state, server.store)


def started_again(folder):
    """Return the shell of a server that has died, and what it has sent."""
    sent = []
    loop = SimpleNamespace(
        now=lambda: 0.0,
        send=lambda peer, message, *_: sent.append(message),
        reply=lambda answer: sent.append(answer[1]),
        endpoint=SimpleNamespace(bytes_in_flight=lambda _: 0),
    )
    config = NodeConfig(
        num_workers=1, num_servers=1, slice_elements=5, snapshot_dir=str(folder), resume=True, incarnation=1
    )
    return Server(config, Topology(1, 1, 1), loop, [], job="b"), sent


def test_what_a_worker_has_is_taken_up_as_it_says_so(tmp_path):
    """Who asked before is answered, and pushes are counted from where they are."""
    was = begin(tmp_path)
    push(was, range(12), 1)
    was.save()
    spec = replace(spec_of(), partitions=3)
    server, sent = started_again(tmp_path)
    server.on_event(Received(LEADER, m.Pull([(0, 2, 3, 0)]), [RowSparse(spec).request(CHANGED, -1)]), 0.0)
    server.on_pass(0.0)
    assert sent == []
    unknown = m.Create(KeySpec(0, "w", (8,), "float32"), "sync", 1, (0, 8), [(0, 8)], seed=True)
    keys = [(told(spec, (0, 6)), 7), (unknown, 2)]
    server.on_event(Received(LEADER, m.Resume(keys), []), 0.0)
    server.on_pass(0.0)
    assert {type(each) for each in sent} == {m.Values, m.Missing}
    assert [each.keys for each in sent if type(each) is m.Missing] == [[1]]
    again = TableServer(tmp_path)
    again.state, again.store = server._state, server._store
    assert again.content() == was.content()
    assert [unit.applied for unit in server._state.keys.by_id[0].distinct_units] == [[7]] * 3


def test_a_key_that_is_another_one_here_is_an_error(tmp_path):
    """It is not counted as the one that the worker has."""
    was = begin(tmp_path)
    news = was.state.resume(LEADER, m.Resume([(told(replace(spec_of(), partitions=3), (0, 6)), 7)]))
    (failure,) = (each.message for each in news)
    assert "key number 0 is 't' (12, 2) float32 in 3 pieces" in failure.text
    assert was.state.keys.unit(0, 0).applied == [0]
