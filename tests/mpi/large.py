"""Sums an array of 2.16 GB, more than 2**31 bytes, over the workers; ``test_large_arrays.py`` runs it."""

from __future__ import annotations

import sys

import mxnet as mx

ELEMENTS = 540_000_000

kv = mx.kv.create("sync-mpi")
value = mx.nd.full((ELEMENTS,), kv.rank + 1.0)
kv.init("w", value)
kv.pushpull("w", value)
total = kv.num_workers * (kv.num_workers + 1) / 2
for lo in range(0, ELEMENTS, 90_000_000):
    part = value[lo : lo + 90_000_000]
    assert part.min().asscalar() == part.max().asscalar() == total
sys.stdout.write(f"SUM {total}\n")
