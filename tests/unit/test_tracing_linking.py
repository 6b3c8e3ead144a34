"""Parts of several processes become one story, and one trace; what is expected was worked out by hand."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.tracing.chrome import chrome_trace, lanes
from kvstore_mpi.tracing.clock import Offset
from kvstore_mpi.tracing.events import Done, Header, InFlight, Mark, Part, Ready, Run, Span
from kvstore_mpi.tracing.linking import link
from kvstore_mpi.tracing.timeline import Answer, Operation, Round, Wait, Wire, Work, clocks

WORKER, OTHER, SERVER = NodeId(Role.WORKER), NodeId(Role.WORKER, 1), NodeId(Role.SERVER)


def pairwise(items):
    """Return each item with the one after it."""
    return itertools.pairwise(items)


def part(node, *events, boot="here", offset=0, error=None, keys=(), model_rank=None):
    header = Header(node, 0, f"host-{boot}", 42, boot, offset, error, list(keys), full=False)
    return Part(msgspec.structs.replace(header, model_rank=model_rank), list(events))


AHEAD = 1_000_000
"""The server's clock is 1 ms ahead of the worker's: its times need 1 ms less."""

ONE_PUSH = [
    part(SCHEDULER),
    part(
        SERVER,
        Mark(AHEAD + 14_000, "received", WORKER, [[7, 0, 100, 1]]),
        Mark(AHEAD + 19_000, "updated", None, [[7, 0, 60, 1], [7, 60, 100, 1]], AHEAD + 16_000),
        Mark(AHEAD + 20_000, "answered", WORKER, [[7, 0, 100, 1]]),
        boot="there",
        offset=-AHEAD,
        error=300,
    ),
    part(
        WORKER,
        Span(1_000, 9_000, "backward", 77),
        Ready(2_000, 0, "pushpull", 0, "w", -1, 1),
        Mark(6_000, "reduced", None, [[7, 0, 100, 1]], 3_000),
        Mark(7_000, "queued", SERVER, [[7, 0, 60, 1], [7, 60, 100, 1]]),
        InFlight(10_000, SERVER, 400),
        Mark(10_000, "sent", SERVER, [[7, 0, 100, 1]]),
        Mark(24_000, "written", SERVER, [[7, 0, 100, 1]]),
        Done(25_000, 0),
        keys=[(7, 0, "w")],
    ),
]


def test_the_way_of_one_push_by_hand():
    """Times are the coordinator's; runs are found again although the queue had cut them differently."""
    worker, server, scheduler = link(ONE_PUSH)
    whole = Run(7, 0, 100, 1)
    assert [timeline.node for timeline in (worker, server, scheduler)] == [WORKER, SERVER, SCHEDULER]
    assert worker.operations == [Operation(2_000, 25_000, "pushpull", 0, "w", -1, 1)]
    assert worker.spans == [Span(1_000, 9_000, "backward", 77)]
    assert worker.counts == [InFlight(10_000, SERVER, 400)]
    assert worker.work == [Work(3_000, 6_000, whole, "reduced")]
    assert worker.waits == [
        Wait(7_000, 10_000, Run(7, 0, 60, 1), SERVER),
        Wait(7_000, 10_000, Run(7, 60, 100, 1), SERVER),
    ]
    assert worker.wires == [Wire(10_000, 14_000, whole, SERVER, 7_000)]
    assert server.rounds == [Round(14_000, 19_000, whole, WORKER)]
    assert [(work.since, work.until) for work in server.work] == [(16_000, 19_000)] * 2
    assert worker.answers == [Answer(20_000, 24_000, whole, SERVER)]


def run_args(lo=0, hi=100, **more):
    return {"key": "w", "lo": lo, "hi": hi, "sequence": 1, **more}


