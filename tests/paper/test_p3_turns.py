"""P3 section 4.2 in the real worker and server: who goes first where several wait, and what is under way.

Pushes meet at a server that stands still, and values at a server whose worker does: the order in which they
leave is the order of their priorities, which went all the way from the worker's call. The other tests of P3
drive a model of a job (``virtual_training.py``) in which priorities are the model's own, or look at what
comes out (``test_p3_protocol.py``); these would notice if a message carried none.
"""

from __future__ import annotations

import pytest
from support.simulation import Simulation
from support.virtual_training import Cluster, Layer, Order, train

from kvstore_mpi.config import AUTO
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.window import LEAST_BYTES, LEAST_SLICES
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.wire import messages as m

SERVER = NodeId(Role.SERVER, 0)
SLICE = 10  # elements
SLICE_BYTES = 4 * SLICE
KEYS = (0, 1, 2)  # the priority of a key is its number, negated
SLICES = 3  # of each key
ALIKE = (SLICES, SLICES, SLICES)
UNLIMITED = 1 << 20
A_SLICE = 1  # a window of a byte: one slice under way
PAUSE = 0.1  # seconds of virtual time in which everything arrives that can


class Job:
    """Clients of one rank each and a server; a test says which of them stands still while others send.

    Attributes:
        updates: The slices in the order in which the server has updated them: (key, first element).
        rates: The learning rates of the updates.
        values: For each client the slices in the order in which their values have left the server.
        under_way: By the kind of the message the bytes under way to its receiver when it was sent.
        asked: By the kind of the message whether each was to be acknowledged at once.
        carried: The keys of the values that have left for worker 0, after each slice that was carried.
    """

    def __init__(
        self,
        clients=1,
        *,
        schedule="p3",
        window=UNLIMITED,
        slice_size=SLICE,
        director=0,
        dtype="float32",
        slices=ALIKE,
    ):
        self.simulation = Simulation(
            Topology(clients, clients, 1),
            seed=0,
            peer_timeout=60.0,
            schedule=schedule,
            slice_elements=slice_size,
            window_bytes=window,
        )
        self.slice_size = slice_size
        self.slices = slices
        self._director, self._dtype = director, dtype
        self.workers = [NodeId(Role.WORKER, rank) for rank in range(clients)]
        self.updates, self.values = [], [[] for _ in range(clients)]
        self.rates, self.carried = [], []
        self.under_way = {m.Push: [], m.Values: []}
        self.asked = {m.Push: [], m.Values: []}
        self._ready = [False] * clients
        self._ends = []
        self._over = False
        (server,) = self.simulation.servers
        server.watch = self._note_update
        for process in (server, *self.simulation.workers):
            self._listen(process._loop.endpoint)

    def _note_update(self, update):
        self.updates += [(update.unit.key.key, part.lo) for part in update.unit.slices]
        self.rates.append(update.hyper.lr if update.hyper is not None else None)

    def _listen(self, endpoint):
        send = endpoint.send

        def listening(peer, message, payloads=(), *, asks=False):
            send(peer, message, payloads, asks=asks)
            if type(message) in self.under_way:
                self.under_way[type(message)].append(endpoint.bytes_in_flight(peer))
                self.asked[type(message)].append(asks)
            if type(message) is m.Values and self.updates:  # and not the initial value
                for key_id, lo, hi, _ in message.entries:
                    self.values[peer.index] += [(key_id, each) for each in range(lo, hi, self.slice_size)]

        endpoint.send = listening

    def run(self, act):
        """Run a program of the test in a worker that never stands still, once all keys are there."""
        for worker in self.simulation.workers:
            worker.spawn(self._initialise(worker))
        self.simulation.workers[self._director].spawn(self._direct(act))
        self.simulation.run(60.0)
        assert all(ends == [None] for ends in self._ends)
        return self

    def _initialise(self, worker):
        yield worker.joined
        worker.open_store("sync")
        ends = [[] for _ in KEYS]
        self._ends += ends
        for key in KEYS:
            buffer = worker.exchange_buffer(self.slice_size * self.slices[key], self._dtype)
            buffer[...] = 1
            worker.init(0, key, buffer.shape, buffer, ends[key].append)
        yield lambda: all(ends)
        self._ready[worker.rank] = True
        yield lambda: self._over and all(self._ends)

    def _direct(self, act):
        yield lambda: all(self._ready)
        yield PAUSE
        for sent in self.under_way.values():
            sent.clear()
        yield from act(self)
        self._over = True

    def operate(self, kind, rank, key):
        """Have a worker call an operation on a key, and wait until what can arrive has arrived."""
        self._ends.append([])
        getattr(self.simulation.workers[rank], kind)(0, key, -key, self._ends[-1].append)
        yield PAUSE

    def pushpull(self, rank, key):
        """Have a worker push a key and ask for its value."""
        yield from self.operate("pushpull", rank, key)


def slices_of(keys):
    """Return the slices of keys in the order of the keys and of their elements."""
    return [(key, lo) for key in keys for lo in range(0, SLICES * SLICE, SLICE)]


