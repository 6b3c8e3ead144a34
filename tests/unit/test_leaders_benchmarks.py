"""The pure parts of the benchmarks of leaders and of overlapping rings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import ring_overlap  # noqa: E402
from harness.leaders_bound import Shape, busiest_share, least_seconds  # noqa: E402
from harness.leaders_cell import Run, Traffic  # noqa: E402
from harness.leaders_summary import Point, table, traffic_table, verdict  # noqa: E402


@pytest.mark.parametrize(
    ("ranks", "servers", "shared_link", "gain"),
    [
        (2, 2, False, 2.0),
        (4, 4, False, 4.0),
        (4, 2, False, 2.0),  # the servers' own links
        (4, 1, False, 1.0),
        (2, 2, True, 4 / 3),
        (4, 4, True, 1.6),
    ],
)
def test_what_all_leaders_can_gain(ranks: int, servers: int, shared_link: bool, gain: float) -> None:
    one, every = (
        least_seconds(Shape(ranks, servers, leaders, shared_link), 1e6, 1e6) for leaders in ("one", "all")
    )
    assert one / every == pytest.approx(gain)


@given(st.integers(1, 16), st.integers(1, 16), st.booleans())
def test_arithmetic_never_speaks_for_one_leader(ranks: int, servers: int, shared_link: bool) -> None:
    one, every = (busiest_share(Shape(ranks, servers, who, shared_link)) for who in ("one", "all"))
    assert every <= one


def measured(one: float, every: float, *, bounds: tuple[float, float] = (2.0, 1.0)) -> Point:
    """Return a point with one run of each kind."""
    runs = [
        Run(Shape(2, 2, who, False), seconds, (seconds,), (Traffic("leader", "eth0", 1e6, 5e5),), 0.5)
        for who, seconds in (("one", one), ("all", every))
    ]
    return Point("resnet50", 1_000_000, 50e6, 6e6, 2, 2, False, bounds, runs)


def test_verdicts() -> None:
    assert verdict(measured(2.0, 1.0)) == ">= 1.7 met"
    assert verdict(measured(2.0, 1.5)) == ">= 1.7 NOT MET"
    assert not verdict(measured(2.0, 1.5, bounds=(2.0, 1.5)))  # no more is possible


def test_tables_say_what_was_measured() -> None:
    assert "2.00 (2.00 - 2.00)" in table([measured(2.0, 1.0)])
    assert "1.00 out, 0.50 in" in traffic_table([measured(2.0, 1.0)])


def test_what_is_hidden_is_a_share_of_the_smaller() -> None:
    assert ring_overlap.Overlap(transfer_s=2.0, reduction_s=1.0, seconds=2.2).hidden == pytest.approx(0.8)
    assert ring_overlap.Overlap(transfer_s=1.0, reduction_s=1.0, seconds=2.0).hidden == 0.0
