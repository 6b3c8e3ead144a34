"""P3's figures 4 and 6 in virtual time, exact, with the schedules as text.

The orders are those that the real queues give to a model of a job (``tests/support/virtual_training.py``);
``test_p3_turns.py`` leads both through the real worker and server around these queues. Lanes show
backward (b), push (p), update (u), answer (a) and forward (f) of layers 1 to 3.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.virtual_time import Span, render
from support.virtual_training import Cluster, Layer, Order, length, lower_bound, train

from kvstore_mpi.p3.schedule import Schedule

FIGURE_4 = [Layer(2)] * 3
"""Each pass takes a unit, the synchronisation of a layer two; all of that is on one link."""

FIGURE_6 = [Layer(1), Layer(3), Layer(1)]
"""The second layer takes three times as long as the others to push, to update and to answer."""

ON_THE_WAY = {
    "parallel": Cluster(update=1, answer=1, parallel=True),
    "one by one": Cluster(update=1, answer=1),
}


def starts(spans, kind):
    """Return when a pass of each layer starts, by layer."""
    found = {span.label: span.start for span in spans if span.label.startswith(kind)}
    return [found[label] for label in sorted(found)]


def delay(spans):
    """Return how long a worker has nothing to do between backward and forward."""
    return starts(spans, "f")[0] - max(span.end for span in spans if span.label == "b1")


def communication(spans):
    """Return the time from the first push to the last answer."""
    network = [span for span in spans if span.label[0] in "pua"]
    return max(span.end for span in network) - min(span.start for span in network)


@pytest.mark.paper("P3 section 3, figure 4")
@pytest.mark.parametrize(
    ("order", "text", "forward_starts", "idle"),
    [
        pytest.param(
            Order(Schedule.FIFO, slice_size=2),
            "time     0  1  2  3  4  5  6  7  8  9\n"
            "worker 0 b3 b2 b1 .  .  .  .  f1 f2 f3\n"
            "link 0   .  p3 == p2 == p1 == .  .  .",
            [7, 8, 9],
            4,
            id="layers-fifo",
        ),
        pytest.param(
            Order(Schedule.P3, slice_size=1),
            "time     0  1  2  3  4  5  6  7\n"
            "worker 0 b3 b2 b1 .  .  f1 f2 f3\n"
            "link 0   .  p3 p2 p1 p1 p2 p3 .",
            [5, 6, 7],
            2,
            id="slices-by-priority",
        ),
        pytest.param(
            Order(Schedule.P3, slice_size=2),
            "time     0  1  2  3  4  5  6  7  8\n"
            "worker 0 b3 b2 b1 .  .  f1 .  f2 f3\n"
            "link 0   .  p3 == p1 == p2 == .  .",
            [5, 7, 8],
            2,
            id="layers-by-priority",
        ),
        pytest.param(
            Order(Schedule.SLICING, slice_size=1),
            "time     0  1  2  3  4  5  6  7  8  9\n"
            "worker 0 b3 b2 b1 .  .  .  .  f1 f2 f3\n"
            "link 0   .  p3 p3 p2 p2 p1 p1 .  .  .",
            [7, 8, 9],
            4,
            id="slices-fifo",
        ),
        pytest.param(
            Order(Schedule.P3, slice_size=1, window=100),
            "time     0  1  2  3  4  5  6  7  8  9\n"
            "worker 0 b3 b2 b1 .  .  .  .  f1 f2 f3\n"
            "link 0   .  p3 == p2 == p1 == .  .  .",
            [7, 8, 9],
            4,
            id="by-priority-without-a-window",
        ),
    ],
)
def test_priority_halves_the_delay(order, text, forward_starts, idle):
    """Slices by priority wait half as long; without a bounded window the order is that of FIFO again."""
    spans = train(FIGURE_4, Cluster(), order)
    assert render(spans, ["worker 0", "link 0"]) == text
    assert starts(spans, "f") == forward_starts
    assert delay(spans) == idle


@pytest.mark.paper("P3 section 3, figure 4")
def test_slices_by_priority_are_as_fast_as_any_order_can_be():
    """Eight units, which is the lower bound; FIFO takes ten, and layers by priority nine."""
    took = [
        length(train(FIGURE_4, Cluster(), Order(schedule, size)))
        for schedule, size in ((Schedule.P3, 1), (Schedule.P3, 2), (Schedule.FIFO, 2))
    ]
    assert took == [8, 9, 10]
    assert lower_bound(FIGURE_4, Cluster(), slice_size=1) == 8


@pytest.mark.paper("P3 section 3, figure 6")
@pytest.mark.parametrize(
    ("order", "text"),
    [
        pytest.param(
            Order(Schedule.FIFO, slice_size=1),
            "time          0  1  2  3  4  5  6  7  8  9  10 11 12\n"
            "worker 0      b3 b2 b1 .  .  .  .  .  f1 .  .  f2 f3\n"
            "link 0        .  p3 p2 p2 p2 p1 .  .  .  .  .  .  .\n"
            "server 0      .  .  u3 .  .  u2 == == .  .  .  .  .\n"
            "              .  .  .  .  .  .  u1 .  .  .  .  .  .\n"
            "server link 0 .  .  .  a3 .  .  .  a1 a2 a2 a2 .  .",
            id="fifo",
        ),
        pytest.param(
            Order(Schedule.SLICING, slice_size=1),
            "time          0  1  2  3  4  5  6  7  8  9  10\n"
            "worker 0      b3 b2 b1 .  .  .  .  .  f1 f2 f3\n"
            "link 0        .  p3 p2 p2 p2 p1 .  .  .  .  .\n"
            "server 0      .  .  u3 u2 u2 u2 u1 .  .  .  .\n"
            "server link 0 .  .  .  a3 a2 a2 a2 a1 .  .  .",
            id="slicing",
        ),
        pytest.param(
            Order(Schedule.P3, slice_size=1),
            "time          0  1  2  3  4  5  6  7  8  9\n"
            "worker 0      b3 b2 b1 .  .  .  f1 .  f2 f3\n"
            "link 0        .  p3 p2 p1 p2 p2 .  .  .  .\n"
            "server 0      .  .  u3 u2 u1 u2 u2 .  .  .\n"
            "server link 0 .  .  .  a3 a2 a1 a2 a2 .  .",
            id="p3",
        ),
    ],
)
def test_slices_flow_through_the_three_stages(order, text):
    """A slice is updated, and answered, while the next one is pushed; a layer must have come whole."""
    spans = train(FIGURE_6, ON_THE_WAY["parallel"], order)
    assert render(spans, ["worker 0", "link 0", "server 0", "server link 0"]) == text


@pytest.mark.paper("P3 section 3, figure 6")
@pytest.mark.parametrize(
    ("server", "layers", "saved"), [("parallel", 10, Fraction(3, 10)), ("one by one", 11, Fraction(4, 11))]
)
def test_slicing_shortens_the_communication(server, layers, saved):
    """From ten units to seven, 30 %; from eleven on a server that updates one layer after the other."""
    by_layers, by_slices = (
        communication(train(FIGURE_6, ON_THE_WAY[server], Order(schedule, slice_size=1)))
        for schedule in (Schedule.FIFO, Schedule.SLICING)
    )
    assert (by_layers, by_slices) == (layers, 7)
    assert 1 - Fraction(by_slices, by_layers) == saved


@pytest.mark.paper("P3 section 4.2")
def test_a_server_updates_first_what_is_urgent():
    """While it updates layer 3 the other pushes arrive; layer 1 came last and is next."""
    layers = [Layer(1, forward=0, backward=1)] * 2 + [Layer(1, backward=0)]
    spans = train(layers, Cluster(push=Fraction(1, 10), update=5), Order(Schedule.P3, 1))
    assert [span.label for span in spans if span.lane == "server 0"] == ["u3", "u1", "u2"]


def test_lanes_are_drawn_to_scale_or_not_at_all():
    """What overlaps gets a line of its own; what does not begin at a whole unit is refused."""
    spans = [Span("a", "x", 0, 2), Span("a", "y", 1, 3), Span("a", "z", 2, 3), Span("hidden", "h", 0, 4)]
    assert render(spans, ["a"]) == "time 0  1  2  3\na    x  == z  .\n     .  y  == ."
    with pytest.raises(ValueError, match="whole units"):
        render([Span("a", "x", Fraction(1, 2), 2)], ["a"])