GOLDEN = [
    ("X", "backward", "mark", 1, 1, 0.0, {"dur": 8.0, "args": {}}),
    ("X", "pushpull w", "operation", 1, 2, 1.0, {"dur": 23.0, "args": {"priority": -1, "sequence": 1}}),
    ("X", "w [0, 100)", "reduce", 1, 3, 2.0, {"dur": 3.0, "args": run_args()}),
    ("X", "w [0, 60)", "queue", 1, 4, 6.0, {"dur": 3.0, "args": run_args(0, 60, peer="server0")}),
    ("X", "w [60, 100)", "queue", 1, 5, 6.0, {"dur": 3.0, "args": run_args(60, 100, peer="server0")}),
    ("C", "in flight to server0", "window", 1, 0, 9.0, {"args": {"bytes": 400}}),
    ("X", "w [0, 100)", "wire", 1, 6, 9.0, {"dur": 4.0, "args": run_args(peer="server0", queued_us=3.0)}),
    ("s", "run", "way", 1, 6, 9.0, {"id": 1}),
    ("X", "w [0, 100)", "round", 2, 3, 13.0, {"dur": 5.0, "args": run_args(peer="worker0")}),
    ("t", "run", "way", 2, 3, 13.0, {"id": 1}),
    ("X", "w [0, 60)", "update", 2, 1, 15.0, {"dur": 3.0, "args": run_args(0, 60)}),
    ("X", "w [60, 100)", "update", 2, 2, 15.0, {"dur": 3.0, "args": run_args(60, 100)}),
    ("X", "w [0, 100)", "answer", 1, 7, 19.0, {"dur": 4.0, "args": run_args(peer="server0")}),
    ("f", "run", "way", 1, 7, 19.0, {"id": 1, "bp": "e"}),
]

NAMES = [
    (1, 0, "worker0 (host-here, pid 42)"),
    (1, 1, "marks"),
    (1, 2, "operations"),
    (1, 3, "reduce"),
    (1, 4, "queue to server0"),
    (1, 5, "queue to server0 1"),
    (1, 6, "wire to server0"),
    (1, 7, "answers of server0"),
    (2, 0, "server0 (host-there, pid 42)"),
    (2, 1, "update"),
    (2, 2, "update 1"),
    (2, 3, "rounds of worker0"),
    (3, 0, "scheduler (host-here, pid 42)"),
]


