"""What ``mx.kv.create`` makes of a name, with and without ``--take-over``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import names  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402

pytestmark = pytest.mark.mxnet

NATIVE = {
    "dist": "sync",
    "dist_sync": "sync",
    "dist_device_sync": "sync",
    "dist_sync_device": "sync",
    "dist_device": "sync",
    "dist_sync_p3": "sync",
    "dist_async": "async",
    "dist_async_device": "async",
    "dist_device_async": "async",
}


@pytest.fixture
def modes(monkeypatch):
    """Let this process have a worker, take over nothing, and note the modes in which stores are opened."""
    monkeypatch.setattr(mx.kv.KVStoreBase, "kv_registry", dict(mx.kv.KVStoreBase.kv_registry))
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    names.register()
    opened = []
    with local_groups() as make:
        worker = make(1, num_servers=1).workers[0]
        open_store = worker.open_store
        worker.open_store = lambda mode: opened.append(mode) or open_store(mode)
        monkeypatch.setattr("kvstore_mpi.adapters.mxnet.store._own_worker", lambda: worker)
        yield opened


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("take_over", [False, True])
def test_own_names(modes, mode, take_over):
    """They stand for their mode, in any case, whatever else is answered for."""
    if take_over:
        names.take_over()
    for name in (f"{mode}-mpi", f"Dist_{mode}_MPI", f"dist-{mode}-mpi"):
        assert mx.kv.create(name).type == f"dist_{mode}_mpi"
    assert modes == [mode] * 3


@pytest.mark.parametrize("name", NATIVE)
def test_names_of_mxnet(modes, monkeypatch, name):
    """They are an error that says what to type, and after take_over stores of that type."""
    with pytest.raises(UsageError, match=f"'{name}' .* mpilaunch --take-over .*dist_{NATIVE[name]}_mpi"):
        mx.kv.create(name)
    monkeypatch.setenv("DMLC_ROLE", "worker")
    assert name not in mx.kv.KVStoreBase.kv_registry  # MXNet's own launcher has started its servers
    names.take_over()
    assert mx.kv.create(name).type == name
    assert modes == [NATIVE[name]]


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("name", ["sync_mpi", "mpi", "dist_mpi_sync"])
def test_an_unknown_name_is_refused(modes, name, take_over):
    """Else MXNet makes a local store of it, and each worker trains apart."""
    if take_over:
        names.take_over()
    with pytest.raises(UsageError, match=f"no store '{name}'; there are 'sync-mpi', .*'dist_async_mpi'"):
        mx.kv.create(name)
    assert modes == []


def test_other_names_are_mxnets(modes):
    """A local store is made as ever."""
    names.take_over()
    assert mx.kv.create("local").type == "local"
    assert mx.kv.create("teststore").type == "teststore"
    assert "device" not in mx.kv.KVStoreBase.kv_registry
    with pytest.raises(KeyError):
        mx.kv.KVStoreBase.kv_registry["device"]
    assert modes == []


def test_a_process_on_its_own_is_told_so():
    """It works, for tries; but whoever forgot mpilaunch must not think that several workers train."""
    script = "import mxnet as mx, kvstore_mpi.mxnet; print(mx.kv.create('dist_sync_mpi').num_workers)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVMPI_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=clean,
    )
    assert done.stdout == "1\n"
    assert "the only worker of its job; to train on several, type: mpilaunch" in done.stderr
