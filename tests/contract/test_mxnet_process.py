"""The MXNet store and its process: forks, exits, and MXNet's other engines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.exchange import lifecycle  # noqa: E402
from kvstore_mpi.errors import PeerLostError, UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import LocalGroup  # noqa: E402
from kvstore_mpi.worker.late_operations import SERVERS_FIRST_S  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def group():
    """One fake worker alone."""
    group = LocalGroup()
    yield group
    group.close()


def run_python(program, **environment):
    """Run a program in a fresh interpreter; return what it did."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_fork_with_operations_pending(group):
    """A fork waits for pending operations, and the store is refused in the child."""
    kv = KVStoreMPI("sync", group.workers[0])
    kv.init("a", mx.nd.zeros((100_000,)))
    value = mx.nd.ones((100_000,))
    group.hold(lambda _call: True)
    for _ in range(20):
        kv.pushpull("a", value)
    threading.Timer(0.1, group.release).start()
    child = os.fork()
    if child == 0:
        try:
            kv.push("a", value)
        except UsageError as error:
            os._exit(17 if "forked child" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert value.asnumpy()[0] == 1


class Parted:
    """The links of a rank that notes whether the others know of its end."""

    parted = False

    def part(self):
        """Note it."""
        self.parted = True


@pytest.mark.parametrize("end", ["in order", "told to end", "after a failure"])
def test_a_rank_lets_its_worker_know_when_its_program_is_over(group, monkeypatch, end):
    """And only then: what else ends it is what the others are to hear of."""
    for name in ("_workers", "_links"):
        monkeypatch.setattr(lifecycle, name, [])
    links, worker = Parted(), group.workers[0]
    lifecycle.close_at_exit(worker)
    for _ in range(2):
        lifecycle.part_at_exit(links)
    if end == "told to end":
        lifecycle.interrupt("has been told to end")
    if end == "after a failure":
        monkeypatch.setattr(worker, "failure", lambda: PeerLostError("somebody has gone"))
    lifecycle._at_exit()
    assert links.parted == (end == "in order")


def test_operations_are_waited_for_beyond_their_own_deadline(group, monkeypatch):
    """Whoever allows a step hours must not lose it when a DataLoader forks in the middle."""
    monkeypatch.setattr(lifecycle, "_workers", [])
    lifecycle.close_at_exit(group.workers[0])
    for step in (60.0, 7200.0):
        monkeypatch.setattr(group.workers[0], "step_timeout", step)
        assert lifecycle.drain_seconds() > step + SERVERS_FIRST_S


def test_a_barrier_waits_for_the_other_stores_of_the_worker(group, monkeypatch):
    """Pushes are compared at a barrier: one that the engine has not called yet would be missing there."""
    one, other = (KVStoreMPI("sync", group.workers[0]) for _ in range(2))
    for kv in (one, other):
        kv.init("a", mx.nd.zeros((4,)))
    came = []
    monkeypatch.setattr(
        group.workers[0],
        "barrier",
        lambda *, settled: came.append((settled, engine.wait_until_idle(0.0))),
    )
    group.hold(lambda _call: True)
    other.pushpull("a", mx.nd.ones((4,)))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "drain_seconds", lambda: 0.0)
        one.barrier()
    threading.Timer(0.1, group.release).start()
    one.barrier()
    assert came == [(False, False), (True, True)]


def test_data_loader_workers(group):
    """DataLoader workers that fork in the middle of training neither hang nor break it."""
    kv = KVStoreMPI("sync", group.workers[0])
    kv.init("a", mx.nd.zeros((4,)))
    dataset = mx.gluon.data.SimpleDataset(list(range(8)))
    seen = []
    for _ in range(2):
        for batch in mx.gluon.data.DataLoader(dataset, batch_size=4, num_workers=2):
            kv.pushpull("a", batch.astype("float32"))
            seen.append(batch.asnumpy().sum())
    kv.barrier()
    assert seen == [6, 22] * 2


