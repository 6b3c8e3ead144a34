"""UCX watches memory only where a card needs that, or the user wants it."""

from __future__ import annotations

import pytest

from kvstore_mpi.comm.memory_hooks import VARIABLE, leave_out


@pytest.fixture
def devices(tmp_path):
    return tmp_path / "infiniband"


def test_without_a_card_they_are_left_out(devices):
    """The folder is missing, or empty, where there is none."""
    environment = {}
    leave_out(environment, devices)
    assert environment == {VARIABLE: "n"}
    devices.mkdir()
    environment = {}
    leave_out(environment, devices)
    assert environment == {VARIABLE: "n"}


def test_with_a_card_they_stay(devices):
    """Its registrations must end with the memory."""
    (devices / "mlx5_0").mkdir(parents=True)
    environment = {}
    leave_out(environment, devices)
    assert environment == {}


def test_the_user_decides(devices):
    """What is set stays."""
    environment = {VARIABLE: "y"}
    leave_out(environment, devices)
    assert environment == {VARIABLE: "y"}
