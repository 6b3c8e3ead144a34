"""Sums one array of 2 GB over the workers; run under mpilaunch by ``test_large_arrays.py``."""

from __future__ import annotations

import sys

import mxnet as mx

ELEMENTS = 500_000_000

kv = mx.kv.create("sync-mpi")
value = mx.nd.full((ELEMENTS,), kv.rank + 1.0)
kv.init("w", value)
kv.pushpull("w", value)
total = kv.num_workers * (kv.num_workers + 1) / 2
for lo in range(0, ELEMENTS, 100_000_000):
    part = value[lo : lo + 100_000_000]
    assert part.min().asscalar() == part.max().asscalar() == total
sys.stdout.write(f"SUM {total}\n")
