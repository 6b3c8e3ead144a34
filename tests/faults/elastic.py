"""Trains digits by elastic averaging until a file is there; run under mpilaunch by ``test_elastic.py``.

In the folder of that file the test and the clients tell each other, by files, how far they are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))

import deaths
import digits_data
import mxnet as mx
import numpy as np
from digits_gluon import accuracy, make_net
from mpi4py import MPI

from kvstore_mpi.adapters.mxnet import ElasticTrainer

BATCH = 16
LEAST_STEPS = 400
READY_STEPS = 150
"""By then the center is far from where it began."""

STEPS_BACK = 40
"""Of one that comes to others who have trained: it is trained from its first exchange on."""

INTERVAL = 4
GAIN_STEPS = 100
PAUSE_S, IDLE_PAUSE_S = 0.01, 0.05
"""After each step, and after those in which a net is trained: then the test waits for others, who need the
processors."""


def say(text):
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def count_exchanges(kv):
    """Return a list that grows with each exchange that has ended."""
    worker, ended = kv._worker, []
    pushpull = worker.pushpull

    def counted(store, key, priority, done):
        def count(error):
            if error is None and store == kv._exchange.store:
                ended.append(key)
            done(error)

        pushpull(store, key, priority, count)

    worker.pushpull = counted
    return ended


def begin_together():
    """Begin with the center before anybody moves it; save what it is."""
    net(mx.nd.array(images[:1]))  # now the parameters have their shapes
    trainer.join()
    params = (param.data().asnumpy() for param in trainer._params)
    np.savez(folder / f"begun{kv.rank}.npz", **{f"key {key}": value for key, value in enumerate(params)})
    kv.barrier()


def tell_gain():
    """As often as the test asks: make some steps, and tell what exchanges they have come to."""
    if not asked and (folder / f"count{len(gains)}").exists():
        mx.nd.waitall()
        asked.append((steps, len(exchanges)))
    if asked and steps - asked[0][0] == GAIN_STEPS:
        mx.nd.waitall()
        gains.append(len(exchanges) - asked.pop()[1])
        say(f"GAINED {len(gains) - 1} by {kv.rank}: {gains[-1]} exchanges")


def tell_loss():
    """Once a late client has exchanged all its parameters: tell the loss of one's own."""
    joined = folder / "joined"
    if late and steps == INTERVAL:
        joined.touch()
    if not losses and joined.exists():
        losses.append(loss_of(net(mx.nd.array(test[0])), mx.nd.array(test[1])).mean().asscalar())
        say(f"LOSS {kv.rank} {losses[0]:.4f}")


stop = Path(sys.argv[1])
folder = stop.parent
ranks = MPI.COMM_WORLD.Dup()
incarnation = int(os.environ.get("KVMPI_INCARNATION", "0"))
comes = folder / f"comes{incarnation}"  # a pipe: client 1 comes when somebody has written to it
late = comes.exists() and os.environ["KVMPI_CLIENT"] == "1"
if late:
    if ranks.rank == 0:
        comes.read_bytes()
    ranks.barrier()
kv = mx.kv.create(os.environ.get("STORE", "async-mpi"))
exchanges = count_exchanges(kv)
phases = os.environ.get("DIES", "").split()
if kv.client == 1 and incarnation < len(phases):
    deaths.prepare(kv._worker, phases[incarnation], incarnation, folder / "there")
train, test = digits_data.load()
images, labels = digits_data.shard(train, kv.rank, kv.num_workers)
mx.random.seed(kv.rank)
net = make_net()
hyper = {"learning_rate": 0.05, "momentum": 0.9}
terms = {"interval": INTERVAL, "alpha": 0.5, **json.loads(os.environ.get("TERMS", "{}"))}
trainer = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, **terms)
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
draw = np.random.RandomState(10 * kv.rank + incarnation)
if "BEGINS" in os.environ:
    begin_together()
asked, gains, losses = [], [], []
steps = 0
comes_late = late or incarnation
ready_steps, least_steps = (STEPS_BACK, 3 * LEAST_STEPS // 4) if comes_late else (READY_STEPS, LEAST_STEPS)
while not ranks.bcast(stop.exists() and steps >= least_steps):  # all ranks of a client stop together
    chosen = draw.choice(len(images), BATCH)
    with mx.autograd.record():
        loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
    loss.backward()
    trainer.step(BATCH)
    loss.wait_to_read()  # a program that runs far ahead of the engine has to wait as long at the end
    if steps == 0:
        first = accuracy(net, test)
    time.sleep(PAUSE_S if steps < least_steps else IDLE_PAUSE_S)
    steps += 1
    if steps == ready_steps:  # and the engine has come as far
        mx.nd.waitall()
        say(f"READY {kv.rank} {os.getpid()} incarnation {incarnation} from {first:.4f}")
    tell_gain()
    tell_loss()
mx.nd.waitall()
kv.barrier()  # the center is final when all have trained
with trainer.center():
    center = [param.data().asnumpy() for param in trainer._params]
    assert all(np.isfinite(value).all() for value in center)
    say(f"CENTER {kv.rank} incarnation {incarnation} accuracy {accuracy(net, test):.4f}")
np.savez(folder / f"ended{kv.rank}.npz", **{f"key {key}": value for key, value in enumerate(center)})
