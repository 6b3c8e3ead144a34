"""Whoever loads MPI first in a process has told it how to wait, and what not to watch or take."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from kvstore_mpi.comm import mpi
from mpilaunch.rank import rank_main

TOLD = ("UCX_DEBUG_SIGNO", "MPIR_CVAR_ENABLE_HEAVY_YIELD", "UCX_MEM_EVENTS")


class Loaded(ModuleType):
    """Stands for mpi4py: notes what the environment says when MPI is loaded."""

    def __getattr__(self, name):
        if name != "MPI":
            raise AttributeError(name)
        self.told = {each: os.environ.get(each) for each in TOLD}
        world = SimpleNamespace(size=2)
        return SimpleNamespace(
            COMM_WORLD=world,
            Get_library_version=lambda: "a library",
            Query_thread=lambda: 3,
            THREAD_SERIALIZED=2,
        )


@pytest.fixture
def mpi4py(monkeypatch):
    """Be a rank on the second of two hosts, before MPI is loaded."""
    for name in TOLD:
        monkeypatch.setenv(name, "")  # monkeypatch takes back what is deleted, and what comes instead
        monkeypatch.delenv(name)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("MPI_LOCALNRANKS", "1")
    loaded = Loaded("mpi4py")
    monkeypatch.setitem(sys.modules, "mpi4py", loaded)
    return loaded


@pytest.mark.parametrize("who", ["mpilaunch", "store"])
def test_ranks_on_different_hosts_sleep_while_they_wait(mpi4py, who):
    """Of ``mpilaunch`` and of a plain ``mpiexec`` alike; a machine with cards for it decides otherwise."""
    if who == "store":
        mpi.load_mpi()
    else:
        nothing = SimpleNamespace(record_shared_memory=lambda: None, announce_meeting=lambda: None)
        rank_main._join_mpi(nothing)
    has_cards = mpi.before_mpi.memory_hooks.has_cards(mpi.before_mpi.memory_hooks.RDMA_DEVICES)
    assert mpi4py.told == dict(zip(TOLD, ("", None, None) if has_cards else ("", "1", "n")))


def test_the_user_decides_at_which_signal_ucx_debugs():
    """What is set stays."""
    environment = {"UCX_DEBUG_SIGNO": "SIGHUP"}
    mpi.before_mpi.prepare(environment)
    assert environment["UCX_DEBUG_SIGNO"] == "SIGHUP"
