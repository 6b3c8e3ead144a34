"""What the shell of a server does with its store, for servers without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.server.records import Allocate, Fill, Remember, Update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.server.shards import ShardStore


def carry_out(store: ShardStore, instructions: Iterable[Any]) -> None:
    """Do what a server's state has decided, as far as the store is concerned."""
    for each in instructions:
        if isinstance(each, Fill):
            store.fill(each)
        elif isinstance(each, Update):
            store.update(each)
        elif isinstance(each, Allocate):
            store.allocate(*each)
        elif isinstance(each, Remember):
            store.remember(each)