def least_urgent_first(job):
    """While the server stands still, push one key after the other, the most urgent one last."""
    job.simulation.hold(SERVER)
    for key in reversed(KEYS):
        yield from job.pushpull(0, key)
    job.simulation.release(SERVER)


@pytest.mark.paper("P3 section 4.2")
def test_the_server_updates_first_what_is_most_urgent():
    """Three pushes meet at the server, each in a message of its own."""
    job = Job().run(least_urgent_first)
    assert len(job.under_way[m.Push]) == len(KEYS)
    assert job.updates == slices_of(KEYS)
    assert job.values == [slices_of(KEYS)]


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize("schedule", ["slicing", "fifo"])
def test_without_priorities_the_server_updates_in_the_order_of_arrival(schedule):
    """The same pushes under the other schedules."""
    job = Job(schedule=schedule).run(least_urgent_first)
    assert job.updates == slices_of(reversed(KEYS))
    assert job.values == [slices_of(reversed(KEYS))]


def in_different_orders(job):
    """While the server stands still, two clients push by turns, in different orders."""
    job.simulation.hold(SERVER)
    for first, second in [(2, 1), (1, 2), (0, 0)]:
        yield from job.pushpull(0, first)
        yield from job.pushpull(1, second)
    job.simulation.release(SERVER)


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize(("schedule", "order"), [("p3", KEYS), ("slicing", (1, 2, 0)), ("fifo", (1, 2, 0))])
def test_rounds_of_several_clients_end_by_priority(schedule, order):
    """A round needs both; the server takes the pushes of the most urgent round first."""
    job = Job(2, schedule=schedule).run(in_different_orders)
    assert job.updates == slices_of(order)
    assert job.values == [slices_of(order)] * 2


def while_a_worker_stands_still(job):
    """Worker 1 has pushed all and acknowledges nothing while rounds end, the most urgent one last."""
    for key in reversed(KEYS):
        yield from job.pushpull(1, key)
    job.simulation.hold(job.workers[1])
    for key in reversed(KEYS):
        yield from job.pushpull(0, key)
    job.simulation.release(job.workers[1])


FIRST = (2, 0)  # has left the server before anything more urgent was there
OVERTAKEN = [FIRST, *slices_of([0, 1]), (2, SLICE), (2, 2 * SLICE)]


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize(
    ("schedule", "order"),
    [("p3", OVERTAKEN), ("slicing", slices_of(reversed(KEYS))), ("fifo", slices_of(reversed(KEYS)))],
)
def test_values_that_wait_are_overtaken_by_more_urgent_ones(schedule, order):
    """A value has the priority of the push that asked for it, behind a window of one slice."""
    job = Job(2, schedule=schedule, window=A_SLICE).run(while_a_worker_stands_still)
    assert job.updates == slices_of(reversed(KEYS))
    assert job.values[1] == order


@pytest.mark.parametrize(("window", "asks"), [(A_SLICE, True), (UNLIMITED, False)])
def test_who_has_no_room_for_more_is_acknowledged_at_once(window, asks):
    """Pushes and values alike; with room for more, answers carry the acknowledgements of pushes."""
    job = Job(2, window=window).run(while_a_worker_stands_still)
    assert job.values[1], "nothing was sent"
    assert {kind: set(asked) for kind, asked in job.asked.items()} == {m.Push: {asks}, m.Values: {asks}}


def ask_least_urgent_first(job):
    """While the server stands still, ask for one value after the other, the most urgent one last."""
    job.simulation.hold(SERVER)
    for key in reversed(KEYS):
        yield from job.operate("pull", 0, key)
    job.simulation.release(SERVER)
    job.updates = [()]  # so that values are noted


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize(("schedule", "order"), [("p3", KEYS), ("fifo", KEYS[::-1])])
def test_pulls_are_answered_by_priority(schedule, order):
    """A value that was pulled has the priority of the pull."""
    assert Job(schedule=schedule).run(ask_least_urgent_first).values == [slices_of(order)]


def change_the_rate_after_a_push(job):
    """While the server stands still, push, and then say that there is another learning rate."""
    worker = job.simulation.workers[0]
    worker.set_optimizer(0, OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict())
    yield worker.answered
    job.simulation.hold(SERVER)
    yield from job.pushpull(0, 0)
    worker.set_hyper(0, HyperParameters(lr=0.25).to_dict())
    yield PAUSE
    job.simulation.release(SERVER)
    yield PAUSE
    yield from job.pushpull(0, 1)


def test_what_is_said_after_a_push_does_not_overtake_it():
    """Only pushes overtake each other: the first is updated with the rate of its time."""
    job = Job().run(change_the_rate_after_a_push)
    assert job.updates == slices_of([0, 1])
    assert job.rates == [1.0] * SLICES + [0.25] * SLICES


# --- the figures of the paper ---


def one_slice_at_a_time(job):
    """Backward of a layer takes worker 0 as long as a slice its link; worker 1 has pushed all before."""
    for key in KEYS:
        yield from job.pushpull(1, key)
    job.simulation.hold(SERVER)
    for layer in reversed(KEYS):
        yield from job.pushpull(0, layer)
        if layer != KEYS[-1]:  # else the first slice has only just left
            yield from carry_one_slice(job)
    while len(job.updates) < sum(job.slices):
        yield from carry_one_slice(job)
    job.simulation.release(SERVER)


