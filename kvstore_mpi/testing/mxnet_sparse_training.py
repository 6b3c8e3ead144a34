"""What training with row-sparse gradients and weights must come to: the same as in one process.

The checks have the form of those in ``mxnet_contract.py`` and hold over any worker. The reference is one
process with the samples of all workers; in some, its gradients are dense.
``mpilaunch -m kvstore_mpi.testing.mxnet_sparse_training`` runs them all for this process's worker.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.testing.adapter_contract import Turn, run_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvstore_mpi.testing.mxnet_contract import OpenStore

FEW_STEPS = 8
TOLERANCE = 1e-5

SHARE = 6
"""Samples per worker and step."""

WORDS, WIDTH, LENGTH, CLASSES = 40, 5, 3, 4
"""Rows and columns of the embedding, words of a sample, and what it is taken for."""

_PLAIN = {"learning_rate": 0.5}
_MOMENTUM = {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01}
_CALM_MOMENTUM = {**_MOMENTUM, "learning_rate": 0.05}
"""For factorization machines of few samples: with 0.2 a difference in the last bit grows 50-fold."""

_CALM_ADAM = {"learning_rate": 0.02, "epsilon": 1e-4}
"""With 1e-8 the sign of a gradient that is nothing but rounding moves a weight, which grows 50-fold."""


class Case(NamedTuple):
    """One way to train.

    Attributes:
        block: ``dense``, ``gradient`` (dense weight, row-sparse gradient) or ``weight`` (both row-sparse).
        optimizer: Registered name.
        options: For the optimizer.
        reference: Block of the one process.
    """

    block: str
    optimizer: str
    options: dict[str, Any]
    reference: str = "gradient"


CASES = {
    "gradients_on_or_off": Case("gradient", "sgd", _PLAIN, reference="dense"),
    "gradients_and_momentum": Case("gradient", "sgd", _MOMENTUM),
    "gradients_and_adam": Case("gradient", "adam", _CALM_ADAM),
    "weights_on_or_off": Case("weight", "sgd", _PLAIN, reference="dense"),
    "weights_and_momentum": Case("weight", "sgd", _MOMENTUM),
    "weights_and_adagrad": Case("weight", "adagrad", {"learning_rate": 0.1}),
}


def samples(step: int, ranks: range) -> tuple[Any, Any]:
    """Return words, some of them in many samples, and labels of some workers."""
    shares = []
    for rank in ranks:
        random = np.random.RandomState(1000 * step + rank)
        words = (WORDS * random.uniform(size=(SHARE, LENGTH)) ** 3).astype(np.int64)
        shares.append((words, random.randint(0, CLASSES, SHARE)))
    words, labels = zip(*shares)
    return np.concatenate(words), np.concatenate(labels)


def make_net(block: str) -> Any:
    """Make the same network, with the same weights, every time."""
    net = gluon.nn.HybridSequential() if block != "weight" else gluon.nn.Sequential()
    if block == "weight":
        net.add(gluon.contrib.nn.SparseEmbedding(WORDS, WIDTH))
    else:
        net.add(gluon.nn.Embedding(WORDS, WIDTH, sparse_grad=block == "gradient"))
    net.add(gluon.nn.Dense(CLASSES, in_units=LENGTH * WIDTH))
    random = np.random.RandomState(3)
    for parameter in net.collect_params().values():
        value = random.normal(size=parameter.shape).astype(np.float32)
        parameter.initialize(mx.init.Constant(mx.nd.array(value)))
    return net


def steps_of(case: Case, block: str, kv: Any, num_workers: int, steps: int) -> Iterator[Any]:
    """Train as one worker, or as all in one process; yield within steps, and the weights at the end."""
    ranks = range(num_workers) if kv is None else range(kv.rank, kv.rank + 1)
    net = make_net(block)
    trainer = gluon.Trainer(net.collect_params(), case.optimizer, dict(case.options), kvstore=kv)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        words, labels = samples(step, ranks)
        with autograd.record():
            loss = loss_of(net(mx.nd.array(words)), mx.nd.array(labels)).sum() / (SHARE * num_workers)
        yield None
        loss.backward()
        yield None
        # Not of the batch: with row-sparse weights a Trainer opens its store before it is told the size.
        trainer.step(1)
        yield None
    everything = mx.nd.arange(WORDS)
    yield [
        each.row_sparse_data(everything).tostype("default") if each._stype == "row_sparse" else each.data()  # noqa: SLF001  MXNet offers no other way
        for each in net.collect_params().values()
    ]


Tell = Callable[[list[Any]], None]
"""Is given the weights in the end."""


def nobody(_weights: list[Any]) -> None:
    """Tell nobody."""


def train(open_store: OpenStore, case: Case, steps: int, tell: Tell = nobody) -> Iterator[Turn]:
    """Train on every worker, and compare the weights with those of one process."""
    kv = open_store()
    found: Any = None
    for found in steps_of(case, case.block, kv, kv.num_workers, steps):  # noqa: B007
        yield None
    yield kv
    *_, expected = steps_of(case, case.reference, None, kv.num_workers, steps)
    compare(found, expected)
    tell(found)


def compare(found: list[Any], expected: list[Any]) -> None:
    """Compare weights, to rounding relative to their norm."""
    for ours, theirs in zip(found, expected):
        distance = np.linalg.norm(ours.asnumpy() - theirs.asnumpy()) / np.linalg.norm(theirs.asnumpy())
        assert distance < TOLERANCE, distance


# --- Module, as in MXNet's examples of linear models, factorization machines and words -----------------


Net = tuple[Any, dict[str, tuple[int, ...]]]
"""Scores, and the shapes of the parameters by name."""


def factorization_machine() -> Net:
    """Return scores by row-sparse weights of words that are counted, and the shapes of its parameters."""
    shapes = {"linear_weight": (WORDS, CLASSES), "factors_weight": (WORDS, CLASSES), "bias": (CLASSES,)}
    data = mx.sym.var("data", stype="csr")
    linear = mx.sym.var("linear_weight", stype="row_sparse", shape=shapes["linear_weight"])
    factors = mx.sym.var("factors_weight", stype="row_sparse", shape=shapes["factors_weight"])
    bias = mx.sym.var("bias", shape=shapes["bias"])
    pairs = mx.sym.square(mx.sym.sparse.dot(data, factors))
    return mx.sym.broadcast_add(mx.sym.sparse.dot(data, linear) + pairs, bias), shapes


def embedded_words() -> Net:
    """Return scores by an embedding of which the gradient is row-sparse, and shapes of its parameters."""
    shapes = {
        "embed_weight": (WORDS, WIDTH),
        "out_weight": (CLASSES, LENGTH * WIDTH),
        "out_bias": (CLASSES,),
    }
    weight = mx.sym.var("embed_weight")
    rows = mx.sym.Embedding(mx.sym.var("data"), weight, WORDS, WIDTH, sparse_grad=True)
    return mx.sym.FullyConnected(rows, num_hidden=CLASSES, name="out"), shapes


def make_module(net: Callable[[], Net], kv: KVStoreMPI | None, batch: Any) -> Any:
    """Make a Module for batches like this one; the weights of its words are row-sparse if its data are."""
    scores, shapes = net()
    module = mx.mod.Module(mx.sym.SoftmaxOutput(scores, name="softmax"))
    [data], [labels] = batch.data, batch.label
    module.bind([("data", data.shape)], [("softmax_label", labels.shape)])
    random = np.random.RandomState(4)
    values = {name: mx.nd.array(random.normal(size=shape) / 4) for name, shape in shapes.items()}
    sparse = values if data.stype == "csr" else {}
    sparse = {name: value.tostype("row_sparse") for name, value in sparse.items() if name != "bias"}
    module.init_params(arg_params={**values, **sparse}, aux_params={})
    options = {**_CALM_MOMENTUM}
    if kv is not None and "async" in kv.type:  # a Module counts the samples of others in sync mode only
        options["rescale_grad"] = 1 / (len(labels) * kv.num_workers)
    module.init_optimizer(kvstore=kv, optimizer="sgd", optimizer_params=options)
    return module


def counted_words(step: int, ranks: range) -> Any:
    """Return a batch of csr data: how often each word is in a sample."""
    words, labels = samples(step, ranks)
    dense = np.zeros((len(words), WORDS), np.float32)
    np.add.at(dense, (np.arange(len(words))[:, None], words), 1)
    return mx.io.DataBatch([mx.nd.array(dense).tostype("csr")], [mx.nd.array(labels)])


def plain_words(step: int, ranks: range) -> Any:
    """Return a batch of the numbers of words."""
    words, labels = samples(step, ranks)
    return mx.io.DataBatch([mx.nd.array(words)], [mx.nd.array(labels)])


def module_steps(module: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Train with the samples of some workers; yield within steps, and the weights at the end."""
    for batch in batches:
        if batch.data[0].stype == "csr":
            module.prepare(batch, sparse_row_id_fn=_rows_of)
        yield None
        module.forward_backward(batch)
        yield None
        module.update()
        yield None
    yield [value.tostype("default") for _, value in sorted(module.get_params()[0].items())]


