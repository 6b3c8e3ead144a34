"""Which processors each rank of a host has."""

from __future__ import annotations

import os
import sys

import pytest

from kvstore_mpi.comm import cores


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        (1, [[0, 1, 2, 3, 4]]),
        (2, [[0, 1], [2, 3, 4]]),
        (5, [[0], [1], [2], [3], [4]]),
        (6, [[]] * 6),
    ],
)
def test_shares_are_even_and_have_all(ranks, shares):
    """Neighbours; nobody has any where there is not one for each."""
    assert [[*cores.share(range(5), place, ranks)] for place in range(ranks)] == shares


def test_threads_of_a_core_and_cores_of_a_package_are_neighbours(tmp_path):
    """However Linux numbers them; by their numbers where it does not say."""
    for number, place in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0), (0, 1), (1, 1)]):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        for name, value in zip(("physical_package_id", "core_id"), place):
            (folder / name).write_text(f"{value}\n")
    assert cores.in_order(range(8), tmp_path) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert cores.in_order({7, 1, 5}, tmp_path) == [1, 5, 7]
    assert cores.in_order({3, 1, 2}, tmp_path / "nothing") == [1, 2, 3]


class Local:
    """The ranks of a host, of which this is the last."""

    def __init__(self, *others):
        """Have what the others say."""
        self._others = list(others)

    def allgather(self, told):
        """Return what all say."""
        return [*self._others, told]

    def Get_rank(self):  # noqa: N802  mpi4py's name
        """Return this one's number."""
        return len(self._others)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told")
def test_shares_are_taken_by_all_or_none(monkeypatch):
    """By all threads; not where one rank wants none, or where somebody has given ranks processors."""
    taken = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 0, 1, 3})
    monkeypatch.setattr(os, "sched_setaffinity", taken.__setitem__)
    monkeypatch.setattr(cores, "in_order", sorted)
    cores.divide(Local(([0, 1, 2, 3], False)), wanted=True)
    cores.divide(Local(([0, 1, 2, 3], True)), wanted=False)
    cores.divide(Local(([0, 1], True)), wanted=True)
    cores.divide(Local(*[([0, 1, 2, 3], True)] * 4), wanted=True)
    assert taken == {}
    cores.divide(Local(([0, 1, 2, 3], True)), wanted=True)
    assert [*taken.values()] == [[2, 3]] * len(taken)
    assert os.getpid() in taken


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told")
def test_a_thread_that_ends_meanwhile_needs_no_share(monkeypatch):
    """It was listed, and may be gone when it is its turn."""

    def take(*_):
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", take)
    cores.divide(Local(([0, 1], True)), wanted=True)
