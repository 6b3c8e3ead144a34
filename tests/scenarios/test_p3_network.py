"""The benchmarks' hosts: namespaces with limited links, and jobs of both stores in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness import bound, goodput, models, netns, p3_cell, p3_variants  # noqa: E402
from harness.sampler import Sampler  # noqa: E402

pytestmark = pytest.mark.root

RATE = 50e6
TINY = models.Model(
    "tiny", tuple(models.Tensor(elements, elements) for elements in (500_000, 64, 1_000_000, 10)), 1
)
LENGTH = p3_cell.Length(compute_s=0.2, warmup=0, iterations=3, deadline_s=60.0)


def namespaces() -> set[str]:
    """Return the names of all namespaces."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


@pytest.fixture
def network(monkeypatch):
    """Return two hosts, or skip where they cannot be made."""
    monkeypatch.setattr(goodput, "ATTEMPTS", 1)
    hosts = netns.Network(2)
    try:
        hosts.__enter__()
    except netns.NetworkError as error:
        pytest.skip(str(error))
    try:
        yield hosts
    finally:
        hosts.__exit__()


def test_a_link_carries_what_it_is_limited_to(network):
    """TCP gets the rate less its headers, and no more."""
    network.limit(RATE)
    link = goodput.measure(network)
    assert 0.85 * RATE < 8 * link.bytes_per_s < RATE


def test_nothing_is_left_of_a_network(network):
    """Its namespaces go, and the processes in them with them."""
    process = subprocess.Popen(network.in_host(1, ("sleep", "60")))
    names = {name for name in namespaces() if name.startswith(network._prefix)}
    assert len(names) == 3
    network.__exit__()
    assert not names & namespaces()
    assert process.wait(timeout=10) == -9


def test_a_process_may_have_two_networks(network):
    """The tests of Slurm keep theirs while others make one; each removes its own."""
    with netns.Network(1) as other:
        assert not {network.name(0), network.name(1)} & {other.name(0)}
        assert other.name(0) in namespaces()
    assert other.name(0) not in namespaces()
    assert network.name(0) in namespaces()


def test_the_remains_of_a_crashed_run_are_removed(network):
    """A namespace whose maker no longer runs is removed; one whose maker runs is left alone."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    remains = f"{netns.PREFIX}-{ended.pid}-1-0-host0"
    subprocess.run(["ip", "netns", "add", remains], check=True)
    netns.remove_leftovers()
    assert remains not in namespaces()
    assert f"{network._prefix}-hub" in namespaces()


def test_remains_that_another_run_has_removed_are_no_error(monkeypatch):
    """Two runs that begin at once find the same; the second one's iproute2 finds them gone."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    listed = iter([[f"{netns.PREFIX}-{ended.pid}-1-0-host0"], []])
    monkeypatch.setattr(netns, "_namespaces", lambda: next(listed))
    netns.remove_leftovers()
    assert list(listed) == []


def test_the_sampler_sees_what_crosses_a_link(network):
    """What one host sends, its counter shows."""
    network.limit(RATE)
    with Sampler(network, 0, netns.LINK) as sampler:
        link = goodput.measure(network)
    (_, first, _), (_, last, _) = sampler.samples[0], sampler.samples[-1]
    assert last - first > goodput.MEASURE_S * link.bytes_per_s * 0.9


@pytest.mark.mxnet
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [pytest.param(p3_variants.STOCK, marks=pytest.mark.thorough), p3_variants.P3],
    ids=lambda variant: variant.name,
)
def test_a_job_of_each_store_ends_well_and_is_no_faster_than_the_ideal(network, variant):
    """Two hosts, all sums right, and not faster than compute and network allow.

    The rate is that of the limit, which no machine exceeds; what was measured may have been less than the
    job had later. All iterations count, from before the first push: nothing is under way when they begin.
    A link's bucket lets 2 % of an iteration's bytes pass at once, and frames have 4 % of headers.
    """
    point = p3_cell.set_point(network, TINY, 1.5, LENGTH.compute_s)
    run = p3_cell.measure(network, TINY, variant, models.Granularity.of(TINY), LENGTH)
    assert len(run.iterations_s) == LENGTH.iterations
    layers = TINY.layers(LENGTH.compute_s)
    waits = bound.lower_bound(layers, network.hosts, point.bits_per_s / 8) - LENGTH.compute_s
    least = LENGTH.iterations * LENGTH.compute_s + (LENGTH.iterations - 1) * waits
    assert sum(run.iterations_s) > 0.95 * least
    assert 0 < run.own <= run.busy + 0.05
