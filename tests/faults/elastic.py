"""Trains digits by elastic averaging until a file is there; run under mpilaunch by ``test_elastic.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import digits_data
import mxnet as mx
import numpy as np
from digits_gluon import accuracy, make_net
from mpi4py import MPI

from kvstore_mpi.mxnet import ElasticTrainer

BATCH = 16
LEAST_STEPS = 400

stop = Path(sys.argv[1])
ranks = MPI.COMM_WORLD.Dup()
comes = os.environ.get("CLIENT_1_COMES")  # a pipe: when somebody has written to it
if comes and os.environ["KVMPI_CLIENT"] == "1":
    if ranks.rank == 0:
        Path(comes).read_bytes()
    ranks.barrier()
kv = mx.kv.create("async-mpi")
life = int(os.environ.get("KVMPI_INCARNATION", "0"))
train, test = digits_data.load()
images, labels = digits_data.shard(train, kv.rank, kv.num_workers)
mx.random.seed(kv.rank)
net = make_net()
hyper = {"learning_rate": 0.05, "momentum": 0.9}
terms = json.loads(os.environ.get("TERMS", "{}"))
trainer = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, interval=4, alpha=0.5, **terms)
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
draw = np.random.RandomState(10 * kv.rank + life)
steps = 0
while not ranks.bcast(stop.exists() and steps >= LEAST_STEPS):  # all ranks of a client stop together
    chosen = draw.choice(len(images), BATCH)
    with mx.autograd.record():
        loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
    loss.backward()
    trainer.step(BATCH)
    if steps == 0:
        first = accuracy(net, test)
    steps += 1
    if steps == 150:  # by then the center is far from where it began, once the engine has come as far
        mx.nd.waitall()
        sys.stdout.write(f"READY {kv.rank} {os.getpid()} life {life} from {first:.4f}\n")
        sys.stdout.flush()
mx.nd.waitall()
kv.barrier()  # the center is final when all have trained
with trainer.center():
    sys.stdout.write(f"CENTER {kv.rank} life {life} accuracy {accuracy(net, test):.4f}\n")
