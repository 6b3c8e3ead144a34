"""Workers of two ranks whose stores sum among the owners of each part; run by ``test_model_parallel.py``.

The second argument says what happens: ``sums``, or what a rank does wrong. Without MXNet.
"""

import json
import os
import signal
import sys

import numpy as np
from mpi4py import MPI

from kvstore_mpi import node
from kvstore_mpi.errors import KVStoreError
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore

MODE, WHAT = sys.argv[1:]
LARGE = 1 << 18
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()
PROCESSORS = os.sched_getaffinity(0)


def sums(worker):
    """Keys of one name are of each part's owners: their values never meet."""
    part, rank = worker.model_rank, worker.rank
    store = BlockingStore(worker, MODE)
    assert store.init("w", np.full(3, 10 * part + rank, np.float32)).tolist() == [10 * part] * 3
    if part:
        assert store.init("only the second part has it", np.zeros(2, np.float32)).tolist() == [0, 0]
    if MODE == "async":
        worker.set_optimizer(store.number, SGD)
        worker.barrier()  # who is late would begin with what others have pushed
    workers, steps = range(worker.num_workers), range(3)
    for step in steps:
        value = store.pushpull("w", np.full(3, 100 * part + rank + step, np.float32))
        if MODE == "sync":
            assert value.tolist() == [sum(100 * part + each + step for each in workers)] * 3
    worker.barrier()
    if MODE == "async":
        given = sum(100 * part + each + step for each in workers for step in steps)
        assert store.pull("w").tolist() == [10 * part - given] * 3
    sys.stdout.write(f"part {part} of worker {rank} of {worker.num_workers}\n")


def messages(links):
    """Large ones go both ways at once, in an order that neither side has agreed on."""
    peer = 1 - links.rank
    assert links._bells is not None, "ranks of one host tell each other what has left"
    own = sorted(os.sched_getaffinity(0))
    first = json.loads(links.broadcast(json.dumps(own).encode(), 0))
    enough = len(PROCESSORS) >= MPI.COMM_WORLD.Get_size()
    assert links.rank == 0 or set(own).isdisjoint(first) == enough, (own, first)
    arrays = [np.full(size, links.rank + size, np.float32) for size in (LARGE, 1, 77)]
    spaces = [np.empty_like(array) for array in arrays]
    coming = [links.receive(space, peer, tag) for tag, space in enumerate(spaces)]
    leaving = [links.send(arrays[tag], peer, tag) for tag in (2, 0, 1)]
    for future in (*coming, *leaving):
        links.wait(future, lambda: "a message of the test")
    for array, space in zip(arrays, spaces):
        assert (space == array - links.rank + peer).all()
    assert links.broadcast(b"from %d" % links.rank, 1) == b"from 1"


def fail(links):
    """Do one thing wrong on rank 1, and let rank 0 wait for what does not come."""
    if links.rank == 1 and WHAT == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if links.rank == 1 and WHAT == "sends too little":
        links.wait(links.send(np.zeros(1, np.float32), 0, 5), lambda: "nobody")
    if links.rank == 0:
        try:
            space = np.zeros(2, np.float32)
            links.wait(links.receive(space, 1, 5), lambda: "the output of the second part")
        except KVStoreError as error:
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
            sys.stdout.flush()
            os._exit(3)  # a thread is in MPI, and does not come back
    signal.pause()


worker, links = node.process_worker("a test", MODE), node.process_links()
if WHAT == "sums":
    sums(worker)
    messages(links)
else:
    fail(links)
