"""Trains the cases of a drawn job on every worker, and alone; prints how far apart they are.

Run by ``test_drawn.py`` under mpilaunch. Each case opens a store of its own. Every rank prints one line
per case: its number, the largest distance of a weight from that of one process, and a digest of the bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from support.drawn_jobs import Case, job
from train import digest, report

ROWS, WIDTH, WIDE = 37, 6, 900
PER_WORKER = 4  # samples of each pass: two for each of two devices
STEPS = 5


class Net(gluon.Block):
    """The parts of a case, each with an output of one number for each sample."""

    def __init__(self, parts):
        super().__init__(prefix="net_")
        with self.name_scope():
            if "dense" in parts:
                self.dense = gluon.nn.Dense(7, in_units=5, prefix="dense_")
            if "large" in parts:
                self.large = gluon.nn.Dense(31, in_units=WIDE, prefix="large_")
            if "rows" in parts:
                self.rows = gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix="rows_")
            self.weights = {
                name: self.params.get(name, **of) for name, of in WEIGHTS.items() if name in parts
            }

    def forward(self, ids, x, wide):
        """Return the sum of all parts for each sample; ``x`` has 7 columns."""
        device = x.context
        found = 0.0
        if "dense" in self._children:
            found = found + (mx.nd.tanh(self.dense(x[:, :5])) * x).sum(axis=1)
        if "large" in self._children:
            found = found + mx.nd.tanh(self.large(wide)).mean(axis=1)
        if "rows" in self._children:
            found = found + (mx.nd.tanh(self.rows(ids)) * x[:, :3].expand_dims(2)).sum(axis=(1, 2))
        for weight in self.weights.values():
            value = weight.data(device).reshape((1, -1))
            part = mx.nd.tanh(mx.nd.broadcast_mul(value, x[:, :1].astype(value.dtype))).sum(axis=1)
            found = found + part.astype("float32")
        return found


WEIGHTS = {
    "one": {"shape": (1,)},
    "odd": {"shape": (2, 1, 3, 1)},
    "half": {"shape": (3, 4), "dtype": "float16"},
    "double": {"shape": (2, 1), "dtype": "float64"},
    "frozen": {"shape": (7,), "grad_req": "null"},
}


def batch(seed, step, part):
    """Return ids, and two arrays of numbers, of the samples of a pass on some workers."""
    random = np.random.RandomState(1000 * seed + step)
    return (
        random.randint(0, ROWS, size=(100, 3))[part],
        random.normal(size=(100, 7)).astype(np.float32)[part],
        random.normal(size=(100, WIDE)).astype(np.float32)[part] / 10,
    )


def schedule(case: Case):
    """Return the schedule of a case's learning rate, as an argument of its optimizer."""
    rate = case.numbers.get("learning_rate")
    if case.schedule == "factor":
        return {"lr_scheduler": mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=rate)}
    if case.schedule == "cosine":
        return {"lr_scheduler": mx.lr_scheduler.CosineScheduler(max_update=6, base_lr=rate, warmup_steps=2)}
    return {}


def new_net(case: Case, seed, devices):
    """Return a net, with the same weights everywhere."""
    net = Net(case.parts)
    net.initialize(ctx=devices)
    random = np.random.RandomState(seed)
    for name, parameter in sorted(net.collect_params().items()):
        parameter.set_data(mx.nd.array(random.normal(size=parameter.shape) / 4, dtype=parameter.dtype))
        if case.multiplied and ("bias" in name or "odd" in name):
            parameter.lr_mult, parameter.wd_mult = 2.0, 0.0
        if case.passes > 1 and parameter.grad_req != "null":
            parameter.grad_req = "add"
    return net


