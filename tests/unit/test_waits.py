"""Ranks sleep while they wait where they are on several hosts, unless their network is a fast one."""

from __future__ import annotations

import pytest

from kvstore_mpi.comm.waits import VARIABLE, sleep_between_hosts


@pytest.mark.parametrize(
    ("told", "sleeps"),
    [
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}, True),
        ({"PMI_SIZE": "10", "MPI_LOCALNRANKS": "9"}, True),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, False),
        ({"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}, False),
        ({"PMI_SIZE": "4"}, False),  # another launcher's: nobody knows where they are
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "?"}, False),
        ({}, False),
    ],
)
def test_ranks_sleep_if_others_are_elsewhere(tmp_path, told, sleeps):
    environment = dict(told)
    sleep_between_hosts(environment, tmp_path / "infiniband")
    assert environment == ({**told, VARIABLE: "1"} if sleeps else told)


def test_they_poll_where_a_card_is_fast(tmp_path):
    """It answers sooner than a timer."""
    (tmp_path / "mlx5_0").mkdir()
    environment = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}
    sleep_between_hosts(environment, tmp_path)
    assert VARIABLE not in environment


def test_the_user_decides(tmp_path):
    """What is set stays."""
    environment = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1", VARIABLE: "0"}
    sleep_between_hosts(environment, tmp_path / "infiniband")
    assert environment[VARIABLE] == "0"
