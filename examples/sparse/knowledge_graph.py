"""Train ComplEx on a knowledge graph from pykeen's wheel."""

from __future__ import annotations

import argparse

import mxnet as mx
import numpy as np
import triples
from complex_model import ComplEx
from mxnet import autograd, gluon, nd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--graph", choices=triples.GRAPHS, default="umls", help="(%(default)s)")
parser.add_argument("--epochs", type=int, default=40, help="passes over the triples (%(default)s)")
parser.add_argument("--batch-size", type=int, default=256, help="of all workers together (%(default)s)")
parser.add_argument("--negatives", type=int, default=64, help="other tails for a batch (%(default)s)")
parser.add_argument("--width", type=int, default=64, help="complex numbers for each entity (%(default)s)")
parser.add_argument("--lr", type=float, default=0.1, help="of AdaGrad (%(default)s)")
parser.add_argument("--quick", action="store_true", help="one epoch")
args = parser.parse_args()

graph = triples.load(args.graph)
mx.random.seed(1)
rng = np.random.default_rng(1)
net = ComplEx(graph.num_entities, graph.num_relations, args.width)
trainer = gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": args.lr})

for epoch in range(1 if args.quick else args.epochs):
    order = rng.permutation(len(graph.train))
    batches = range(0, len(order) - args.batch_size + 1, args.batch_size)
    total = nd.zeros(1)
    for begin in batches:
        others = rng.integers(graph.num_entities, size=args.negatives)
        mine = order[begin : begin + args.batch_size]
        with autograd.record():
            loss = net(nd.array(graph.train[mine]), nd.array(others))
        loss.backward()
        trainer.step(len(mine))
        total += loss.mean()
    if (epoch + 1) % 10 == 0:
        print(f"epoch {epoch + 1}: loss {total.asscalar() / len(batches):.4f}", flush=True)
places = triples.ranks(graph, net.scores)
print(f"MRR {triples.mrr(places):.4f}, Hits@10 {triples.hits(places):.4f}")
