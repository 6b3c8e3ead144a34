"""Draws jobs at random: a layout, options, and cases to train; the same seed gives the same job.

What is drawn is allowed together; what contradicts each other is refused, and tested elsewhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvstore_mpi.config import COLLECTIVES, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUTS = (
    # clients, workers in each, servers
    *((1, 1, servers) for servers in (0, 1, 2)),
    *((1, 2, servers) for servers in (0, 1, 2, 3)),
    *((1, 3, servers) for servers in (0, 1, 2)),
    *((1, 4, servers) for servers in (0, 2)),
    *((2, 1, servers) for servers in (1, 2)),
    *((2, 2, servers) for servers in (1, 2)),
    (3, 1, 1),
)
PARTS = ("dense", "large", "rows", "one", "odd", "half", "double", "frozen")
"""Parts of a net; ``train_drawn.py`` makes them."""

OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "lazy_update": False}),
    ("adam", {"learning_rate": 0.01, "wd": 0.01}),
    ("adam", {"learning_rate": 0.01, "lazy_update": False}),
    ("adagrad", {"learning_rate": 0.1}),
    ("ftrl", {"learning_rate": 0.1, "lamda1": 0.01}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("rmsprop", {"learning_rate": 0.01, "wd": 0.01}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("lamb", {"learning_rate": 0.01, "wd": 0.01}),
    ("adamax", {"learning_rate": 0.01}),
    ("adadelta", {}),
    ("ftml", {"learning_rate": 0.01}),
)
OF_ROWS = {"sgd", "adam", "adagrad", "ftrl"}
"""MXNet's optimizers that take row-sparse gradients."""

OF_SERVERS = {*OF_ROWS, "nag", "rmsprop"}
"""Those that servers have of their own, so that keys may have routes."""

OF_HALVES = {"sgd", "adam", "nag"}
"""Those that keep float32 weights for float16 ones; LAMB's depend on MXNET_OPTIMIZER_AGGREGATION_SIZE."""


@dataclass(frozen=True)
class Case:
    """What a store trains, and how.

    Attributes:
        optimizer, numbers: MXNet's optimizer by name, and its arguments.
        schedule: Of the learning rate: none, ``factor`` or ``cosine``.
        parts: Of the net.
        update_on_kvstore: As a Trainer's, or ``None``.
        by_hand: The script pushes and pulls itself, without a Trainer.
        optimizer_first: By hand it sets the optimizer before it initialises the first key.
        passes: Backward passes whose gradients are added up before a step.
        contexts: Devices of a worker.
        multiplied: Biases and odd shapes have multipliers of their own.
        clip: The bound of the gradient's global norm; 0 without.
        new_rate: The learning rate from the third step on; 0 if it stays.
    """

    optimizer: str
    numbers: dict[str, Any]
    schedule: str = ""
    parts: Sequence[str] = ("dense",)
    update_on_kvstore: bool | None = None
    by_hand: bool = False
    optimizer_first: bool = False
    passes: int = 1
    contexts: int = 1
    multiplied: bool = False
    clip: float = 0.0
    new_rate: float = 0.0


@dataclass(frozen=True)
class Job:
    """A layout, mpilaunch's options for it, and what to train one after the other."""

    layout: tuple[int, int, int]
    options: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)


def job(seed: int) -> Job:
    """Draw a job."""
    draw = random.Random(seed)
    layout = draw.choice(LAYOUTS)
    found = options(draw, layout)
    return Job(layout, found, [case(draw, routed="--routes" in found) for _ in range(4)])


