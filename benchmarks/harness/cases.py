"""What is measured: the cases, how often each is repeated, the ways to run them, and the targets.

This file must not start processes, read clocks or import mxnet.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One list of keys that is pushed and pulled together.

    Attributes:
        name: What the table calls it.
        iterations: Timed round trips in one process.
        warmup: Round trips before them, which are dropped.
        elements: float32 elements of the single key, or 0 where ``model`` says the keys.
        model: Name in MXNet's model zoo whose trainable parameters are the keys, in forward order.
    """

    name: str
    iterations: int
    warmup: int
    elements: int = 0
    model: str = ""

    def shortened(self, divisor: int) -> Case:
        """Return the same case with fewer iterations, but at least two and one of warm-up."""
        return replace(
            self, iterations=max(2, self.iterations // divisor), warmup=max(1, self.warmup // divisor)
        )


@dataclass(frozen=True)
class Variant:
    """One way to run two workers and one server.

    Attributes:
        name: What the table calls it: clients x workers of each, and the transport.
        kv_store: Name given to ``mx.kv.create``; none for plain sockets.
        num_clients: MPI clients that the two workers form; 0 for what is not ours.
        transport: ``auto`` (shared memory within a host), ``ipc`` or ``tcp`` between the processes.
        leaders: Which ranks of a client speak to the servers.
        environment: What all processes of MXNet's own parameter server are told.
        encrypt: What goes over tcp.
        python: Interpreter whose package is measured; that of another tree for a comparison with it.
        calls: ``pushpull``, or ``push-pull`` for the two calls one after the other.
    """

    name: str
    kv_store: str
    num_clients: int
    transport: str
    leaders: str = "one"
    environment: Mapping[str, str] = field(default_factory=dict)
    encrypt: bool = False
    python: str = sys.executable
    calls: str = "pushpull"

    @property
    def is_stock(self) -> bool:
        """Return whether it is MXNet's own parameter server."""
        return self.num_clients == 0 and not self.is_bare

    @property
    def is_bare(self) -> bool:
        """Return whether it is plain sockets without any store."""
        return not self.kv_store

    @property
    def is_ours(self) -> bool:
        """Return whether it is a store of this package."""
        return self.num_clients > 0

    @property
    def can_span_hosts(self) -> bool:
        """Return whether its two workers may be on two hosts without MPI between them."""
        return self.num_clients != 1 and self.transport != "ipc" and not self.encrypt

    def of_tree(self, root: Path) -> Variant:
        """Return the same of another checkout, by the environment in its ``.venv``."""
        return replace(self, name=f"{self.name}@{root.name}", python=str(root / ".venv" / "bin" / "python"))

    @property
    def in_two_calls(self) -> Variant:
        """Return the same by ``push`` and then ``pull``."""
        return replace(self, name=self.name + IN_TWO_CALLS, calls="push-pull")

    def in_mode(self, mode: str) -> Variant:
        """Return the same with a store of another mode, ``sync`` or ``async``."""
        suffix = "" if mode == "sync" else f"-{mode}"
        return replace(self, name=self.name + suffix, kv_store=f"dist_{mode}_mpi")


IN_TWO_CALLS = "-two-calls"
"""How names of variants end that push and then pull; what they are compared with has the rest of it."""

NUM_WORKERS = 2

CASES = (
    Case("4KB", 300, 50, elements=1_000),
    Case("200KB", 200, 30, elements=50_000),
    Case("4MB", 60, 10, elements=1_000_000),
    Case("100MB", 8, 2, elements=25_000_000),
    Case("resnet50", 8, 2, model="resnet50_v1"),
    Case("vgg19", 3, 1, model="vgg19"),
)
"""Sizes count in thousands of bytes: 1,000 float32 elements are 4 KB."""

STOCK = Variant("stock", "dist_sync", 0, "tcp")
SOCKETS = Variant("sockets", "", 0, "tcp")
"""What the bytes alone take between hosts: a limit, and no peer."""

STOCK_IPC = Variant("stock-ipc", "dist_sync", 0, "ipc", environment={"DMLC_LOCAL": "1"})

VARIANTS = (
    STOCK,
    STOCK_IPC,
    SOCKETS,
    Variant("2x1", "dist_sync_mpi", 2, "auto"),
    Variant("2x1-ipc", "dist_sync_mpi", 2, "ipc"),
    Variant("2x1-tcp", "dist_sync_mpi", 2, "tcp"),
    Variant("2x1-encrypted", "dist_sync_mpi", 2, "tcp", encrypt=True),
    Variant("1x2", "dist_sync_mpi", 1, "auto"),
    Variant("1x2-all", "dist_sync_mpi", 1, "auto", "all"),
    Variant("1x2-ipc", "dist_sync_mpi", 1, "ipc"),
    Variant("1x2-tcp", "dist_sync_mpi", 1, "tcp"),
)


def peers_of(variant: str) -> tuple[str, ...]:
    """Return the variants that one is compared with, by its name: those whose bytes take the same way.

    Shared memory, which stock has not, is set beside both. Between hosts the sockets alone are a limit for
    all that goes by TCP.
    """
    words = variant.partition("@")[0].split("-")
    if words[0] == STOCK.name:
        return (SOCKETS.name,)
    if words[0] == SOCKETS.name:
        return (STOCK.name,)
    if "ipc" in words:
        return (STOCK_IPC.name,)
    if "tcp" in words or "encrypted" in words:
        return (STOCK.name, SOCKETS.name)
    return (STOCK.name, STOCK_IPC.name)


RATIO_TARGETS = {"4KB": 1.0, "200KB": 1.0, "4MB": 2.5, "100MB": 6.0, "resnet50": 3.0}
"""Least median of a peer's time over ours, with two clients of one worker each, for the better peer, within
one host."""

TWO_HOSTS_TARGETS = {"4KB": 0.8, "200KB": 1.0, "4MB": 1.5, "100MB": 2.5, "resnet50": 1.5, "vgg19": 2.0}
"""The same between two hosts."""

TWO_CALLS_TARGET = 1.1
"""Most time of push and then pull, over that of pushpull."""

MEMORY_MODEL = Case("memory", 0, 0, model="resnet152_v1")
"""60 million parameters, 241 MB: so much that fixed overheads no longer matter."""

MEMORY_TARGETS = {"server": 3.0, "worker": 2.0}
"""Most bytes of peak memory per byte of model, above what the process held before the keys were made."""

_Named = TypeVar("_Named", bound=Case | Variant)


def by_names(names: str, known: Sequence[_Named]) -> list[_Named]:
    """Return the cases or variants that a comma-separated list names, in its order.

    Raises:
        ValueError: A name is unknown.
    """
    table = {item.name: item for item in known}
    unknown = [name for name in names.split(",") if name not in table]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; known are {', '.join(table)}")
    return [table[name] for name in names.split(",")]