def test_the_trace_of_one_push_by_hand():
    """Every event of the merged trace, in its order."""
    trace = chrome_trace(link(ONE_PUSH))
    events = trace.pop("traceEvents")
    assert trace == {
        "displayTimeUnit": "ms",
        "otherData": {"clock_error_ns": {"host-here": 0, "host-there": 300}},
    }
    names = [event for event in events if event["ph"] == "M" and "name" in event["args"]]
    assert [(event["pid"], event["tid"], event["args"]["name"]) for event in names] == NAMES
    assert [event for event in events if event["ph"] != "M"] == [
        {"ph": ph, "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, **more}
        for ph, name, cat, pid, tid, ts, more in GOLDEN
    ]


def test_the_order_of_the_parts_does_not_matter():
    """The same trace, however the files were found."""
    assert chrome_trace(link(ONE_PUSH)) == chrome_trace(link(ONE_PUSH[::-1]))


def test_a_trace_of_nothing():
    """No process has left a part."""
    assert chrome_trace(link([]))["traceEvents"] == []


# --- clocks ---


def test_processes_of_one_host_are_shifted_together():
    """By the best estimate that one of them has; the coordinator's host not at all."""
    parts = [
        part(SERVER, boot="there", offset=500, error=90),
        part(OTHER, boot="there", offset=480, error=20),
        part(WORKER, boot="lost"),
        part(SCHEDULER, boot="here", offset=3, error=1),
    ]
    headers = [each.header for each in parts]
    assert clocks(headers) == {"there": Offset(480, 20), "lost": None, "here": Offset(0, 0)}


def test_in_pure_mpi_worker_0_has_the_clock():
    """There is no scheduler to compare with."""
    headers = [part(OTHER, boot="b", offset=7, error=2).header, part(WORKER, boot="a").header]
    assert clocks(headers) == {"b": Offset(7, 2), "a": Offset(0, 0)}


def test_an_answer_may_seem_late_by_the_error_of_the_clocks():
    """It is drawn without a length then, and not left out."""
    late = Mark(1_050, "answered", WORKER, [[7, 0, 10, 1]])
    written = part(WORKER, Mark(1_000, "written", SERVER, [[7, 0, 10, 1]]))
    for error, found in ((30, [Answer(1_000, 1_000, Run(7, 0, 10, 1), SERVER)]), (20, [])):
        parts = [part(SCHEDULER), written, part(SERVER, late, boot="there", error=error)]
        assert link(parts)[0].answers == found


# --- finding runs again ---


def test_values_asked_for_twice_are_each_found():
    """The last answer before the value arrived is the one that brought it."""
    run = [7, 0, 10, 1]
    marks = [Mark(at, "answered", WORKER, [run]) for at in (100, 300)]
    parts = [part(WORKER, *(Mark(at, "written", SERVER, [run]) for at in (200, 400))), part(SERVER, *marks)]
    answers = link(parts)[0].answers
    assert [(answer.since, answer.until) for answer in answers] == [(100, 200), (300, 400)]


def test_clients_do_not_share_a_sequence():
    """Two workers push the same run as their first: each is in the update after its arrival."""
    run = [7, 0, 10, 1]
    server = part(
        SERVER,
        Mark(100, "received", WORKER, [run]),
        Mark(200, "received", OTHER, [run]),
        Mark(300, "updated", None, [run], 250),
    )
    rounds = link([server])[0].rounds
    assert [(each.peer, each.since, each.until) for each in rounds] == [
        (WORKER, 100, 300),
        (OTHER, 200, 300),
    ]


def test_a_key_without_elements_has_its_way_too():
    """Its run is empty, and found all the same."""
    run = [7, 0, 0, 1]
    server = part(SERVER, Mark(20, "received", WORKER, [run]), Mark(30, "updated", None, [run], 25))
    worker, server = link([part(WORKER, Mark(10, "sent", SERVER, [run])), server])
    assert [(wire.since, wire.until) for wire in worker.wires] == [(10, 20)]
    assert [(each.since, each.until) for each in server.rounds] == [(20, 30)]


def test_what_never_came_to_its_end_is_left_out():
    """The job was ended in between; nothing is made up."""
    worker = part(WORKER, Ready(5, 0, "push", 0, "w", 0, 1), Mark(10, "sent", SERVER, [[7, 0, 9, 1]]))
    server = part(
        SERVER,
        Mark(20, "received", OTHER, [[7, 0, 9, 1]]),
        Mark(30, "updated", None, [[8, 0, 9, 1]], 25),
        Mark(40, "received", WORKER, [[8, 0, 9, 2]]),
    )
    worker, server = link([worker, server])
    assert (worker.operations, worker.wires, server.rounds) == ([], [], [])


def test_an_end_without_a_beginning_is_left_out():
    """The ring has overwritten the beginning."""
    assert link([part(WORKER, Done(5, 17))])[0].operations == []


CUTS = st.sets(st.integers(1, 19)).map(lambda cuts: list(pairwise([0, *sorted(cuts), 20])))


@given(CUTS, CUTS, st.randoms())
def test_runs_are_found_by_their_elements(sent, received, order):
    """However both sides cut a key: a run has arrived when the last piece of it has."""
    arrivals = {run: 1000 + place for place, run in enumerate(order.sample(received, len(received)))}
    marks = [Mark(at, "received", WORKER, [[7, *run, 1]]) for run, at in arrivals.items()]
    worker = part(WORKER, Mark(10, "sent", SERVER, [[7, *run, 1] for run in sent]))
    wires = link([worker, part(SERVER, *marks)])[0].wires
    expected = {
        (lo, hi): max(at for (low, high), at in arrivals.items() if low < hi and high > lo)
        for lo, hi in sent
    }
    assert {(wire.run.lo, wire.run.hi): wire.until for wire in wires} == expected


# --- lanes ---


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))).map(sorted))
def test_lanes_are_as_few_as_can_be(drawn):
    """Nothing overlaps in a lane, and some moment needs all of them."""
    intervals = [(since, since + length) for since, length in drawn]
    dealt = lanes(intervals)
    for lane in set(dealt):
        mine = [interval for interval, its in zip(intervals, dealt) if its == lane]
        assert all(first[1] <= second[0] for first, second in pairwise(mine))
    deepest = max((sum(s <= at < e for s, e in intervals) for at, _ in intervals), default=0)
    assert len(set(dealt)) == deepest


