"""Which combinations a test has in every run, and which thorough runs add, all of them or a sample."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

ONE_OF_MANY = (pytest.mark.thorough, pytest.mark.sampled)
"""Marks of a combination that differs little from others of its test; a thorough run may take a sample."""


def often(chosen: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values of one parameter; all but the ``chosen`` are thorough, and sampled."""
    return _marked(chosen, [(each,) for each in values], [(each,) for each in chosen])


def often_of(chosen: Collection[tuple[Any, ...]], *values: Iterable[Any]) -> list[Any]:
    """Return all combinations of several parameters; all but the ``chosen`` are thorough, and sampled."""
    return _marked(chosen, list(itertools.product(*values)), chosen)


def _marked(
    named: Collection[Any], every: Sequence[tuple[Any, ...]], chosen: Collection[tuple[Any, ...]]
) -> list[Any]:
    if any(each not in every for each in chosen):
        raise ValueError(f"not all of these are among the values: {named}")
    return [pytest.param(*each, marks=() if each in chosen else ONE_OF_MANY) for each in every]


def left_out(combinations: Mapping[str, Sequence[str]], one_in: int, seed: str) -> set[str]:
    """Return what a sample leaves out.

    Args:
        combinations: Of each test, those that are sampled; or of each group or folder, its tests.
        one_in: Of each one in this number is run, and at least one.
        seed: Other seeds give other samples.
    """
    out: set[str] = set()
    for test, all_of_it in sorted(combinations.items()):
        kept = -(-len(all_of_it) // one_in)
        out.update(random.Random(f"{seed} {test}").sample(sorted(all_of_it), len(all_of_it) - kept))
    return out
