"""One client that replays a model's compute as waits while its parameters, or gradients, really travel.

Started by ``exchange.py``. Writes ``worker<rank>.json``: when each measured step began, and what crossed
the link of its host.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from harness.netns import LINK
from harness.procfs import Load, job_pids
from p3_worker import Pace

from kvstore_mpi import Elastic
from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.adapters.mxnet.centers import Centers

ALPHA = 0.5


@dataclass(frozen=True)
class Plan:
    """What to replay; lists have one entry per tensor, in forward order.

    Attributes:
        mode: ``none``, ``mpi-sgd`` or ``elastic``.
        interval: Steps between two exchanges of a tensor.
        overlap: Steps for which compute goes on before a center is applied.
        compress: ``None``, ``int8`` or ``int4``.
        elements: Sizes of the tensors.
        forward_s: Seconds of compute that need the tensor.
        backward_s: Seconds of compute before its gradient is ready.
        warmup: Steps that are not measured.
        steps: Steps that are.
    """

    mode: str
    interval: int
    overlap: int
    compress: str | None
    elements: list[int]
    forward_s: list[float]
    backward_s: list[float]
    warmup: int
    steps: int


class Replay:
    """The tensors of the model, and a training loop without the training."""

    def __init__(self, plan: Plan) -> None:
        """Open the store that the mode needs, and give it the tensors."""
        self._plan = plan
        self.kv = KVStoreMPI("async" if plan.mode == "elastic" else "sync")
        draw = np.random.default_rng(self.kv.rank)
        self._weights = [
            mx.nd.array(draw.standard_normal(size, np.float32) * 0.02) for size in plan.elements
        ]
        self._gradients = [mx.nd.ones(size) for size in plan.elements] if plan.mode == "mpi-sgd" else []
        self._centers: Centers | None = None
        if plan.mode == "elastic":
            self._centers = Centers(
                self.kv, Elastic(ALPHA), plan.interval, plan.overlap, compress=plan.compress
            )
        for key, weight in enumerate(self._weights):
            if self._centers is not None:
                self._centers.join(key, [weight])
            elif plan.mode == "mpi-sgd":
                self.kv.init(key, weight)
        mx.nd.waitall()
        self._pace = Pace()

    def run(self) -> dict[str, Any]:
        """Do all steps; return when measured ones began and ended, and what they cost."""
        self.kv.barrier()
        self._pace = Pace()
        for _ in range(self._plan.warmup):
            self._step()
        self._settle()
        self._pace = Pace()
        pids = job_pids() if self.kv.rank == 0 else []
        load = Load.now(pids) if pids else None
        crossed, carried = link_bytes(), payload_bytes()
        marks = [time.monotonic()]
        for _ in range(self._plan.steps):
            self._step()
            marks.append(time.monotonic())
        spent = [asdict(load), asdict(Load.now(pids))] if load is not None else []
        self._settle()
        return {
            "marks": marks,
            "link_bytes": link_bytes() - crossed,
            "payload_bytes": payload_bytes() - carried,
            "load": spent,
        }

    def _settle(self) -> None:
        """Let all that all clients have asked for arrive, so that it counts where it belongs."""
        mx.nd.waitall()
        self.kv.barrier()

    def _step(self) -> None:
        for weight, seconds in zip(self._weights, self._plan.forward_s):
            weight.wait_to_read()
            self._pace.waited()
            self._pace.compute(seconds)
            self._pace.sleep()
        for key in reversed(range(len(self._weights))):
            self._pace.compute(self._plan.backward_s[key])
            self._pace.sleep()
            if self._gradients:
                self.kv.pushpull(key, [self._gradients[key]], out=[self._weights[key]], priority=-key)
        if self._centers is not None:
            self._centers.step(len(self._weights))


def link_bytes() -> int:
    """Return what has crossed this host's link so far, in both directions."""
    folder = Path("/sys/class/net") / LINK / "statistics"
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def payload_bytes() -> int:
    """Return what TCP has carried on this host's open connections, in both directions, each byte once."""
    told = subprocess.run(["ss", "-Htin"], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_(?:acked|received):(\d+)", told)))


def main() -> None:
    """Replay the plan and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="JSON file with the fields of Plan")
    parser.add_argument("--results", type=Path, default=Path(), help="directory for worker<rank>.json")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    replay = Replay(Plan(**json.loads(arguments.plan.read_text())))
    measured = replay.run()
    (arguments.results / f"worker{replay.kv.rank}.json").write_text(json.dumps(measured))
    mx.nd.waitall()
    replay.kv.barrier()


if __name__ == "__main__":
    main()
