"""Train NeuMF on MovieLens-100k from recbole's wheel."""

from __future__ import annotations

import argparse

import mxnet as mx
import numpy as np
import ratings
from mxnet import autograd, gluon, nd
from neumf import NeuMF, scores

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5, help="passes over the ratings (%(default)s)")
parser.add_argument("--batch-size", type=int, default=1024, help="of all workers together (%(default)s)")
parser.add_argument("--negatives", type=int, default=4, help="other items for each rating (%(default)s)")
parser.add_argument("--width", type=int, default=16, help="of the factors (%(default)s)")
parser.add_argument("--lr", type=float, default=0.002, help="of Adam (%(default)s)")
parser.add_argument("--quick", action="store_true", help="ten batches")
args = parser.parse_args()
kv = mx.kv.create("sync-mpi")

data = ratings.load()
mx.random.seed(1)
rng = np.random.default_rng(1)
net = NeuMF(*data.rated.shape, args.width)
loss_of = gluon.loss.SigmoidBinaryCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": args.lr}, kvstore=kv)

for epoch in range(1 if args.quick else args.epochs):
    drawn = ratings.draw(data, args.negatives, rng)
    batches = range(0, len(drawn[0]) - args.batch_size + 1, args.batch_size)[: 10 if args.quick else None]
    total = nd.zeros(1, dtype="float64")
    for begin in batches:
        mine = slice(begin + kv.rank, begin + args.batch_size, kv.num_workers)
        users, items, labels = (nd.array(each[mine], dtype="float64") for each in drawn)
        with autograd.record():
            loss = loss_of(net(users, items), labels)
        loss.backward()
        trainer.step(args.batch_size)
        total += loss.mean()
    print(f"epoch {epoch + 1}: loss {total.asscalar() / len(batches):.4f}", flush=True)
found = scores(net, data.candidates)
print(f"HR@10 {ratings.hit_rate(found):.4f}, AUC {ratings.auc(found):.4f}")
