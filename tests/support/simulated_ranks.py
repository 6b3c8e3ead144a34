"""All ranks of a collective in one thread: messages arrive in any order that a seed chooses.

A message leaves when its receiver waits for it and not before, which is the least that MPI promises: what
does not deadlock here does not deadlock there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.executor import LibrarySum, Transfers
from kvstore_mpi.tensor_collectives.steps import Barrier

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.tensor_collectives.executor import Wait

Array = np.ndarray[Any, Any]


class _Rank:
    """One rank, and what it waits for."""

    def __init__(self, number: int, run: Iterator[Wait]) -> None:
        self.number = number
        self.sends: list[tuple[int, Array]] = []
        self.receives: list[tuple[int, Array]] = []
        self.barrier: tuple[int, ...] = ()
        self.sum: Array | None = None
        self.ended = False
        self._run = run
        self.resume()

    def resume(self) -> None:
        """Go on to the next wait."""
        wait = next(self._run, None)
        if wait is None:
            self.ended = True
        elif isinstance(wait, Transfers):
            self.sends, self.receives = list(wait.sends), list(wait.receives)
        elif isinstance(wait, LibrarySum):
            self.sum = wait.array
        else:
            assert isinstance(wait, Barrier)
            self.barrier = wait.ranks

    def __str__(self) -> str:
        to, source = ([peer for peer, _ in each] for each in (self.sends, self.receives))
        return f"rank {self.number} sends to {to}, receives from {source}, is at barrier {self.barrier}"


def run_together(runs: Sequence[Iterator[Wait]], choice: random.Random) -> list[int]:
    """Run all ranks to their end; return how many bytes each has sent.

    Raises:
        RuntimeError: They wait for each other for ever, or two that exchange disagree about a size.
    """
    ranks = [_Rank(number, run) for number, run in enumerate(runs)]
    sent = [0] * len(ranks)
    while not all(rank.ended for rank in ranks):
        _add_up(ranks)
        possible: list[_Rank | tuple[_Rank, _Rank]] = [*_deliverable(ranks), *_free(ranks)]
        if not possible:
            raise RuntimeError("deadlock: " + "; ".join(str(rank) for rank in ranks if not rank.ended))
        act = choice.choice(possible)
        if isinstance(act, tuple):
            sent[act[0].number] += _deliver(*act)
        else:
            act.barrier = ()
            act.resume()
    return sent


def _deliverable(ranks: Sequence[_Rank]) -> list[tuple[_Rank, _Rank]]:
    """Return the pairs of which one sends what the other waits for."""
    return [
        (rank, ranks[peer])
        for rank in ranks
        for peer in dict.fromkeys(peer for peer, _ in rank.sends)
        if any(source == rank.number for source, _ in ranks[peer].receives)
    ]


def _free(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Return who can go on; a barrier opens when all are at it, and stays open for those."""
    free = []
    for rank in ranks:
        if rank.ended or rank.sends or rank.receives or rank.sum is not None:
            continue
        if not rank.barrier:
            free.append(rank)
        elif all(ranks[other].barrier == rank.barrier for other in rank.barrier):
            for other in rank.barrier:
                ranks[other].barrier = ()
            free.append(rank)
    return free


def _add_up(ranks: Sequence[_Rank]) -> None:
    """Give all ranks the library's sum if all wait for it; they go on at any time."""
    arrays = [rank.sum for rank in ranks if rank.sum is not None]
    if len(arrays) < len(ranks):
        return
    total = np.sum(arrays, axis=0, dtype=arrays[0].dtype)
    for rank, array in zip(ranks, arrays):
        array[...] = total
        rank.sum = None


def _deliver(sender: _Rank, receiver: _Rank) -> int:
    """Carry the first message that is on its way between two ranks; return its bytes."""
    index = next(i for i, (peer, _) in enumerate(sender.sends) if peer == receiver.number)
    _, data = sender.sends.pop(index)
    index = next(i for i, (peer, _) in enumerate(receiver.receives) if peer == sender.number)
    _, target = receiver.receives.pop(index)
    if data.nbytes != target.nbytes:
        raise RuntimeError(f"{sender} sends {data.nbytes} bytes where {target.nbytes} are awaited")
    target[...] = data
    return int(data.nbytes)
