"""How a window finds its size, in virtual time over a link that is described by rate and delay."""

from __future__ import annotations

import pytest

from kvstore_mpi.p3.window import BUSY_PEER_S, LEAST_BYTES, MOST_BYTES, SHARE, Window

KB, MB = 1_000, 1_000_000


def window_for(slice_bytes, fixed=0, **options):
    """Make a window for slices of a size."""
    window = Window(fixed, **options)
    window.expect(0, slice_bytes)
    return window


class Link:
    """A link that sends one message after the other, and the acknowledgements after a delay."""

    def __init__(self, rate, delay, slice_bytes=200 * KB, fixed=0):
        self.rate, self.delay = rate, delay
        self.window = window_for(slice_bytes, fixed)
        self.slice_bytes = slice_bytes
        self.now = self.free_at = 0.0
        self.under_way = []

    def run(self, seconds):
        """Keep the window full; return the share of the time in which the link was busy."""
        start, sent = self.now, 0
        while self.now < start + seconds:
            in_flight = sum(size for _, size in self.under_way)
            self.window.observe(in_flight, self.now)
            while self.window.admits(self.slice_bytes, in_flight):
                self.window.sent(self.slice_bytes, self.now)
                self.free_at = max(self.free_at, self.now) + self.slice_bytes / self.rate
                sent += self.slice_bytes
                self.under_way.append((self.free_at + self.delay, self.slice_bytes))
                in_flight += self.slice_bytes
            self.now = self.under_way.pop(0)[0]
        return sent / self.rate / (self.now - start)


@pytest.mark.parametrize("rate", [10 * MB, 47 * MB, 125 * MB, 1250 * MB])
@pytest.mark.parametrize("delay", [0.0001, 0.001, 0.003])
def test_links_are_kept_busy(rate, delay):
    """From 80 Mb/s to 10 Gb/s, with a peer that takes up to 3 ms to answer."""
    link = Link(rate, delay)
    link.run(3.0)
    assert link.run(1.0) > 0.97


def test_it_is_a_share_of_what_the_peer_has_in_an_iteration():
    """So an urgent slice waits for that share of the iteration's traffic at most."""
    window = window_for(200 * KB)
    for _ in range(10):
        window.expect(10 * MB, 0)
    assert window.limit == int(SHARE * 100 * MB)


def test_a_small_model_keeps_three_slices_under_way():
    """On the wire, behind it, and being acknowledged; however small the share is."""
    window = window_for(200 * KB)
    window.expect(1 * MB, 0)
    assert window.limit == 600 * KB
    assert window_for(1 * KB).limit == LEAST_BYTES


def test_a_server_has_twice_the_window_of_a_worker():
    """However large the model; on a link that both share, answers then get two thirds."""
    for num_bytes in (0, 1 * MB, 100 * MB, 2_000 * MB):
        one, two = window_for(200 * KB), window_for(200 * KB, times=2)
        one.expect(num_bytes, 0)
        two.expect(num_bytes, 0)
        assert two.limit == 2 * one.limit


def test_little_waits_where_it_cannot_be_overtaken():
    """On a slow link the rate adds nothing to that."""
    link = Link(5 * MB, 0.001, slice_bytes=50 * KB)
    link.run(3.0)
    assert link.window.limit == 150 * KB
    assert 150 * KB > BUSY_PEER_S * 5 * MB


def test_a_fixed_window_stays():
    """Whatever is expected and observed."""
    link = Link(1250 * MB, 0.001, fixed=3 * MB)
    link.window.expect(1_000 * MB, 0)
    link.run(1.0)
    assert link.window.limit == 3 * MB


def test_a_link_that_becomes_slow_is_noticed():
    """The window shrinks within seconds."""
    link = Link(1250 * MB, 0.001)
    link.run(2.0)
    before = link.window.limit
    link.rate = 20 * MB
    link.run(10.0)
    assert link.window.limit == pytest.approx(600 * KB, rel=0.01)
    assert before > 5 * link.window.limit


def test_time_without_anything_to_send_does_not_lower_the_rate():
    """What arrived at once is seen long after, when there is more to send."""
    link = Link(1250 * MB, 0.001)
    link.run(2.0)
    before = link.window.limit
    for now in range(10, 20):
        link.window.resume()
        link.window.observe(0, float(now))
        link.window.sent(200 * KB, float(now))
    link.window.resume()
    link.window.observe(0, 20.0)
    assert link.window.limit == before


def test_the_window_has_an_upper_bound():
    """However much is exchanged; but three slices always fit."""
    window, large_slices = window_for(200 * KB), window_for(20 * MB)
    window.expect(10_000 * MB, 0)
    large_slices.expect(10_000 * MB, 0)
    assert (window.limit, large_slices.limit) == (MOST_BYTES, 60 * MB)


def test_what_others_have_under_way_does_not_confuse():
    """More in flight than was sent through the window delivers nothing."""
    window = window_for(1 * KB)
    window.sent(1_000, 0.0)
    window.observe(5_000, 0.1)
    assert window.limit == LEAST_BYTES
