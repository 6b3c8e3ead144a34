"""Where the time of an iteration went; the numbers were worked out by hand, in milliseconds."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing.events import Header, Run, Span
from kvstore_mpi.tracing.intervals import clip, length, union
from kvstore_mpi.tracing.iterations import (
    boundaries,
    computing,
    computing_backward,
    waiting_for_others,
)
from kvstore_mpi.tracing.report import (
    COMPUTE_BOUND,
    HARDLY_PENDING,
    HINT,
    LATENCY_BOUND,
    Iteration,
    WorkerReport,
    measure,
    render,
    resources_of,
)
from kvstore_mpi.tracing.timeline import Answer, Operation, Timeline, Wire, Work

MS = 1_000_000
TRAINING, LOADING = 11, 12
SERVER = NodeId(Role.SERVER)
RUN = Run(0, 0, 10, 1)


def timeline(node=NodeId(Role.WORKER), client=0, **lists):  # noqa: B008  a NodeId never changes
    header = Header(node, client, "host", 42, "boot", 0, None, [], full=False)
    return Timeline(header, **lists)


def marks(*named, thread=TRAINING):
    return [Span(since * MS, until * MS, name, thread) for name, since, until in named]


def pushes(*named):
    return [
        Operation(since * MS, until * MS, "pushpull", 0, key, 0, 1 + place)
        for place, (key, since, until) in enumerate(named)
    ]


def times(intervals):
    return [(since / MS, until / MS) for since, until in intervals]


ONE = marks(("forward", 0, 30), ("backward", 30, 90), ("forward", 120, 130))
"""Computing until 90; the next iteration begins at 120."""

WAITS = pushes(("b", 50, 110), ("a", 90, 100))
"""Something is pending from 50 to 110."""

LINKS = {
    "the link out": union([(55 * MS, 75 * MS), (70 * MS, 95 * MS)]),
    "the link in": [(95 * MS, 105 * MS)],
}


def test_the_shares_of_one_iteration_by_hand():
    """Of 120 ms: 50 only computing, 40 of communication hidden, 20 exposed, 10 neither."""
    (iteration,) = measure(timeline(spans=ONE, operations=WAITS), LINKS).iterations
    assert iteration == Iteration(
        time=120 * MS,
        compute=50 / 120,
        hidden=40 / 120,
        exposed=20 / 120,
        other=10 / 120,
        computing=90 * MS,
        communication=40 * MS,
        resource="the link out",
        backward=60 * MS,
    )
    assert iteration.fraction == 90 / 120


def test_the_busiest_resource_is_the_communication_of_the_ideal():
    """With a link that is busy for 110 of 120 ms the ideal is 110."""
    (iteration,) = measure(timeline(spans=ONE, operations=WAITS), {"slow": [(5 * MS, 115 * MS)]}).iterations
    assert (iteration.resource, iteration.fraction) == ("slow", 110 / 120)


def test_waits_inside_marks_are_not_computing():
    """A forward that waits for weights says so with a mark of its own."""
    spans = marks(("forward", 0, 30), ("wait", 10, 25), ("backward", 30, 90), ("wait", 85, 90))
    assert times(computing(timeline(spans=spans))) == [(0, 10), (25, 85)]
    assert times(computing_backward(timeline(spans=spans))) == [(30, 85)]


def test_other_threads_do_not_train():
    """What a thread that loads data has marked does not count, even if it began first."""
    spans = [*marks(("load", 0, 200), thread=LOADING), *ONE]
    assert times(computing(timeline(spans=spans))) == [(0, 90), (120, 130)]


def test_without_marks_only_bounds_are_known():
    """From push to push of the first key again: what has nothing pending was computing, at most."""
    operations = pushes(("b", 50, 110), ("a", 90, 100), ("b", 170, 200), ("a", 180, 260))
    report = measure(timeline(operations=operations), LINKS)
    (iteration,) = report.iterations
    assert not report.marked
    assert (iteration.time, iteration.compute) == (120 * MS, 60 / 120)
    assert (iteration.hidden, iteration.exposed, iteration.other) == (0, 60 / 120, 0)
    assert (iteration.backward, iteration.computing) == (None, 0)
    assert iteration.fraction == iteration.communication / (120 * MS)


# --- boundaries ---


def starts(spans=(), operations=()):
    return [at / MS for at in boundaries(timeline(spans=list(spans), operations=list(operations)))]


def test_each_layer_may_have_marks_of_its_own():
    """Only the first forward after a backward begins an iteration."""
    layers = [("forward", 0, 1), ("forward", 2, 3), ("backward", 4, 5), ("backward", 6, 7)]
    again = [(name, since + 10, until + 10) for name, since, until in layers]
    assert starts(marks(*layers, *again, *again[:0])) == [0, 10]


def test_where_only_forward_is_marked_each_begins_an_iteration():
    """There is nothing else to go by."""
    assert starts(marks(("forward", 0, 1), ("forward", 5, 6))) == [0, 5]


def test_marks_without_forward_leave_it_to_the_pushes():
    """Some other name tells nothing of iterations."""
    operations = pushes(("b", 1, 2), ("b", 5, 6))
    assert starts(marks(("step", 0, 9)), operations) == [1, 5]


def test_the_first_key_that_comes_again_counts_iterations():
    """A key that is pushed only once, and pulls, do not."""
    operations = pushes(("once", 1, 2), ("b", 3, 4), ("a", 5, 6), ("b", 7, 8), ("a", 9, 10))
    pull = operations[1]._replace(kind="pull", sequence=0, since=6 * MS)
    assert starts(operations=[*operations[:3], pull, *operations[3:]]) == [3, 7]


def test_nothing_recorded_is_no_iteration():
    """A worker that ended before its first push has nothing to report."""
    assert measure(timeline(), {}).iterations == ()


# --- resources ---


def test_a_worker_needs_its_clients_links_the_servers_and_its_collectives():
    """The links of another client are not its limit."""
    wire = Wire(10, 20, RUN, SERVER, None)
    leader = timeline(
        wires=[wire, wire._replace(since=15, until=30)],
        answers=[Answer(40, 50, RUN, SERVER)],
        work=[Work(1, 5, RUN, "reduced")],
    )
    member = timeline(NodeId(Role.WORKER, 1), work=[Work(2, 6, RUN, "reduced")])
    stranger = timeline(NodeId(Role.WORKER, 2), client=1, wires=[wire])
    server = timeline(SERVER, work=[Work(22, 28, RUN, "updated")])
    resources = resources_of(member, [leader, member, stranger, server, timeline(NodeId(Role.SCHEDULER))])
    assert {name: busy for name, busy in resources.items() if busy} == {
        "its collectives": [(2, 6)],
        "the link out of worker0": [(10, 30)],
        "the link into worker0": [(40, 50)],
        "server0's updates": [(22, 28)],
    }


def test_the_first_word_of_a_mark_counts():
    """So that layers, or the parts of a net, have names; what is waited for may have one."""
    whole = timeline(
        spans=marks(
            ("forward stem 0", 0, 10),
            ("backward stem 0", 10, 30),
            ("wait for output 1", 30, 50),
            ("forward stem 1", 50, 60),
        )
    )
    assert times(computing(whole)) == [(0, 30), (50, 60)]
    assert times(computing_backward(whole)) == [(10, 30)]
    assert times(waiting_for_others(whole)) == [(30, 50)]
    assert boundaries(whole) == [0, 50 * MS]


def test_iterations_may_be_marked_themselves():
    """As where forward and backward passes of micro-batches take turns; such a mark computes nothing."""
    named = ("forward", "backward", "forward", "backward")
    steps = [(name, 10 * place, 10 * place + 10) for place, name in enumerate(named)]
    spans = marks(("iteration", 0, 0), *steps, ("iteration", 50, 50), ("iteration 2", 90, 100))
    whole = timeline(spans=spans)
    assert boundaries(whole) == [0, 50 * MS, 90 * MS]
    assert times(computing(whole)) == [(0, 40)]


def test_what_is_waited_for_is_a_share_of_the_rest():
    """As far as nothing is pending then: that is exposed communication already."""
    spans = marks(
        ("iteration", 0, 0), ("forward", 0, 40), ("wait for a rank", 40, 80), ("iteration", 100, 100)
    )
    (iteration,) = measure(timeline(spans=spans, operations=pushes(("w", 70, 90))), {}).iterations
    assert (iteration.waited, iteration.exposed, iteration.other) == (0.3, 0.2, pytest.approx(0.4))


def test_links_of_another_part_of_the_model_are_not_a_workers():
    """Worker 0 of the other part is another job's."""
    own, other = (timeline(wires=[Wire(10, 20 + rank, RUN, SERVER, None)]) for rank in range(2))
    own.header, other.header = (
        msgspec.structs.replace(each.header, model_rank=rank) for rank, each in enumerate((own, other))
    )
    found = resources_of(own, [own, other])
    assert found["the link out of worker0.0"] == [(10, 20)]
    assert "the link out of worker0.1" not in found


