"""One rank of a measurement of how a job starts: imports MXNet, opens a store or none, meets all.

Started by ``start.py``; writes ``<rank>.json`` with moments on the machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import mxnet as mx
from harness.procfs import began_at
from mpi4py import MPI

imported = time.monotonic()
store, folder = sys.argv[1:]
if store == "none":
    rank = MPI.COMM_WORLD.rank
    opened = imported
    MPI.COMM_WORLD.Barrier()
else:
    kv = mx.kv.create(store)
    rank = kv.rank
    opened = time.monotonic()
    kv.barrier()
moments = {"began": began_at(os.getpid()), "imported": imported, "opened": opened, "met": time.monotonic()}
Path(folder, f"{rank}.json").write_text(json.dumps(moments), encoding="utf-8")
