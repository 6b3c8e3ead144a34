"""One rank of a job that trains row-sparse weights, of which it looks up rows; run by test_lookups.py.

Says what all its lookups came to, and how many bytes of rows its client was sent for them.
"""

from __future__ import annotations

import hashlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

ROWS, WIDTH, STEPS, TABLES = 40, 8, 6, 3


def ids_of(table: int, step: int, rank: int) -> mx.nd.NDArray:
    """Return the ids of one worker's step, of which others look up most as well."""
    random = np.random.default_rng([table, step, rank])
    return mx.nd.array(random.integers(0, ROWS // 4, (4, 3)), dtype="float32")


def main() -> None:
    kv = mx.kv.create("sync-mpi")
    mx.random.seed(3)
    nets = [gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH, prefix=f"table{n}_") for n in range(TABLES)]
    for net in nets:
        net.initialize(mx.init.Uniform(0.5))
    params = {name: each for net in nets for name, each in net.collect_params().items()}
    trainer = gluon.Trainer(params, "adam", {"learning_rate": 0.05}, kvstore=kv, update_on_kvstore=True)
    digest = hashlib.sha256()
    for step in range(STEPS):
        inputs = [ids_of(number, step, kv.rank) for number in range(TABLES)]
        with autograd.record():
            outs = [net(each) for net, each in zip(nets, inputs)]
            loss = sum((out**2).sum() for out in outs)
        loss.backward()
        for out in outs:
            digest.update(out.asnumpy().tobytes())
        if step % 3 == 1:  # what some ranks want is for others, too, and for some there is nothing
            wanted = ids_of(0, step + 1, kv.rank) if kv.rank % 2 else mx.nd.array([])
            kv.prefetch(0, wanted)
        trainer.step(1)  # the store was made by the first lookup, with that
    mx.nd.waitall()
    table = mx.nd.sparse.zeros("row_sparse", (ROWS, WIDTH))
    # Every rank validates, but not on the same rows.
    kv.row_sparse_pull(0, out=table, row_ids=mx.nd.arange(kv.rank, ROWS))
    digest.update(table.data.asnumpy().tobytes())
    received = sum(each.received for each in kv._exchange.worker.rows_counted(kv._exchange.store).values())
    print(f"rank {kv.rank} has {digest.hexdigest()} of {received} bytes", flush=True)  # noqa: T201


main()