# --- text ---

EVEN = Iteration(
    time=100 * MS,
    compute=0.5,
    hidden=0.4,
    exposed=0.02,
    other=0.08,
    computing=90 * MS,
    communication=42 * MS,
    resource="the link out of worker0",
    backward=60 * MS,
)


def report_of(*iterations, name="worker0", marked=True):
    return WorkerReport(name, marked, iterations)


def test_the_text_is_a_table_of_medians():
    """One line for each worker, one for all, what the ideal is made of, and the verdict."""
    slow = dataclasses.replace(EVEN, time=180 * MS)
    text = render([report_of(EVEN, EVEN, slow), report_of(slow, name="worker1")])
    assert text.splitlines() == [
        "medians of the iterations (docs/tracing.md says what is counted):",
        "worker   iterations     ms  compute  hidden  exposed  other  of ideal",
        "worker0           3  100.0    50.0%   40.0%     2.0%   8.0%      0.90",
        "worker1           1  180.0    50.0%   40.0%     2.0%   8.0%      0.50",
        "all               4  140.0    50.0%   40.0%     2.0%   8.0%      0.70",
        f"the ideal is the longer of computing, 90.0 ms, and communication, 42.0 ms on {EVEN.resource}",
        COMPUTE_BOUND,
    ]


def test_without_marks_the_text_says_what_is_a_bound():
    """And how to learn more."""
    unknown = dataclasses.replace(EVEN, computing=0, backward=None)
    text = render([report_of(unknown, marked=False)])
    assert text.splitlines()[2:] == [
        "worker0           1  100.0  <= 50.0%       ?  <= 2.0%      ?   >= 0.42",
        f"the ideal is the longer of computing, not known, and communication, 42.0 ms on {EVEN.resource}",
        "whether scheduling helps cannot be seen without marks",
        HINT,
    ]


