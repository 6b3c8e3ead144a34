"""What ``mx.kv.create`` makes of a name, with and without ``--take-over``."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi import node  # noqa: E402
from kvstore_mpi.adapters.mxnet import ClientStore, KVStoreMPI, names  # noqa: E402
from kvstore_mpi.adapters.mxnet.exchange import own_worker  # noqa: E402
from kvstore_mpi.comm.started import started_by_mpiexec  # noqa: E402
from kvstore_mpi.errors import ConfigurationError, UsageError  # noqa: E402
from kvstore_mpi.mxnet import ElasticTrainer  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from mpilaunch.mpi import find_mpi  # noqa: E402

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
        monkeypatch.setattr(names, "own_worker", lambda _name, _mode: worker)
        yield opened


def train(name, make_trainer=mx.gluon.Trainer):
    """Make a step with a Trainer that is given the name of a store; return it."""
    parameter = mx.gluon.Parameter("w", shape=(2,))
    parameter.initialize()
    trainer = make_trainer([parameter], "sgd", kvstore=name)
    with mx.autograd.record():
        loss = parameter.data().sum()
    loss.backward()
    trainer.step(1)
    return trainer


def train_rows(name):
    """Make a step with a Trainer whose weight is row-sparse."""
    parameter = mx.gluon.Parameter("w", shape=(2, 1), stype="row_sparse", grad_stype="row_sparse")
    parameter.initialize()
    trainer, rows = mx.gluon.Trainer([parameter], "sgd", kvstore=name), mx.nd.arange(2)
    with mx.autograd.record():
        loss = mx.nd.Embedding(rows, parameter.row_sparse_data(rows), 2, 1, sparse_grad=True).sum()
    loss.backward()
    trainer.step(1)


def fit(name):
    """Fit a Module that is given the name of a store; return it."""
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
    output = mx.sym.LinearRegressionOutput(layer, name="out")
    module = mx.mod.Module(output, label_names=["out_label"])
    data = mx.io.NDArrayIter(mx.nd.ones((2, 3)), mx.nd.ones((2, 1)), 2, label_name="out_label")
    module.fit(data, num_epoch=1, kvstore=name, eval_metric="mse")
    return module


@pytest.mark.parametrize("name", ["sync-mpi", "Dist_Sync_MPI", "async-mpi"])
def test_a_trainer_opens_the_store_of_a_name(modes, name):
    """With one device MXNet would drop most of these names, and train apart."""
    assert isinstance(train(name)._kvstore, KVStoreMPI)
    assert modes == ["async" if "async" in name else "sync"]


def test_a_module_opens_the_store_of_a_name(modes):
    """Likewise."""
    assert isinstance(fit("sync-mpi")._kvstore, KVStoreMPI)
    assert modes == ["sync"]


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    "trains",
    [train, train_rows, fit, partial(train, make_trainer=ElasticTrainer)],
    ids=["Trainer", "Trainer of rows", "Module", "ElasticTrainer"],
)
@pytest.mark.usefixtures("modes")
def test_ranks_of_a_worker_do_not_train_whole_nets(monkeypatch, trains, planned):
    """Each would have all the work of the worker; what is trained after a net was divided may be whole."""
    links = SimpleNamespace(size=2, taken=False)
    monkeypatch.setattr(node, "process_links", lambda: links)
    monkeypatch.setattr(own_worker, "planned_cut", lambda: object() if planned else None)
    why, remedy = (
        ("the plan cuts", "a plan without a cut") if planned else ("--model-parallel 2", "leave that")
    )
    with pytest.raises(UsageError, match=rf"2 ranks each \({why}.* divides no net among them: .*{remedy}"):
        trains("sync-mpi")
    links.taken = True
    trains("sync-mpi")


@pytest.mark.parametrize("name", ["sync_mpi", "mpi", "dist_syn"])
def test_a_trainer_refuses_misspelt_names(modes, name):
    """As mx.kv.create does; of any other name MXNet makes what it would."""
    parameter = mx.gluon.Parameter("w", shape=(2,))
    parameter.initialize()
    with pytest.raises(UsageError):
        mx.gluon.Trainer([parameter], "sgd", kvstore=name)._init_kvstore()
    plain = mx.gluon.Trainer([parameter], "sgd", kvstore="device")
    plain._init_kvstore()
    assert (plain._kvstore, modes) == (None, [])


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


def no_job(monkeypatch):
    """Let nobody have started this process as a worker."""
    for name in os.environ:
        if name.startswith(("KVMPI_", "PMI", "OMPI_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["/somewhere/digits.py"])


SEVERAL = "mpilaunch --clients 2 --servers 1 --workers 4 digits.py; for one: mpilaunch"


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("sync-mpi", "--workers 1"),
        ("async-mpi", "--servers 1 --workers 1"),
        ("dist_sync_mpi", "--workers 1"),
        ("dist_async_mpi", "--servers 1 --workers 1"),
        ("dist_device_sync", "--workers 1"),
    ],
)
def test_a_process_that_nobody_started_has_no_store(monkeypatch, name, one):
    """Whoever forgot mpilaunch must not think that several workers train, and is told what to type."""
    no_job(monkeypatch)
    monkeypatch.setattr(mx.kv.KVStoreBase, "kv_registry", dict(mx.kv.KVStoreBase.kv_registry))
    names.register()
    names.take_over()
    with pytest.raises(ConfigurationError) as caught:
        mx.kv.create(name)
    assert isinstance(caught.value, mx.MXNetError)
    said = str(caught.value)
    assert said.startswith(f"'{name}' was asked for in a process that neither mpilaunch nor mpiexec")
    assert said.endswith(f"{SEVERAL} {one} digits.py")


@pytest.mark.parametrize("store", [KVStoreMPI, ClientStore])
def test_nor_has_it_one_that_is_made_by_its_class(monkeypatch, store):
    """It is named by that."""
    no_job(monkeypatch)
    with pytest.raises(ConfigurationError, match=f"^{store.__name__} was asked for .* --workers 1 digits"):
        store()


@pytest.mark.parametrize("variable", ["PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"])
def test_what_starts_a_process_of_an_mpi_job_is_known_by_its_variables(monkeypatch, variable):
    """MPICH, Slurm with either of its interfaces, and Open MPI."""
    no_job(monkeypatch)
    assert not started_by_mpiexec()
    monkeypatch.setenv(variable, "0")
    assert started_by_mpiexec()


ONE = """
import mxnet as mx, kvstore_mpi.mxnet
kv, value = mx.kv.create({name!r}), mx.nd.ones(3)
kv.init('a', value)
kv.pushpull('a', value)
print(kv.type, kv.num_workers, value.asnumpy().sum())
"""
LAUNCH = (str(Path(sys.executable).with_name("mpilaunch")), "--workers", "1")


def run(tmp_path, name, start):
    """Run a script that asks for a store on one worker; return what it has printed."""
    script = tmp_path / "one.py"
    script.write_text(ONE.format(name=name))
    done = subprocess.run(
        [*start, str(script)],
        cwd=tmp_path,
        env={**os.environ, **dict(find_mpi().flavour.env)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize("starter", ["mpilaunch", "mpiexec"])
def test_one_worker_is_a_job(tmp_path, starter):
    """Both ways that the error names work."""
    mpi = find_mpi()
    mpiexec = [mpi.mpiexec, *mpi.flavour.options, "-n", "1", sys.executable]
    said = run(tmp_path, "dist_sync_mpi", LAUNCH if starter == "mpilaunch" else mpiexec)
    assert "dist_sync_mpi 1 3.0\n" in said


@pytest.mark.mpi
@pytest.mark.parametrize("program", [(), ("--", sys.executable)], ids=["script", "program"])
def test_names_of_mxnet_can_be_taken_over_for_all_that_the_launcher_starts(tmp_path, program):
    """A program that is not run inside of the launcher's own hears of it, too."""
    assert "dist_sync 1 3.0\n" in run(tmp_path, "dist_sync", [*LAUNCH, "--take-over", *program])
