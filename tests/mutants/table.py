"""What a mutant is, and the list of all of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

AREAS = (
    "p3",
    "wire",
    "worker",
    "server",
    "scheduler",
    "values",
    "closings",
    "collectives",
    "hybrid",
    "planner",
    "step_costs",
    "model_parallel",
    "placements",
    "optimizers",
    "rows",
    "pieces",
    "row_collectives",
    "tables",
    "adapter",
    "push_pull",
    "launcher",
    "hosts",
    "files",
    "resumption",
    "strangers",
    "seeing",
    "operations",
    "beside_shells",
)
"""Each is a file beside this one with a list ``MUTANTS``."""


class Mutant(NamedTuple):
    """A change of one line.

    Attributes:
        what: What is wrong then, in a few words; names the mutant.
        path: The file, from the root of the repository.
        line: Text of the line that stands in the file exactly once: the whole line or a part of it.
        instead: What stands there then.
        tests: Which tests must notice it: files or tests, from ``tests/``.
    """

    what: str
    path: str
    line: str
    instead: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """Return the source with the change.

        Raises:
            LookupError: The line is not there exactly once.
        """
        found = source.count(self.line)
        if found != 1:
            raise LookupError(
                f"mutant {self.what!r} is stale: {self.line!r} stands {found} times in {self.path}; "
                "give it the line as it is now, in tests/mutants"
            )
        return source.replace(self.line, self.instead)


def all_mutants() -> dict[str, Mutant]:
    """Return all mutants by name: the area, and what is wrong."""
    return {f"{area}: {each.what}": each for area in AREAS for each in _of(area)}


def _of(area: str) -> Iterator[Mutant]:
    mutants: list[Mutant] = importlib.import_module(f"mutants.{area}").MUTANTS
    yield from mutants
