"""Runs that follow from a seed, in tests and on the command line: an error tells how to repeat them."""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Run(Protocol):
    """What a seed makes."""

    @property
    def plan(self) -> Any:
        """What is going to happen, to be shown with an error."""
        ...

    def run(self) -> None:
        """Do it, and check what must be true in the end."""
        ...


_Run = TypeVar("_Run", bound=Run)


def carry_out(run: _Run, seed: int, command: str) -> _Run:
    """Carry out a run and return it.

    Args:
        run: What the seed makes.
        seed: The seed.
        command: Module and options that make the same run.

    Raises:
        AssertionError: Something went wrong; the message tells how to repeat it.
    """
    try:
        run.run()
    except Exception as error:
        text = f"seed {seed}: {error!r}\nrepeat with: python -m {command}\n{run.plan}"
        raise AssertionError(text) from error
    return run


def check(holds: Any, text: str) -> None:
    """State what must be true; unlike ``assert``, also under ``python -O``."""
    if not holds:
        raise AssertionError(text)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of a range of seeds; other options are named as ``run_seed``'s arguments."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("first", type=int)
    made.add_argument("end", type=int, nargs="?")
    return made


def run_range(options: argparse.Namespace, run_seed: Callable[..., Any]) -> None:
    """Run the seeds that the command line names, and say how fast."""
    others = vars(options)
    first, end = others.pop("first"), others.pop("end")
    logging.disable(logging.ERROR)
    seeds = range(first, end or first + 1)
    start = time.perf_counter()
    for seed in seeds:
        run_seed(seed, **others)
    print(f"{len(seeds) / (time.perf_counter() - start):.0f} schedules/s")  # noqa: T201  a command's output
