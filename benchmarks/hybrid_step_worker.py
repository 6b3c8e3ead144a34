"""One rank of a worker of two that trains a net in parts; started by ``hybrid_step.py``.

Rank 0 measures every part alone, predicts a step, measures steps with the other rank, and the same net in
one piece on one rank; it writes ``measured.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import mxnet as mx
import numpy as np
from harness.hybrid_nets import Case, make
from mxnet import gluon

from kvstore_mpi.adapters.mxnet.exchange.own_worker import own_links
from kvstore_mpi.adapters.mxnet.parts.message_costs import measure_link
from kvstore_mpi.adapters.mxnet.parts.segment_run import Unobserved
from kvstore_mpi.adapters.mxnet.parts.segments import Form
from kvstore_mpi.mxnet import PartTrainer
from kvstore_mpi.planner.pipelines.timetable import Times, simulate
from mpilaunch.rank.reporter import rank_and_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.comm.links import Links
    from kvstore_mpi.planner.cluster import Link
    from kvstore_mpi.planner.cuts import Handling
    from kvstore_mpi.planner.pipelines.schedules import Action

LEARNS = {"learning_rate": 1e-3}
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


class Watch(Unobserved):
    """Takes the times of parts; every computation ends before the next begins."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self.seconds: dict[tuple[int, bool], list[float]] = defaultdict(list)
        self._since = 0.0

    def begins(self, _action: Action) -> None:
        """See ``PartTrainer.observer``."""
        self._since = time.perf_counter()

    def asked(self, action: Action, _made: object) -> None:
        """Wait until it is computed."""
        mx.nd.waitall()
        self.seconds[action.segment, action.forward].append(time.perf_counter() - self._since)

    def medians(self, count: int, *, forward: bool) -> list[float]:
        """Return the median of each part; none of a part that others have."""
        found = [self.seconds.get((number, forward), []) for number in range(count)]
        return [median(each) if each else 0.0 for each in found]


def trainer_of(case: Case, kvstore: Any, *, whole: bool = False) -> PartTrainer:
    """Make the trainer: of both ranks, or of one that has all parts and takes the batch in one piece."""
    if whole:
        return PartTrainer(case.on_one_rank(), loss_of, "sgd", LEARNS, kvstore="local")
    return PartTrainer(
        case.parts,
        loss_of,
        "sgd",
        LEARNS,
        kvstore=kvstore,
        micro_batches=case.micro_batches,
        schedule=case.schedule(case.graph(2)),
    )


def batch_of(case: Case, size: int) -> tuple[list[Any], Any]:
    """Return a batch."""
    draw = np.random.default_rng(0)
    data = [mx.nd.array(draw.random((size, *shape))) for shape in case.shapes]
    return data, mx.nd.array(draw.integers(0, 10, size))


def timed(step: Callable[[], object], repeats: int) -> Iterator[float]:
    """Yield the seconds of steps, each from an idle engine to an idle engine, without the first two."""
    for number in range(repeats + 2):
        mx.nd.waitall()
        since = time.perf_counter()
        step()
        mx.nd.waitall()
        if number > 1:
            yield time.perf_counter() - since


def alone(case: Case, batch: tuple[list[Any], Any], repeats: int) -> list[float]:
    """Return the seconds of steps in one piece, on one rank."""
    whole = trainer_of(case, None, whole=True)
    return list(timed(lambda: whole.step(*batch), repeats))


def parts_of(case: Case, batch: tuple[list[Any], Any], repeats: int) -> dict[str, Any]:
    """Measure each part for a micro-batch, one after the other."""
    whole = trainer_of(case, None, whole=True)
    # The batch divided by micro-batches as one batch: each part as it runs in the pipeline.
    size = len(batch[1]) // case.micro_batches
    small = [each[:size] for each in batch[0]], batch[1][:size]
    watch = Watch()
    list(timed(lambda: whole.step(*small), 0))
    whole.observer = watch
    list(timed(lambda: whole.step(*small), repeats))
    count = len(case.parts)
    return {
        "forward_s": watch.medians(count, forward=True),
        "backward_s": watch.medians(count, forward=False),
    }