def train(case: Case, seed, workers, kv=None):
    """Train on this worker's part of each batch, or on all of it; return the weights by name."""
    devices = [mx.cpu(number) for number in range(case.contexts if kv is not None else 1)]
    net = new_net(case, seed, devices)
    first, count = (kv.rank, 1) if kv is not None else (0, workers)
    of_rank = slice(first * PER_WORKER, (first + count) * PER_WORKER)
    arguments = {**case.numbers, **schedule(case)}
    step = (by_hand if case.by_hand else by_trainer)(case, net, arguments, workers * PER_WORKER, kv)
    for number in range(STEPS):
        for again in range(case.passes):
            backward(net, batch(seed, number * 2 + again, of_rank), devices)
        step(number)
        if case.passes > 1:
            net.collect_params().zero_grad()
    return {name: [each.asnumpy() for each in p.list_data()] for name, p in net.collect_params().items()}


def backward(net, arrays, devices):
    """Leave a pass' gradients on all devices."""
    with autograd.record():
        shares = [np.array_split(each, len(devices)) for each in arrays]
        sums = [
            net(*(mx.nd.array(share[number], ctx=device) for share in shares)).sum()
            for number, device in enumerate(devices)
        ]
    autograd.backward(sums)


def by_trainer(case: Case, net, arguments, size, kv):
    """Return what a step of a Trainer is."""
    if kv is not None and case.clip:
        kv.clip_global_norm(case.clip)
    on_kvstore = {"update_on_kvstore": case.update_on_kvstore} if kv is not None else {}
    trainer = gluon.Trainer(net.collect_params(), case.optimizer, arguments, kvstore=kv, **on_kvstore)

    def step(number):
        if case.new_rate and number == 2:
            trainer.set_learning_rate(case.new_rate)
        trainer.step(size if kv is not None else size * excess(case, net, size))

    return step


def excess(case: Case, net, size):
    """Return by how much the global norm of one process' gradient is above its bound; 1 if it is not."""
    if not case.clip:
        return 1.0
    gradients = [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    norm = np.sqrt(sum(np.sum(each.astype(np.float64) ** 2) for each in gradients)) / size
    return max(1.0, norm / case.clip)


def by_hand(case: Case, net, arguments, size, kv):
    """Return what a step is of a script that pushes and pulls; alone it has MXNet's local store."""
    kv = kv if kv is not None else mx.kv.create("local")
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    optimizer = mx.optimizer.create(case.optimizer, rescale_grad=1 / size, **arguments)
    if case.optimizer_first:
        kv.set_optimizer(optimizer)
    for parameter in parameters:
        kv.init(parameter.name, parameter.list_data()[0])
    if not case.optimizer_first:
        kv.set_optimizer(optimizer)

    def step(number):
        for priority, parameter in enumerate(parameters):
            kv.push(parameter.name, parameter.list_grad(), priority=-priority)
        for priority, parameter in enumerate(parameters):
            kv.pull(parameter.name, parameter.list_data(), priority=-priority)

    return step


def distance(weights, alone):
    """Return the largest distance of a parameter from one process'."""
    return max(apart(each, reference[0]) for name, reference in alone.items() for each in weights[name])


def apart(value, reference):
    """Return how far a parameter is from one process', in parts of its norm.

    That of a float16 one counts 500 times, for its own rounding.
    """
    coarse = 500 if reference.dtype == np.float16 else 1
    difference = np.linalg.norm(value.astype(np.float64) - reference)
    norm = max(
        np.linalg.norm(reference.astype(np.float64)), 1e-3
    )  # FTRL makes all of it zero, if it is small
    return float(difference / norm / coarse)


def main():
    """Train all cases of the job that a seed draws."""
    seed = int(sys.argv[1])
    drawn = job(seed)
    clients, ranks, _ = drawn.layout
    for number, case in enumerate(drawn.cases):
        kv = mx.kv.create("sync-mpi")
        weights = train(case, seed + number, kv.num_workers, kv)
        alone = train(case, seed + number, clients * ranks)
        bits = digest([each for name in sorted(weights) for each in weights[name]])
        report(str(number), kv.rank, distance(weights, alone), bits)


if __name__ == "__main__":
    main()
