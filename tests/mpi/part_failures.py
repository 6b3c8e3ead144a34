"""Workers of two ranks in which one does something wrong; run by ``test_part_failures.py``.

``part_failures.py MODE one_layer|no_memory|dies|stuck``, or what the second rank has that the first has
not; ``far_`` before it: as if they were on several hosts.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import mxnet as mx
from mxnet.gluon import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import model_parts
from support.model_parts import OPTIONS, loss_of, make_chain

from kvstore_mpi import node
from kvstore_mpi.adapters.mxnet.parts import message_costs
from kvstore_mpi.adapters.mxnet.parts.segment_run import Unobserved
from kvstore_mpi.comm import bells
from kvstore_mpi.errors import UsageError
from kvstore_mpi.mxnet import PipelineTrainer

MODE, WHAT = sys.argv[1:]
if WHAT.startswith("far_"):
    bells.hang = lambda _ranks: None  # as where they are on several hosts
    WHAT = WHAT.removeprefix("far_")


def refused(kv, net, **options):
    """Make a trainer that cannot be; say so before the first rank to end ends the others."""
    net.initialize()
    try:
        PipelineTrainer(net, loss_of, "sgd", kvstore=kv, sample=mx.nd.ones((4, 4)), **options)
    except UsageError:
        sys.stdout.write(f"rank {kv.model_rank} of worker {kv.rank} knows\n")
        sys.stdout.flush()
        kv.barrier()
        for rank in range(2):
            node.process_links().broadcast(b"", rank)
        raise


def one_layer(kv):
    """Give two ranks one layer."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4))
    refused(kv, net)


def no_memory(kv):
    """Give stages too little memory, which only the rank that decides looks at, when all have measured."""
    message_costs.LEARNING = message_costs.MESSAGES = 1  # what they measure does not matter
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.Dense(4))
    refused(kv, net, memory_limit=100)


class Stopped(Unobserved):
    """Stops a rank in the middle of its second step."""

    def __init__(self):
        """No step has begun."""
        self._steps = 0

    def step(self):
        """Count it."""
        self._steps += 1

    def begins(self, action):
        """Wait to be killed between two micro-batches, when other ranks wait for what does not come."""
        if self._steps == 2 and action.micro_batch == 2:
            sys.stdout.write(f"STOPPED {os.getpid()}\n")
            sys.stdout.flush()
            signal.pause()


def dies(kv):
    """The second rank of the last worker is killed while all train."""
    trainer = PipelineTrainer(
        make_chain(), loss_of, "sgd", OPTIONS, kvstore=kv, stages=[2], micro_batches=4
    )
    if (kv.rank, kv.model_rank) == (kv.num_workers - 1, 1):
        trainer.observer = Stopped()
    batches = model_parts.batches(kv.rank, kv.num_workers)
    for step in range(1000):
        trainer.step(*batches[step % len(batches)])


def stuck(kv):
    """The second rank never comes to its second step."""
    trainer = PipelineTrainer(make_chain(), loss_of, "sgd", OPTIONS, kvstore=kv, stages=[2])
    data, labels = model_parts.batches()[0]
    trainer.step(data, labels)
    if kv.model_rank:
        threading.Event().wait()  # not ended by the signal that asks for stacks
    trainer.step(data, labels)


SIZES = {
    "new_shape": ([16, 16], [16, 12]),
    "known_shape": ([16, 8, 16], [16, 8, 8]),
    "fewer_batches": ([16, 16], [16]),
    "more_batches": ([16], [16, 16]),
    "bare_first_stage": ([16], [16, 16]),
    "values": ([16], [16]),
    "first_ends": ([16], [16, 16]),
    "last_ends": ([16, 16], [16]),
}
"""How many samples the steps of each rank have."""


def different(kv):
    """The ranks of a worker have other batches, or more of them before they gather all parameters."""
    net = make_chain()
    if WHAT == "bare_first_stage":
        net = nn.HybridSequential()
        net.add(nn.Flatten(), nn.Flatten(), nn.Dense(10))
        net.initialize()
    trainer = PipelineTrainer(net, loss_of, "sgd", OPTIONS, kvstore=kv, stages=[2], micro_batches=4)
    data, labels = model_parts.batches()[0]
    if WHAT == "values" and kv.model_rank:
        labels = labels[::-1]
    for size in SIZES[WHAT][kv.model_rank]:
        trainer.step(data[:size], labels[:size])
    if not WHAT.endswith("ends"):
        trainer.gather()


ways = {"one_layer": one_layer, "no_memory": no_memory, "dies": dies, "stuck": stuck}
ways.get(WHAT, different)(mx.kv.create(f"{MODE}-mpi"))