def update(trainer: PartTrainer, batch: tuple[list[Any], Any], repeats: int) -> float:
    """Return the seconds of a rank's update of its own parts, with what the store does for it."""
    trainer.step(*batch)
    gluon_trainer = trainer.trainer
    assert gluon_trainer is not None
    return median(timed(lambda: gluon_trainer.step(len(batch[1]), ignore_stale_grad=True), repeats))


def predict(case: Case, found: dict[str, Any], messages: tuple[Link, Handling], size: int) -> float:
    """Return the seconds that a step of both ranks should take."""
    link, handling = messages
    graph = case.graph(2)
    forms = trainer_of(case, "local", whole=True)._net.shape_all(  # noqa: SLF001  shapes are no user's matter
        [Form((size // case.micro_batches, *shape), "float32") for shape in case.shapes]
    )
    sizes = [forms[edge.source].num_bytes for edge in graph.edges]
    ends = [handling.seconds(each) for each in sizes]
    transfer = [max(link.seconds(each) - 2 * end, 0.0) for each, end in zip(sizes, ends)]
    times = Times(found["forward_s"], found["backward_s"], transfer, ends)
    return simulate(graph, case.schedule(graph), times).step + float(found["update_s"])


def together(
    trainer: PartTrainer, links: Links, batch: tuple[list[Any], Any], repeats: int
) -> tuple[list[float], Watch]:
    """Measure steps of both ranks, from when one begins until both have ended; then each part in them.

    Both read the same clock, and tell each other outside of the measured time.
    """

    def step() -> float:
        for root in range(links.size):
            links.broadcast(b"begin", root)
        own = [time.monotonic()]
        trainer.step(*batch)
        mx.nd.waitall()
        own.append(time.monotonic())
        told = [json.loads(links.broadcast(json.dumps(own).encode(), root)) for root in range(links.size)]
        begun, ended = zip(*told)
        return float(max(ended) - min(begun))

    steps = [step() for _ in range(repeats + 2)][2:]
    watch = trainer.observer = Watch()
    list(timed(step, repeats))
    return steps, watch


def main() -> None:
    """Do what the plan says and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where results go")
    parser.add_argument("--plan", type=json.loads, required=True, help="net, batch and steps, as JSON")
    options = parser.parse_args()
    folder, plan = options.results, options.plan
    batch = batch_of(make(plan["net"]), plan["batch"])
    # Before ranks have their own processors, and while the other waits for this one.
    first = rank_and_size(os.environ)[0] == 0
    steps = alone(make(plan["net"]), batch, plan["steps"]) if first else []
    kv = mx.kv.create("sync-mpi")
    links = own_links()
    assert links is not None
    messages = measure_link(links)
    # Both at once: what they share of the machine, such as its memory, slows them as it does in steps.
    case = make(plan["net"])
    found = parts_of(make(plan["net"]), batch, plan["steps"])
    trainer = trainer_of(case, kv)
    found["alone_s"], found["update_s"] = steps, update(trainer, batch, plan["steps"])
    found["link"], found["handling"] = (msgspec.to_builtins(each) for each in messages)
    found["predicted_s"] = predict(make(plan["net"]), found, messages, plan["batch"])
    links.broadcast(b"measured", 0)
    found["step_s"], watch = together(trainer, links, batch, plan["steps"])
    count = len(case.parts)
    own = [watch.medians(count, forward=forward) for forward in (True, False)]
    theirs = json.loads(links.broadcast(json.dumps(own).encode(), 1))
    found["parts"] = [part.name for part in case.parts]
    found["run_forward_s"], found["run_backward_s"] = (
        [mine or other for mine, other in zip(*each)] for each in zip(own, theirs)
    )
    if links.rank == 0:
        (folder / "measured.json").write_text(json.dumps(found))
    kv.barrier()


if __name__ == "__main__":
    main()