EXIT_WITH_PENDING = """
import threading
import mxnet as mx
from kvstore_mpi.mxnet import KVStoreMPI
from kvstore_mpi.testing.fake_worker import LocalGroup

group = LocalGroup()
kv = KVStoreMPI("sync", group.workers[0])
kv.init("a", mx.nd.zeros((100_000,)))
group.hold(lambda call: True)
value = mx.nd.ones((100_000,))
for _ in range(5):
    kv.pushpull("a", value)
close = group.workers[0].close
group.workers[0].close = lambda: (print("closed after", len(group.calls), "calls"), close())
threading.Thread(target=group.release).start()
"""


def test_exit_with_operations_pending():
    """A process that ends with operations under way waits for them, leaves the job, and ends well."""
    done = run_python(EXIT_WITH_PENDING)
    assert done.returncode == 0, done.stderr
    assert "closed after 6 calls" in done.stdout


EXIT_WITH_ERROR = """
import mxnet as mx
from kvstore_mpi.errors import PeerLostError
from kvstore_mpi.mxnet import KVStoreMPI
from kvstore_mpi.testing.fake_worker import LocalGroup

group = LocalGroup()
worker = group.workers[0]
kv = KVStoreMPI("sync", worker)
kv.init("a", mx.nd.zeros((10,)))
mx.nd.waitall()  # or the init may be what fails
error = PeerLostError("worker 1 has died")
group.fail(lambda call: True, error)
group.hold(lambda call: True)
kv.pushpull("a", mx.nd.ones((10,)))
worker.failure = lambda: error
group.release()
"""


def test_an_error_in_the_last_step_is_reported_at_exit():
    """An error after the last call of the store does not get lost."""
    done = run_python(EXIT_WITH_ERROR)
    assert "worker 0 ends after a failure: worker 1 has died" in done.stderr


NAIVE = """
import mxnet as mx
from kvstore_mpi.errors import PeerLostError
from kvstore_mpi.mxnet import KVStoreMPI
from kvstore_mpi.testing import mxnet_training as training
from kvstore_mpi.testing.mxnet_contract import CHECKS, run_together
from kvstore_mpi.testing.fake_worker import LocalGroup

for num_servers in (0, 1):
    for check in [*CHECKS, *training.TRAINING_CHECKS]:
        group = LocalGroup(num_servers=num_servers)
        run_together(check, [lambda: KVStoreMPI("sync", group.workers[0])])
        group.close()
group = LocalGroup()
kv = KVStoreMPI("sync", group.workers[0])
weight = mx.nd.full((3,), 7)
kv.init("w", weight)
group.fail(lambda call: True, PeerLostError("gone"))
try:
    kv.pushpull("w", mx.nd.ones((3,)), out=weight)
except PeerLostError:
    assert weight.asnumpy().tolist() == [7, 7, 7]
    print("all well")
"""


CHOSEN_LATE = """
import kvstore_mpi.mxnet
import os
os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
from kvstore_mpi.adapters.mxnet.bridge import engine
from kvstore_mpi.errors import ConfigurationError
try:
    engine.prepare(2)
except ConfigurationError as error:
    print(error)
"""


def test_an_engine_that_the_script_has_chosen():
    """MXNet obeys it until the first array, and mpilaunch has imported the store before the script runs."""
    done = run_python(CHOSEN_LATE)
    assert "MXNET_ENGINE_TYPE=NaiveEngine with 2 workers is not supported" in done.stdout, done.stderr[
        -2000:
    ]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["NaiveEngine", "ThreadedEngine"])
def test_other_engines(kind):
    """The contract holds with MXNet's other engines, with calls that block in the naive one."""
    done = run_python(NAIVE, MXNET_ENGINE_TYPE=kind)
    assert done.returncode == 0, done.stderr[-2000:]
    if kind == "NaiveEngine":
        assert "all well" in done.stdout
