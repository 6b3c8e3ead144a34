"""How a window finds its size, in virtual time over a link that is described by rate and delay."""

from __future__ import annotations

import pytest

from kvstore_mpi.p3.window import LEAST_BYTES, MEMORY_S, MOST_BYTES, START_BYTES, Window

MB = 1 << 20


class Link:
    """A link that sends one message after the other, and the acknowledgements after a delay."""

    def __init__(self, rate, delay, slice_bytes=200_000, fixed=0):
        self.rate, self.delay = rate, delay
        self.window = Window(slice_bytes, fixed)
        self.slice_bytes = slice_bytes
        self.now = self.free_at = 0.0
        self.under_way = []

    def run(self, seconds):
        """Keep the window full; return the share of the time in which the link was busy."""
        end, busy = self.now + seconds, 0.0
        while self.now < end:
            in_flight = sum(size for _, size in self.under_way)
            self.window.observe(in_flight, self.now)
            while self.window.admits(self.slice_bytes, in_flight):
                self.window.sent(self.slice_bytes, self.now)
                self.free_at = max(self.free_at, self.now) + self.slice_bytes / self.rate
                busy += self.slice_bytes / self.rate
                self.under_way.append((self.free_at + self.delay, self.slice_bytes))
                in_flight += self.slice_bytes
            self.now = self.under_way.pop(0)[0]
        return busy / (self.now - end + seconds)


@pytest.mark.parametrize("rate", [10e6, 47e6, 125e6, 1.25e9, 5e9])
@pytest.mark.parametrize("delay", [0.0002, 0.002])
def test_links_are_kept_busy(rate, delay):
    """From 80 Mb/s to 40 Gb/s, and with acknowledgements that take 2 ms."""
    link = Link(rate, delay)
    link.run(2.0)
    assert link.run(1.0) > 0.99


@pytest.mark.parametrize(("rate", "most_s"), [(10e6, 0.1), (47e6, 0.03), (1.25e9, 0.006)])
def test_little_waits_where_it_cannot_be_overtaken(rate, most_s):
    """An urgent slice waits for what is under way: a few slices, or a few delays."""
    link = Link(rate, 0.001)
    link.run(2.0)
    assert link.window.limit / rate < most_s


def test_a_fixed_window_stays():
    """Whatever is observed."""
    link = Link(47e6, 0.001, fixed=3 * MB)
    link.run(1.0)
    assert link.window.limit == 3 * MB


def test_the_window_begins_large_enough_to_learn():
    """The first messages show the rate."""
    assert Window(1_000).limit == START_BYTES
    assert Window(2 * MB).limit == 4 * MB


def test_a_slow_link_is_noticed_when_old_observations_have_faded():
    """The window of a link that has become slower shrinks after a while."""
    link = Link(1.25e9, 0.002)
    link.run(1.0)
    before = link.window.limit
    link.rate = 20e6
    link.run(2 * MEMORY_S)
    assert link.window.limit < before / 3


def test_the_window_has_bounds():
    """However slow or fast the link is."""
    slow, fast = Link(1e3, 0.0, slice_bytes=100), Link(1e12, 1.0)
    slow.run(10.0)
    fast.run(10.0)
    assert slow.window.limit == LEAST_BYTES
    assert fast.window.limit == MOST_BYTES


def test_what_others_have_under_way_does_not_confuse():
    """More in flight than was sent through the window delivers nothing."""
    window = Window(1_000)
    window.sent(1_000, 0.0)
    window.observe(5_000, 0.1)
    assert window.limit == START_BYTES
