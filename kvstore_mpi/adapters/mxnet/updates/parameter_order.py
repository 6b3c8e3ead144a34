"""Whether the Trainers of all workers have their parameters in one order.

A Trainer numbers its parameters, and the numbers are the keys. It sorts them by name as text, and MXNet
counts layers in their names: where one worker alone has made a layer more, say for an evaluation, its net
has dense9 and dense10, of which dense10 comes first, and the others have dense8 and dense9. Then key 0 is
another layer there, and gradients of different layers are summed.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kvstore_mpi.records import OptimizerNumbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange

_COUNTED = re.compile(r"(\D+)(\d+)")
_SHOWN = 4
"""Names that an error has, of what may be hundreds."""


def tell_order(exchange: Exchange, optimizer: Any) -> None:
    """Tell in which order an optimizer's owner has its parameters; if others differ, all get an error."""
    parameters = getattr(optimizer, "param_dict", {})
    # A script may give an optimizer parameters that are none of Gluon's, under keys of several types.
    names = [str(getattr(parameters[key], "name", key)) for key in sorted(parameters, key=str)]
    tell_names(exchange, names)


def tell_names(exchange: Exchange, names: Sequence[str]) -> None:
    """Tell the order of parameters of these names, once for each store.

    A Trainer has them when it opens its store, whether or not it then gives it the optimizer.
    """
    if not names or exchange.worker.num_workers == 1:
        return
    order = normalised(names)
    # Only what is the same but for its order is compared, by having its names in the place of the number of
    # an optimizer: other names say nothing of layers.
    of_these, digest = (zlib.crc32(repr(each).encode()) for each in (sorted(order), order))
    # Twice would be taken for another worker's.
    if of_these in exchange.orders_told:
        return
    exchange.orders_told.add(of_these)
    shown = {name: float(number) for number, name in enumerate(names[:_SHOWN])}
    exchange.worker.note_numbers(OptimizerNumbers(exchange.store, of_these, "", 0, digest, shown))
    exchange.worker.tell_numbers()


def normalised(names: Sequence[str]) -> list[str]:
    """Return names with the place of each number among those that follow the same letters.

    So that names are equal which stand for the same layer, wherever counting began: of dense9 and dense10
    the first becomes dense0, the second dense1, as of dense3 and dense4.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        for letters, number in _COUNTED.findall(name):
            numbers[letters].add(int(number))
    places = {
        (letters, number): place
        for letters, known in numbers.items()
        for place, number in enumerate(sorted(known))
    }
    return [
        _COUNTED.sub(lambda found: f"{found[1]}{places[found[1], int(found[2])]}", name) for name in names
    ]