def _rows_of(batch: Any) -> dict[str, Any]:
    return dict.fromkeys(("linear_weight", "factors_weight"), batch.data[0].indices)


def train_module(
    open_store: OpenStore,
    steps: int,
    batch_of: Callable[[int, range], Any],
    net: Callable[[], Net],
    tell: Tell = nobody,
) -> Iterator[Turn]:
    """Train a Module on every worker, and compare its weights with those of one process."""
    kv, found = open_store(), None
    batches = [batch_of(step, range(kv.rank, kv.rank + 1)) for step in range(steps)]
    module = make_module(net, kv, batches[0])
    yield kv
    for found in module_steps(module, batches):  # noqa: B007
        yield None
    yield kv
    batches = [batch_of(step, range(kv.num_workers)) for step in range(steps)]
    *_, expected = module_steps(make_module(net, None, batches[0]), batches)
    assert found is not None
    compare(found, expected)
    tell(found)


SPARSE_CHECKS: dict[str, Any] = {
    **{name: partial(train, case=case) for name, case in CASES.items()},
    "module_with_sparse_weights": partial(train_module, batch_of=counted_words, net=factorization_machine),
    "module_with_sparse_gradients": partial(train_module, batch_of=plain_words, net=embedded_words),
}
"""Checks for sync mode, and for async mode with one client; each is told the number of steps."""


def print_digest(name: str, weights: list[Any]) -> None:
    """Print a digest of all bits."""
    digest = hashlib.sha256(b"".join(each.asnumpy().tobytes() for each in weights)).hexdigest()
    print(f"digest: {name} {digest}", flush=True)  # noqa: T201  the report of a command


def main() -> None:
    """Run all checks, or some, for this process's worker of a real job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--only", choices=[*SPARSE_CHECKS], nargs="+", default=[*SPARSE_CHECKS])
    arguments = parser.parse_args()
    for name in arguments.only:
        one = partial(SPARSE_CHECKS[name], steps=arguments.steps, tell=partial(print_digest, name))
        run_alone(one, partial(KVStoreMPI, arguments.mode))
        print(f"passed: {name}", flush=True)  # noqa: T201  the report of a command


if __name__ == "__main__":
    main()
