"""The benchmarks of rows: small jobs of every kind in hosts of their own, with all sums right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.often import often

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import sparse_bytes  # noqa: E402
import sparse_step  # noqa: E402
from harness import netns, sparse_bytes_cases, sparse_models  # noqa: E402

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow]

DEADLINE_S = 120.0
SMALL = sparse_models.Model("small", (sparse_models.Table(1_000, 8, 50),) * 2, (3_000, 10))
ROWS = sparse_bytes_cases.ROWS
ROW_BYTES = sparse_bytes_cases.WIDTH * sparse_bytes_cases.ITEM_BYTES


@pytest.fixture
def network():
    """Return two hosts, or skip where they cannot be made."""
    hosts = netns.Network(2)
    try:
        hosts.__enter__()
    except netns.NetworkError as error:
        pytest.skip(str(error))
    try:
        yield hosts
    finally:
        hosts.__exit__()


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(0, id="servers"),
        pytest.param(1, id="allreduce", marks=pytest.mark.thorough),
        pytest.param(2, id="2 ranks a host", marks=pytest.mark.thorough),
    ],
)
def test_rows_cross_links_once(network, index):
    """By servers, by MPI over the links and not through memory, and from ranks that are merged before."""
    variant = sparse_bytes_cases.VARIANTS[index]
    case = sparse_bytes_cases.DELTA if variant.ranks > 1 else ROWS
    [hosts] = sparse_bytes.measure(network, variant, case, DEADLINE_S)["bytes"].values()
    wanted = sparse_bytes_cases.formula(case, variant, 2)
    assert max(hosts) == pytest.approx(wanted, rel=0.05)


@pytest.mark.mxnet
@pytest.mark.parametrize("variant", often(["hybrid"], sparse_step.VARIANTS))
def test_a_job_of_each_route_makes_its_steps(network, variant):
    """All weights are right in the end, and the time of a step is at least that of its bytes."""
    run = sparse_step.measure(network, SMALL, variant, 50.0, steps=(1, 3), deadline_s=DEADLINE_S)
    assert run["num_bytes"] > 2 * 50 * 8 * 4
    assert 0 < run["own"] <= run["busy"] + 0.05
