"""A server's arrays: the shards of the parameters, their optimizer states, and the sums.

Carries out what ``server/state.py`` decides. Knows nothing of messages' order, peers or sockets. All arrays
are flat; a slice is a view. Memory per byte of model: the value, the optimizer's state, gradients that wait
for other clients in the transport's buffers, and, under some rules, one copy per client (``ServerBases``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.server import shard_states
from kvstore_mpi.server.exchanges import Exchange
from kvstore_mpi.server.records import Update
from kvstore_mpi.server.rule import Rule
from kvstore_mpi.server.table_shards import TableShard
from kvstore_mpi.server_optimizers import FRESH, Origin, hyper_for
from kvstore_mpi.values.base import ServerBases, gradient_of
from kvstore_mpi.values.coding import RAW, Coded, numbered
from kvstore_mpi.values.dense import Dense, blocks, sum_of_squares
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import StatePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import Key, StoreTerms
    from kvstore_mpi.server.changed_rows import Marks
    from kvstore_mpi.server.records import Fill, Remember, Unit
    from kvstore_mpi.server_optimizers import OptimizerSpec
    from kvstore_mpi.values.layout import Layout

Array = np.ndarray[Any, Any]

Place = tuple[int, int]
"""Which array of a key: its number, and the first element that it is about."""


class DenseShard:
    """The elements of one key that this server owns."""

    __slots__ = ("bases", "key", "layout", "lo", "master", "optimizer", "shape", "states", "store", "value")

    def __init__(self, message: m.Create) -> None:
        """Make the arrays; their content is undefined until filled."""
        lo, hi = message.shard
        self.store = message.spec.store
        self.key: Key = message.spec.key
        self.shape = message.spec.shape
        self.lo = lo
        self.layout = Dense(message.spec.key, message.spec.dtype)
        # Not zeroed: pages are touched when the first value is written, and a model of gigabytes would
        # otherwise be written twice.
        self.value: Array = np.empty(hi - lo, message.spec.dtype)
        self.master: Array | None = None  # float32 copy of a float16 value, under multi-precision
        self.optimizer: ServerOptimizer | None = None
        self.bases: ServerBases | None = None
        self.states: dict[int, tuple[Array, ...]] = {}  # first element of a unit -> its state

    def view(self, array: Array, lo: int, hi: int) -> Array:
        """Return elements of the key out of an array of this shard."""
        return array[lo - self.lo : hi - self.lo]

    def place(self, lo: int, hi: int) -> slice:
        """Return where elements of the key are in the arrays of this shard."""
        return slice(lo - self.lo, hi - self.lo)

    def last_sent(self, client: int, lo: int, hi: int) -> Array:
        """Return what a client was sent last; the value, if the optimizer was replaced under way."""
        if self.bases is None:
            return self.view(self.value, lo, hi)
        return self.bases.of(client, self.place(lo, hi))

    def prepare(self, rule: Rule, lo: int, weight: Array) -> tuple[ServerOptimizer, tuple[Array, ...]]:
        """Return what updates the unit from element ``lo`` on, and the unit's state, which may be new."""
        # At the first update, not before: the shape is known with the key, which may come after the
        # optimizer.
        if self.optimizer is None:
            self.optimizer = rule.optimizer.bind(self.key, self.shape)
        state = self.states.get(lo)
        # By the first element: units of a whole key and of its slices never exist at the same time.
        if state is None:
            state = self.states[lo] = tuple(self.optimizer.init(weight))
        return self.optimizer, state

    def read(self, client: int, place: slice, payload: Any) -> Array:
        """Return what a client has pushed as an array."""
        if isinstance(payload, Coded):
            return self.decode(client, place, payload)
        return self.layout.read(payload, place.stop - place.start)

    def decode(self, client: int, place: slice, pushed: Coded) -> Array:
        """Return what a client has pushed in a coding."""
        if numbered(pushed.coding).gradients:
            return gradient_of(pushed, place.stop - place.start, self.value.dtype)
        if self.bases is None:
            raise MismatchError(f"client {client} compresses what it pushes, but the store does not")
        return self.bases.decode(client, place, pushed)