def case(draw: random.Random, *, routed: bool) -> Case:
    """Draw what a store trains, in a job whose keys may have routes that the user has chosen."""
    optimizer, numbers = draw.choice([each for each in OPTIMIZERS if not routed or each[0] in OF_SERVERS])
    parts = [part for part in PARTS if part in possible(optimizer) and draw.random() < 0.6]
    numbers = dict(numbers)
    if "half" in parts:
        numbers["multi_precision"] = True
    if draw.random() < 0.3:
        numbers["clip_gradient"] = 0.05
    by_hand = draw.random() < 0.25
    update_on_kvstore = None if by_hand else draw.choice([None, True, False])
    if update_on_kvstore is False:
        parts = [part for part in parts if part != "rows"]  # MXNet's Trainer refuses it
    schedule = draw.choice(["", "", "factor", "cosine"]) if "learning_rate" in numbers else ""
    changes = not by_hand and not schedule and "learning_rate" in numbers and draw.random() < 0.3
    # The norm of a float16 gradient is another one if it is rounded in parts.
    may_clip = not (routed or by_hand or update_on_kvstore is False or "half" in parts)
    clips = may_clip and draw.random() < 0.3
    return Case(
        optimizer,
        numbers,
        schedule,
        parts if {*parts} - {"frozen"} else ["dense"],
        update_on_kvstore,
        by_hand,
        optimizer_first=routed or draw.random() < 0.5,
        passes=1 if by_hand or "rows" in parts else draw.choice([1, 1, 2]),
        contexts=draw.choice([1, 1, 2]),
        multiplied=not by_hand and draw.random() < 0.3,
        clip=draw.choice([0.05, 0.5, 1e4]) if clips else 0.0,
        new_rate=0.02 if changes else 0.0,
    )


def possible(optimizer: str) -> set[str]:
    """Return the parts of a net that an optimizer of MXNet updates."""
    without = set() if optimizer in OF_ROWS else {"rows"}
    return {*PARTS} - without - (set() if optimizer in OF_HALVES else {"half", "double"})


def options(draw: random.Random, layout: tuple[int, int, int]) -> list[str]:
    """Draw mpilaunch's options for a layout."""
    clients, ranks, servers = layout
    found = hosts(draw, layout)
    if ranks > 1:
        found += maybe(draw, "--collective", *COLLECTIVES)
        found += maybe(draw, "--env", "MPIR_CVAR_NUM_CLIQUES=2")
        found += maybe(draw, "--collective-profile", "measure", share=0.1)
    if servers:
        found += maybe(draw, "--leaders", "all", "one", "auto")
        for setting in settings(draw):
            found += ["--set", setting]
    if servers and ranks > 1:
        found += maybe(draw, "--lookups", "together", share=0.2)
    if servers and clients == 1:
        found += maybe(draw, "--dense", "workers", "servers", "auto")
        found += maybe(draw, "--routes", *ROUTES)
    found += maybe(draw, "--env", "OMP_NUM_THREADS=2", share=0.2)
    found += maybe(draw, "--env", "MXNET_CPU_WORKER_NTHREADS=1", share=0.2)
    found += maybe(draw, "--env", "MXNET_OPTIMIZER_AGGREGATION_SIZE=1", share=0.2)
    found += maybe(draw, "--env", "MXNET_ENGINE_TYPE=ThreadedEngine", share=0.1)
    return found


ROUTES = ("*=servers", "*=allreduce", "*rows*=rows,*dense*=servers", "*rows*=allreduce", "*bias=servers")


def hosts(draw: random.Random, layout: tuple[int, int, int]) -> list[str]:
    """Draw where processes run, and how they reach each other: one host, or one by two addresses."""
    clients, ranks, servers = layout
    if clients * ranks == 1 or draw.random() < 0.6:
        return maybe(draw, "--transport", "tcp", "ipc") if servers else []
    slots = -(-clients * ranks // 2)
    found = ["--hosts", f"127.0.0.1:{slots},127.0.0.2:{slots}"]
    if servers:
        found += maybe(draw, "--server-hosts", "127.0.0.2", "first", "spread", share=0.7)
        found += ["--encrypt"] if draw.random() < 0.3 else []
    return found


def settings(draw: random.Random) -> list[str]:
    """Draw settings of jobs with servers."""
    values = {
        "slice_elements": ("41", "1000", "50000"),
        "schedule": SCHEDULES,
        "placement": ("least_loaded", "round_robin"),
        "window_bytes": ("1000", "100000", "auto"),
        "partitions": ("1", "2", "5", "37"),
        "heartbeat": ("0.2",),
    }
    return [f"{name}={draw.choice(of)}" for name, of in values.items() if draw.random() < 0.3]


def maybe(draw: random.Random, option: str, *values: str, share: float = 0.4) -> list[str]:
    """Draw whether there is an option, and which value it has."""
    return [option, draw.choice(values)] if draw.random() < share else []