@pytest.mark.parametrize(("store", "shown"), [(0, "w"), (2, "2:w")])
def test_keys_of_other_stores_say_which(store, shown):
    """Several Trainers of one script may use the same names."""
    push = [Ready(1, 0, "push", store, "w", 0, 1), Done(2, 0)]
    events = chrome_trace(link([part(WORKER, *push)]))["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == [f"push {shown}"]


# --- workers of several ranks ---


def of_model_rank(model_rank, at, key):
    """Return what rank and server of one part of the model record of a push; key numbers are the same."""
    return [
        part(
            WORKER,
            Ready(at, 0, "pushpull", 0, key, 0, 1),
            Mark(at + 10, "sent", SERVER, [[7, 0, 9, 1]]),
            Done(at + 50, 0),
            keys=[(7, 0, key)],
            model_rank=model_rank,
        ),
        part(SERVER, Mark(at + 20, "received", WORKER, [[7, 0, 9, 1]]), model_rank=model_rank),
    ]


def test_each_part_of_a_model_is_a_job_of_its_own():
    """Its messages are found with its own server, keys have its names, and arrows stay in it."""
    timelines = link([*of_model_rank(1, 5_000, "head"), *of_model_rank(0, 1_000, "stem")])
    assert [each.header.name for each in timelines] == ["worker0.0", "worker0.1", "server0.0", "server0.1"]
    assert [[(w.since, w.until) for w in each.wires] for each in timelines[:2]] == [
        [(1_010, 1_020)],
        [(5_010, 5_020)],
    ]
    events = chrome_trace(timelines)["traceEvents"]
    wires = {event["pid"]: event for event in events if event.get("cat") == "wire"}
    assert {pid: event["args"]["key"] for pid, event in wires.items()} == {1: "stem", 2: "head"}
    assert {event["args"]["peer"] for event in wires.values()} == {"server0.0", "server0.1"}


def test_arrows_of_two_parts_are_not_mixed_up():
    """Both have a push of the same number, of the same key number, by worker 0."""
    jobs = []
    for model_rank in range(2):
        for node, *rest in ONE_PUSH:
            header = msgspec.structs.replace(node, model_rank=model_rank)
            jobs.append(Part(header, *rest))
    arrows = [event for event in chrome_trace(link(jobs))["traceEvents"] if event.get("cat") == "way"]
    ways = {}
    for arrow in arrows:
        ways.setdefault(arrow["id"], []).append(arrow["pid"])
    assert sorted(ways.values()) == [[1, 3, 1], [2, 4, 2]]


def test_clocks_of_several_coordinators_meet_on_a_host_of_both():
    """The second part's coordinator is on a host that the first knows; another host only it knows."""
    first = [
        part(WORKER, boot="a", model_rank=0),
        part(OTHER, boot="b", offset=500, error=7, model_rank=0),
    ]
    second = [
        part(WORKER, boot="b", model_rank=1),
        part(OTHER, boot="c", offset=-30, error=2, model_rank=1),
    ]
    headers = [each.header for each in (*second, *first)]
    assert clocks(headers) == {"a": Offset(0, 0), "b": Offset(500, 7), "c": Offset(470, 9)}
    alone = [part(WORKER, boot="d", model_rank=1), part(OTHER, boot="e", offset=1, error=1, model_rank=1)]
    known = clocks([each.header for each in (*first, *alone)])
    assert (known["d"], known["e"]) == (None, None)