class ShardStore:
    """All shards of one server.

    Attributes:
        layouts: Those of the keys that it has, by number.
        tables: What it has of tables, by the number of the key.
    """

    def __init__(self, num_clients: int = 1, *, incarnation: int = 0) -> None:
        """Start without keys; ``incarnation``: how often this server has been started again."""
        self._num_clients = num_clients
        self._incarnation = incarnation
        self.layouts: dict[int, Layout] = {}
        self._shards: dict[int, DenseShard] = {}
        self.tables: dict[int, TableShard] = {}
        # By store and not by key: an optimizer may be given before the first key.
        self._rules: dict[int, Rule] = {}
        self._scratch = np.empty(0, np.uint8)

    # --- keys ---

    def allocate(self, message: m.Create, former: int | None = None) -> None:
        """Make the arrays of a key; their content is undefined until filled, or that of a former table."""
        if message.spec.partitions:
            table = self._add_table(message)
            if former is not None:
                table.take_over(self.tables[former])
            return
        shard = self._add(message)
        rule = self._rules.get(shard.store)
        # The optimizer may have come before the key, or come later: see ``set_optimizer``.
        if rule is not None and rule.terms.bases:
            shard.bases = ServerBases(shard.value, self._num_clients)

    def _add(self, message: m.Create) -> DenseShard:
        shard = self._shards[message.key_id] = DenseShard(message)
        self.layouts[message.key_id] = shard.layout
        return shard

    def _add_table(self, message: m.Create) -> TableShard:
        table = self.tables[message.key_id] = TableShard(message, self._incarnation)
        self.layouts[message.key_id] = table.layout
        return table

    def drop(self, keys: Iterable[int], stores: Iterable[int] = ()) -> None:
        """Free the arrays of keys, and the rules of stores."""
        for store in stores:
            self._rules.pop(store, None)
        for key_id in keys:
            for arrays in (self.layouts, self._shards, self.tables):
                arrays.pop(key_id, None)

    def fill(self, fill: Fill) -> None:
        """Set the initial value of a run of slices from a payload of its dtype.

        Raises:
            MismatchError: It has another size.
        """
        key_id, lo, hi = fill.run
        if key_id in self.tables:
            self.tables[key_id].fill(lo, fill.payload)
            return
        shard = self._shards[key_id]
        target = shard.view(shard.value, lo, hi)
        # Before a byte is written, and before bases take it for what all clients begin with.
        shard.layout.check(fill.payload, lo, hi)
        target[...] = shard.layout.read(fill.payload, target.size)
        # All clients begin with this value, so it is what each of them was sent last.
        if shard.bases is not None:
            shard.bases.fill(shard.place(lo, hi), target)

    def payload(
        self, key_id: int, lo: int, hi: int, *, stable: bool, client: int | None = None
    ) -> memoryview | bytes:
        """Return a slice's value for sending.

        Args:
            key_id: The key.
            lo: First element.
            hi: End of the elements.
            stable: It cannot change before the peer has it, so that no copy is needed: true of answers in
                sync mode, where the next update needs the peer's next push.
            client: Not the value, but what this client was last sent.
        """
        shard = self._shards[key_id]
        return shard.layout.payload(self._value(shard, lo, hi, client), stable=stable)

    def write_back(
        self, key_id: int, lo: int, hi: int, buffer: memoryview, client: int | None = None
    ) -> None:
        """Write a run's value, or what a client was last sent, into the key's buffer that a peer shares."""
        shard = self._shards[key_id]
        value = self._value(shard, lo, hi, client)
        shard.layout.write_back(value, buffer, lo)

    @staticmethod
    def _value(shard: DenseShard, lo: int, hi: int, client: int | None) -> Array:
        """Return elements as they are, or as a client was last sent them."""
        return shard.view(shard.value, lo, hi) if client is None else shard.last_sent(client, lo, hi)

    def remember(self, remember: Remember) -> None:
        """Note that a client is sent the values as they are now."""
        for key_id, lo, hi, _ in remember.entries:
            shard = self._shards[key_id]
            if shard.bases is not None:
                value = shard.view(shard.value, lo, hi)
                shard.bases.send(remember.client, shard.place(lo, hi), value, RAW)

    def take_coded(self, client: int, key_id: int, lo: int) -> Coded | None:
        """Return the answer to a client's coded push of a slice; one that is repeated is not coded."""
        shard = self._shards[key_id]
        return None if shard.bases is None else shard.bases.take_payload(client, lo - shard.lo)

    # --- optimizer ---

    def set_optimizer(
        self, number: int, spec: OptimizerSpec, optimizer: ServerOptimizer, terms: StoreTerms
    ) -> None:
        """Give a store its update rule; states start anew."""
        # States of another rule have other shapes, or the same shapes with another meaning.
        self._rules[number] = Rule(spec, optimizer, terms)
        for shard in self._shards.values():
            if shard.store == number:
                shard.states.clear()
                shard.optimizer = shard.master = None
                # Kept: a client that has not heard of the new rule refers to what it was sent last.
                bases = shard.bases or ServerBases(shard.value, self._num_clients)
                shard.bases = bases if terms.bases else None
        for table in self.tables.values():
            if table.store == number:
                table.forget_optimizer()

    def hold(self, unit: Unit) -> tuple[Any, float]:
        """Return the sum of what was pushed to a unit, for ``Update.summed``, and that of its squares."""
        pushers = sorted(unit.contributions)
        update = Update(unit, [unit.contributions[each] for each in pushers], None, 0, pushers)
        shard = self._shards.get(unit.key.key_id)
        if shard is None:
            table = self.tables[unit.key.key_id]
            merged = table.merge(update, self._rules.get(table.store), own=True)
            return merged, sum_of_squares(merged.values)
        lo, hi = unit.slices[0].lo, unit.slices[-1].hi
        # Memory of its own: the scratch is the next unit's.
        gradient = np.empty(hi - lo, shard_states.weight_of(shard, self._rules[shard.store], lo, hi).dtype)
        self._sum(update, shard, gradient)
        return gradient, sum_of_squares(gradient)

    def update(self, update: Update, into: Sequence[memoryview] = ()) -> None:
        """Sum the contributions in order and update the unit's weight, or assign the sum without a rule.

        Args:
            update: Of which unit, and with what.
            into: Peers' buffers of the key, which get the unit's new value.

        Raises:
            MismatchError: A payload does not decode.
            UsageError: The rule cannot update this key.
        """
        unit = update.unit
        shard = self._shards.get(unit.key.key_id)
        if shard is None:
            table = self.tables[unit.key.key_id]
            table.update(update, self._rules.get(table.store))
            return
        rule = self._rules.get(shard.store)
        if rule is None:
            self._assign(update, shard, into)
        else:
            self._step(update, shard, rule, into)

    def _assign(self, update: Update, shard: DenseShard, into: Sequence[memoryview]) -> None:
        lo, hi = update.unit.slices[0].lo, update.unit.slices[-1].hi
        value = shard.value[lo - shard.lo : hi - shard.lo]
        # Slice by slice, as they lie in what was pushed: a block would have parts of two.
        for part in blocks(hi - lo, whole=len(update.unit.slices) > 1):
            # Straight into the value: without a rule the sum is the value, and a copy of it would cost as
            # much as the sum.
            self._sum(update, shard, value[part], part)
            for buffer in into:
                shard.layout.write_back(value[part], buffer, lo + part.start)

    def _step(self, update: Update, shard: DenseShard, rule: Rule, into: Sequence[memoryview]) -> None:
        lo, hi = update.unit.slices[0].lo, update.unit.slices[-1].hi
        if shard.value.dtype.kind != "f":
            raise UsageError(
                f"key {shard.key!r} is {shard.value.dtype}: optimizers on servers need floating point; "
                "keep integer keys in a store without an optimizer"
            )
        # Updates are done in float32 where the value is float16 (``weight_of``): a step smaller than half a
        # unit in the last place would otherwise be lost each time.
        value = shard.view(shard.value, lo, hi)
        weight = shard_states.weight_of(shard, rule, lo, hi)
        terms, held = rule.terms, update.summed
        exchange: Exchange | None = None
        if terms.params:
            exchange = Exchange(update, shard.lo, shard.bases, shard.read)
        origin = FRESH
        if terms.params or terms.staleness:
            # The first client's: the rules that ask for a base are meant for pushes that come one by one.
            base = shard.last_sent(update.clients[0], lo, hi) if terms.pulls and shard.bases else None
            origin = Origin(len(update.clients), update.staleness, base)
        optimizer, state = shard.prepare(rule, lo, weight)
        hyper = hyper_for(update.hyper, shard.key, update.scheduled)
        # All at once: what looks at more than elements, has been summed before, or is decoded as a whole.
        at_once = terms.whole or terms.staleness or held is not None or terms.compress
        for part in blocks(hi - lo, whole=bool(at_once or len(update.unit.slices) > 1)):
            gradient = self._scratch_array(part.stop - part.start, weight.dtype) if held is None else held
            if exchange is not None:
                exchange.pseudo_gradient(gradient, weight[part], part, before=terms.before)
            elif held is None:
                self._sum(update, shard, gradient, part)
            own = state if gradient.size == hi - lo else tuple(array[part] for array in state)
            optimizer.update(weight[part], gradient, own, hyper, update.number, origin=origin)
            # What is sent is the value in the key's own type; the master is never seen by a worker.
            if weight.dtype != value.dtype:
                np.copyto(value[part], weight[part], casting="same_kind")
            # Now, and not when the answer leaves: the part is in the cache.
            for buffer in into:
                shard.layout.write_back(value[part], buffer, lo + part.start)
            if exchange is not None and not terms.before:
                exchange.send(value[part], part)

    def _scratch_array(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return memory for one gradient; it is overwritten by the next call."""
        num_bytes = size * dtype.itemsize
        # It grows and stays: fresh pages would cost more than the sum. Bytes: keys of all types share it.
        if self._scratch.nbytes < num_bytes:
            self._scratch = np.empty(num_bytes, np.uint8)
        return self._scratch[:num_bytes].view(dtype)

    @staticmethod
    def _sum(update: Update, shard: DenseShard, out: Array, part: slice | None = None) -> None:
        """Sum the contributions to a unit, or to a part of its slice, in the order of clients."""
        lo = update.unit.slices[0].lo
        read = shard.layout.read
        for position, (_, first, last) in enumerate(update.unit.slices):
            # Views into the transport's receive buffers: what clients push is read once, here.
            arrays = [
                read(pushed, last - first)
                if type(pushed := contribution.payloads[position]) is not Coded
                else shard.decode(client, shard.place(first, last), pushed)
                for client, contribution in zip(update.clients, update.contributions)
            ]
            if part is not None and part.stop - part.start < last - first:
                shard.layout.sum_into(out, [array[part] for array in arrays])
            else:
                shard.layout.sum_into(out[first - lo : last - lo], arrays)

    # --- snapshots ---

    def specs(self) -> Iterator[tuple[int, OptimizerSpec]]:
        """Yield the update rule of each store, as it was given."""
        yield from ((number, rule.spec) for number, rule in self._rules.items())

    def contents(self, key_id: int, since: Marks | None = None) -> list[tuple[Place, Array]]:
        """Return copies of a key's arrays, and where they belong; of a table what changed ``since``."""
        if key_id in self.tables:
            return list(self.tables[key_id].contents(since))
        return shard_states.contents(self._shards[key_id])

    def restore(
        self, message: m.Create, arrays: Iterable[tuple[Place, Array]], units: Iterable[Unit]
    ) -> None:
        """Make the arrays of a key with the contents that another server had.

        Raises:
            ConfigurationError: The states are not those of the store's optimizer.
        """
        if message.spec.partitions:
            self._add_table(message).restore(arrays)
            return
        shard = self._add(message)
        shard_states.restore(shard, arrays)
        # No snapshot has what clients were sent: they forget it, too, and next push what is not coded.
        rule = self._rules.get(shard.store)
        if rule is not None and rule.terms.bases:
            shard.bases = ServerBases(shard.value, self._num_clients)
        shard_states.check(shard, rule, {unit.slices[0].lo: unit.slices[-1].hi for unit in units})

    # --- optimizer states ---

    def states(self, units: Iterable[Unit]) -> Iterator[tuple[StatePart, memoryview]]:
        """Yield the optimizer states of units in parts of at most ``PART_BYTES``."""
        for unit in units:
            shard = self._shards.get(unit.key.key_id)
            if shard is None:
                yield from self.tables[unit.key.key_id].read_states(unit)
            else:
                yield from shard_states.read(shard, unit)

    def put_state(self, unit: Unit, part: StatePart, payload: Any) -> None:
        """Write one part of a state."""
        if part.key_id in self.tables:
            self.tables[part.key_id].write_state(unit, part, payload)
        else:
            shard_states.write(self._shards[part.key_id], unit, part, payload)
