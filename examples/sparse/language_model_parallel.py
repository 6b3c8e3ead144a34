"""Train a word language model with sampled softmax on a text from gensim's wheel."""

from __future__ import annotations

import argparse

import corpus
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from word_model import STEPS, WordModel, batches, draw, perplexity

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--text", choices=corpus.TEXTS, default="lee", help="(%(default)s)")
parser.add_argument("--tied", action="store_true", help="one table for words that come in and that go out")
parser.add_argument("--epochs", type=int, default=4, help="passes over the text (%(default)s)")
parser.add_argument("--streams", type=int, default=32, help="parts of the text in a batch (%(default)s)")
parser.add_argument("--sample", type=int, default=512, help="words that the softmax is over (%(default)s)")
parser.add_argument("--width", type=int, default=64, help="of the tables (%(default)s)")
parser.add_argument("--lr", type=float, default=0.03, help="of AdaGrad (%(default)s)")
parser.add_argument("--quick", action="store_true", help="ten batches, and 1000 words held out")
args = parser.parse_args()
kv = mx.kv.create("sync-mpi")

data = corpus.load(args.text)
text = corpus.streams(data.train, args.streams)[:, kv.rank :: kv.num_workers]
if args.quick:
    text, args.epochs = text[: 10 * STEPS + 1], 1
mx.random.seed(1)
rng = np.random.default_rng(1)
net = WordModel(len(data.counts), args.width, tied=args.tied)
trainer = gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": args.lr}, kvstore=kv)

for epoch in range(args.epochs):
    state = net.lstm.begin_state(text.shape[1])
    total = mx.nd.zeros(1)
    for words, following in batches(text):
        state = [each.detach() for each in state]
        with autograd.record():
            loss, state = net(words, following, state, draw(net.num_words, args.sample, rng))
        loss.backward()
        trainer.step(args.streams * STEPS)
        total += loss.mean()
    print(f"epoch {epoch + 1}: loss {total.asscalar() / (len(text) // STEPS):.4f}", flush=True)
by_frequency = corpus.unigram_perplexity(data)
held_out = data.test[: 1000 if args.quick else None]
print(f"held-out perplexity {perplexity(net, held_out):.2f} (by frequency alone {by_frequency:.2f})")
