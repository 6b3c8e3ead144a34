"""What exchanges count and cost in whole jobs: clients at once, ranks of a client, bytes on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from support.elastic_client import elastic_step
from support.exchange_job import SIZE, open_center, params_of, start

from kvstore_mpi.esgd import Elastic
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire.codec import Kind

KIND = 5
"""Which byte of a frame's header tells its kind."""


# --- clients at once ---


@pytest.mark.paper("EASGD section 2", "MXNET-MPI equations 2 and 3")
def test_threads_at_once_are_as_one_after_the_other():
    """The server's journal of exchanges that overlap, replayed one by one, gives the same to the bit.

    After each exchange, as what goes wrong early is averaged away; and what the clients were answered.
    """
    alpha, rounds, clients = 0.3, 200, 8
    learned = params_of(0, rounds * SIZE).reshape(rounds, SIZE)
    with start(clients) as job:
        journal, told = [], {}
        server = job.servers[0]
        carry_out = server._update

        def note(update):
            (contribution,) = update.contributions
            (piece,), (payload,) = update.unit.slices, contribution.payloads.values()
            who = (update.clients[0], contribution.sequence)
            params = np.frombuffer(payload, np.float32).copy()
            carry_out(update)
            after = server._store.payload(*piece, stable=False)
            journal.append((update.number, piece, who, params, after))

        server._update = note

        def run(worker):
            store = open_center(worker, Elastic(alpha))
            weight = params_of(worker.rank)
            for sequence in range(1, rounds + 1):
                told[worker.client, sequence] = store.pushpull("w", weight)
                elastic_step(weight, told[worker.client, sequence], alpha)
                weight += learned[(worker.client + sequence) % rounds]  # else all would soon be equal
            worker.barrier()
            return store.pull("w")

        found = job.on_all(run)[0]
    center = params_of(99)
    for lo in {entry[1].lo for entry in journal}:
        mine = [entry for entry in journal if entry[1].lo == lo]
        assert [number for number, *_ in mine] == list(range(1, clients * rounds + 1))
        assert sorted(who for _, _, who, *_ in mine) == sorted(told)
        for _, piece, who, params, after in mine:
            part = center[piece.lo : piece.hi]
            assert told[who][piece.lo : piece.hi].tobytes() == part.tobytes()
            part -= np.float32(alpha) * (part - params)
            assert part.tobytes() == after
    np.testing.assert_array_equal(found, center)


# --- ranks of a client ---


@pytest.mark.parametrize("compress", [None, "int8"])
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.paper("MXNET-MPI section 6")
def test_the_ranks_of_a_client_train_like_one_with_all_their_samples(mode, compress):
    """One, two or three ranks, each with its part of the batch: parameters and centers are the same.

    In an asynchronous store there is one client, as with two the order would decide.
    """
    alpha, rate, steps, batch = 0.3, 0.1, 24, 6
    clients = 2 if mode == "sync" else 1

    def train(ranks):
        with start(clients, ranks, servers=2) as job:

            def run(worker):
                center = open_center(worker, Elastic(alpha), mode, compress=compress)
                gradients = BlockingStore(worker, "client")
                gradients.init("g", np.zeros(SIZE, np.float32))
                weight = params_of(7)
                for step in range(steps):
                    draw = np.random.RandomState([worker.client, step])
                    samples = np.array_split(draw.normal(size=(batch, SIZE)), ranks)[worker.mpi_rank]
                    own = (weight - samples).mean(axis=0).astype(np.float32)
                    weight -= np.float32(rate / ranks) * gradients.pushpull("g", own)
                    if step % 3 == 2:
                        elastic_step(weight, center.pushpull("w", weight), alpha)
                worker.barrier()
                return weight, center.pull("w")

            return job.on_all(run)[::ranks]

    alone = train(1)
    assert np.abs(alone[0][0] - params_of(7)).max() > 0.1
    accuracy = 1e-2 if compress else 1e-5
    for ranks in (2, 3):
        np.testing.assert_allclose(train(ranks), alone, rtol=0, atol=accuracy)


class CountingNetwork(MemoryNetwork):
    """Counts frames of data and their bytes, by sender and receiver."""

    def __init__(self):
        super().__init__()
        self.frames = {}
        self.payloads = {}

    def send(self, link, frames):
        with self.condition:
            direction = self._directions.get(link)
            if direction is not None and frames[0][KIND] == Kind.DATA:
                way = self._directions[direction.far_link].node, direction.node
                self.frames[way] = self.frames.get(way, 0) + 1
                payload = sum(memoryview(frame).nbytes for frame in frames[1:])
                self.payloads[way] = self.payloads.get(way, 0) + payload
        super().send(link, frames)

    def sent(self, sender, receivers):
        """Return frames and payload bytes that a process has sent to others."""
        ways = [(_transport(sender), _transport(receiver)) for receiver in receivers]
        with self.condition:
            return tuple(sum(each.get(way, 0) for way in ways) for each in (self.frames, self.payloads))


def _transport(process):
    return process._loop.transport


@pytest.mark.parametrize("leaders", ["one", "all"])
@pytest.mark.paper("MXNET-MPI section 6")
def test_only_the_leader_of_a_client_talks_to_the_servers(leaders):
    """Its members send them nothing in exchanges, and no parameters ever; unless all are leaders."""
    network, exchanges = CountingNetwork(), 5
    with start(2, 3, servers=2, network=network, leaders=leaders) as job:
        before = {}

        def run(worker):
            store = open_center(worker, Elastic(0.3))
            worker.barrier()
            before[worker.rank] = network.sent(worker, job.servers)
            for _ in range(exchanges):
                store.pushpull("w", params_of(worker.client))
            return network.sent(worker, job.servers)

        after = dict(enumerate(job.on_all(run)))
        for client in range(2):
            leader, *members = job.topology.members_of(client)
            sent = {rank: after[rank][1] - before[rank][1] for rank in (leader, *members)}
            assert sum(sent.values()) == exchanges * SIZE * 4
            for rank in members:
                if leaders == "one":
                    assert (after[rank][0] - before[rank][0], after[rank][1]) == (0, 0)
                else:
                    assert sent[rank] > 0


# --- bytes ---


@pytest.mark.parametrize(("compress", "part"), [(None, 1.0), ("int8", 1 / 4), ("int4", 1 / 8)])
def test_bytes_on_the_wire(compress, part):
    """Both ways: once the model, and a quarter or an eighth of it when it is compressed."""
    size = 200_000
    with Cluster(MemoryNetwork().transport, clients=1, servers=1, transport="tcp") as job:

        def run(worker):
            store = open_center(worker, Elastic(0.5), initial=np.zeros(size, np.float32), compress=compress)
            store.pushpull("w", params_of(0, size))  # the first travels as it is
            before = _bytes(worker)
            for seed in range(3):
                store.pushpull("w", params_of(seed, size))
            return [after - first for first, after in zip(before, _bytes(worker))]

        for way in job.on_all(run)[0]:
            assert way == pytest.approx(3 * 4 * size * part, rel=0.03)


def _bytes(worker):
    statistics = worker._loop.endpoint.statistics()
    return statistics.bytes_sent, statistics.bytes_received
