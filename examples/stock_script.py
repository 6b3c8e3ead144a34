"""A script as one writes it for MXNet's own parameter server; nothing in it knows this project.

It moves over by the name of the store, or without any change::

    mpilaunch --clients 2 --servers 1 examples/stock_script.py --kv-store dist_sync_mpi
    mpilaunch --clients 2 --servers 1 --take-over examples/stock_script.py
"""

from __future__ import annotations

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="train a multilayer perceptron on handwritten digits")
parser.add_argument("--kv-store", default="dist_sync", help="name of the store (%(default)s)")
parser.add_argument("--epochs", type=int, default=10, help="passes over the data (%(default)s)")
parser.add_argument("--batch-size", type=int, default=32, help="images per worker (%(default)s)")
args = parser.parse_args()

store = mx.kv.create(args.kv_store)

images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32"), labels.astype("float32")
tests = 360  # the last ones
part = (len(images) - tests) // store.num_workers
mine = slice(store.rank * part, (store.rank + 1) * part)
train_data = gluon.data.DataLoader(
    gluon.data.ArrayDataset(images[mine], labels[mine]),
    batch_size=args.batch_size,
    shuffle=True,
    last_batch="discard",
)
test_images, test_labels = mx.nd.array(images[-tests:]), mx.nd.array(labels[-tests:])

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
net.hybridize()
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003}, kvstore=store)

for epoch in range(args.epochs):
    for data, label in train_data:
        with autograd.record():
            loss = loss_of(net(data), label)
        loss.backward()
        trainer.step(args.batch_size * store.num_workers)
    metric = mx.metric.Accuracy()
    metric.update([test_labels], [net(test_images)])
    print(f"worker {store.rank} of {store.num_workers}: epoch {epoch + 1}, {metric.get()[1]:.4f} right")

if metric.get()[1] < 0.85:  # noqa: PLR2004  well below what this net reaches, far above guessing
    raise SystemExit("the net has not learnt")