def carry_one_slice(job):
    """The server takes what has arrived, and only then the worker learns that it may send the next."""
    worker = job.workers[0]
    job.simulation.hold(worker)
    job.simulation.release(SERVER)
    yield PAUSE
    job.simulation.hold(SERVER)
    job.simulation.release(worker)
    yield PAUSE
    job.carried.append([key for key, _ in job.values[0]])


def keys_of(spans, kind):
    """Return the keys of what the model did of a kind, in its order."""
    return [int(span.label[1:]) - 1 for span in spans if span.label.startswith(kind)]


@pytest.mark.paper("P3 section 3, figure 4")
@pytest.mark.parametrize("schedule", list(Schedule))
def test_slices_leave_a_real_worker_in_the_order_of_the_model(schedule):
    """What ``test_p3_figures.py`` shows of a model is what a job does: worker, server and all between."""
    layers = [Layer(SLICES)] * len(KEYS)
    spans = train(layers, Cluster(), Order(schedule, slice_size=1, window=1))
    job = Job(2, schedule=schedule.value, window=A_SLICE, director=1).run(one_slice_at_a_time)
    assert [key for key, _ in job.updates] == keys_of(spans, "p")


FIGURE_6 = (1, 3, 1)  # slices of each layer


def forward_starts(job):
    """Return when the forward passes start if a unit of time is a slice on the link, as in figure 6.

    Slice n is pushed in unit n, since unit 0 is the first backward pass; it is updated in the next unit and
    answered in the one after, so that its value is there at the beginning of unit n + 3.
    """
    starts = []
    for key, count in enumerate(FIGURE_6):
        pushed = next(n for n, values in enumerate(job.carried, 1) if values.count(key) == count)
        starts.append(max([pushed + 3, *(start + 1 for start in starts)]))
    return starts


@pytest.mark.paper("P3 section 3, figure 6")
@pytest.mark.parametrize(
    ("schedule", "starts"),
    [(Schedule.P3, [6, 8, 9]), (Schedule.SLICING, [8, 9, 10]), (Schedule.FIFO, None)],
)
def test_a_layer_three_times_as_large_in_a_real_job(schedule, starts):
    """Its slices let the first layer pass: pushes, updates and answers are those of the figure.

    When the forward passes start, too, but for whole layers, whose updates take three units in the figure
    and none here.
    """
    layers = [Layer(slices) for slices in FIGURE_6]
    spans = train(layers, Cluster(update=1, answer=1), Order(schedule, slice_size=1, window=1))
    job = Job(2, schedule=schedule.value, window=A_SLICE, director=1, slices=FIGURE_6)
    job.run(one_slice_at_a_time)
    assert [key for key, _ in job.updates] == keys_of(spans, "p")
    assert [key for key, _ in job.values[0]] == keys_of(spans, "a")
    if starts is not None:
        assert forward_starts(job) == starts
        assert [span.start for span in spans if span.label.startswith("f")] == starts


# --- windows ---


def while_the_server_acknowledges_nothing(job):
    """Push everything to a server that stands still; note how much was under way until then."""
    job.simulation.hold(SERVER)
    for key in KEYS:
        yield from job.pushpull(0, key)
    job.pushed_unseen = list(job.under_way[m.Push])
    job.simulation.release(SERVER)


TWO_SLICES = 5 * SLICE_BYTES // 2
"""A window in which two slices have room, and a third one has not."""


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize("schedule", ["p3", "slicing", "fifo"])
def test_a_worker_has_no_more_under_way_than_its_window(schedule):
    """Also while the server acknowledges nothing; and it makes use of the window."""
    job = Job(schedule=schedule, window=TWO_SLICES).run(least_urgent_first)
    assert len(job.under_way[m.Push]) == len(KEYS) * SLICES
    assert max(job.under_way[m.Push]) == 2 * SLICE_BYTES


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize("schedule", ["p3", "slicing", "fifo"])
def test_a_server_has_no_more_under_way_than_its_window(schedule):
    """To each worker, also while one acknowledges nothing; and it makes use of the window."""
    job = Job(2, schedule=schedule, window=TWO_SLICES).run(while_a_worker_stands_still)
    assert len(job.under_way[m.Values]) == 2 * len(KEYS) * SLICES
    assert max(job.under_way[m.Values]) == 2 * SLICE_BYTES


TYPES = {"float16": 2, "float32": 4, "float64": 8}


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_a_window_that_finds_its_size_is_a_bound_too(dtype):
    """Before anything has been measured it has room for a few slices, of whatever type."""
    job = Job(window=AUTO, slice_size=LEAST_BYTES // 2, dtype=dtype)
    job.run(while_the_server_acknowledges_nothing)
    slice_bytes = LEAST_BYTES // 2 * TYPES[dtype]
    assert 2 * slice_bytes <= max(job.pushed_unseen) <= LEAST_SLICES * slice_bytes