def test_without_marks_nobody_is_said_to_compute():
    """A script that sleeps has nothing pending either."""
    idle = dataclasses.replace(EVEN, compute=0.995, hidden=0.0, exposed=0.005, computing=0, backward=None)
    assert render([report_of(idle, marked=False)]).splitlines()[-2:] == [HARDLY_PENDING, HINT]


def test_workers_without_an_iteration_have_no_line():
    """If none has one, the text says so."""
    assert "worker1" not in render([report_of(EVEN), report_of(name="worker1")])
    assert render([report_of()]).startswith("report: no worker has recorded a whole iteration")
    assert render([]) == render([report_of()])


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, COMPUTE_BOUND),
        ({"communication": 60 * MS}, COMPUTE_BOUND),
        ({"exposed": 0.3}, LATENCY_BOUND),
        (
            {"communication": 61 * MS},
            "communication takes longer than the backward pass: scheduling counts",
        ),
        ({"communication": 91 * MS}, "communication-bound: at best all computing is hidden under it"),
        ({"backward": None}, "whether scheduling helps cannot be seen without marks of the backward pass"),
        ({"backward": None, "hidden": 0.0, "exposed": 0.01}, COMPUTE_BOUND),
    ],
)
def test_the_verdict_follows_from_the_busiest_resource(changes, verdict):
    """Communication that fits under the backward pass needs no order."""
    text = render([report_of(dataclasses.replace(EVEN, **changes))])
    assert text.splitlines()[-1].startswith(verdict)


# --- any job ---

MOMENTS = st.integers(0, 60)
PIECES = st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted), max_size=6)
NAMED = st.tuples(st.sampled_from(["forward", "backward", "wait", "step"]), MOMENTS, MOMENTS)


@given(
    st.lists(NAMED, max_size=8),
    st.lists(st.tuples(st.sampled_from("ab"), MOMENTS, MOMENTS), max_size=8),
    st.lists(PIECES, max_size=3),
)
def test_shares_sum_to_one_and_the_ideal_is_never_beaten(named, operations, busy):
    """Whatever was recorded, in whatever order."""
    spans = sorted(marks(*((name, *sorted(ends)) for name, *ends in named)), key=lambda span: span.since)
    operations = sorted(pushes(*((key, *sorted(ends)) for key, *ends in operations)))
    resources = {
        str(number): union((since * MS, until * MS) for since, until in pieces)
        for number, pieces in enumerate(busy)
    }
    worker = timeline(spans=spans, operations=operations)
    pending = union((each.since, each.until) for each in operations)
    begun = boundaries(worker)
    wholes = [(start, end) for start, end in itertools.pairwise(begun) if start < end]
    iterations = measure(worker, resources).iterations
    assert [iteration.time for iteration in iterations] == [end - start for start, end in wholes]
    for iteration, whole in zip(iterations, wholes):
        shares = (iteration.compute, iteration.hidden, iteration.exposed, iteration.other)
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(1)
        waiting = length(clip(pending, *whole)) / iteration.time
        assert iteration.hidden + iteration.exposed == pytest.approx(waiting)
        assert iteration.fraction is None or 0 < iteration.fraction <= 1
