"""The sets of operations that a prefix of stages can hold: ideals of the forward pass. Pure.

Nodes of one color become one group, as do groups that wait for each other; what takes no time joins a
neighbour. An ideal has, with each group, all groups that come before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.planner.placement.stages import Pipeline


@dataclass
class Groups:
    """Nodes that share a device, and in which order groups can be computed.

    Attributes:
        of: Group of each node; groups are in order.
        before: For each group a set of bits: the groups that come right before it.
    """

    of: list[int]
    before: list[int]

    @property
    def full(self) -> int:
        """The ideal with all groups."""
        return (1 << len(self.before)) - 1


def groups_of(pipeline: Pipeline) -> Groups:
    """Return the groups of a pipeline.

    An edge between nodes of the forward pass orders their groups; one between nodes of the backward pass
    orders them the other way round if one of the groups has no forward pass.
    """
    first: dict[int, int] = {}
    home = [
        each if node.color is None else first.setdefault(node.color, each)
        for each, node in enumerate(pipeline.nodes)
    ]
    while True:
        home = _without_circles(home, _pairs(pipeline, home))
        merged = _without_trifles(pipeline, home)
        if merged == home:
            break
        home = merged
    order, pairs = _sorted(home, _pairs(pipeline, home))
    number = {group: i for i, group in enumerate(order)}
    before = [0] * len(order)
    for one, other in pairs:
        before[number[other]] |= 1 << number[one]
    return Groups([number[group] for group in home], before)


def ideals_of(groups: Groups, most: int) -> list[int] | None:
    """Return all ideals as sets of bits, or ``None`` if there are more than ``most``."""
    count = len(groups.before)
    followers: list[list[int]] = [[] for _ in range(count)]
    for group, before in enumerate(groups.before):
        for one in _bits(before):
            followers[one].append(group)
    ready = sum(1 << group for group in range(count) if not groups.before[group])
    level = {0: ready}
    found = [0]
    while level:
        following: dict[int, int] = {}
        for ideal, can in level.items():
            for group in _bits(can):
                larger = ideal | 1 << group
                if larger not in following:
                    new = sum(1 << each for each in followers[group] if not groups.before[each] & ~larger)
                    following[larger] = (can & ~(1 << group)) | new
        found.extend(following)
        if len(found) > most:
            return None
        level = following
    return found


def prefixes_of(groups: Groups) -> list[int]:
    """Return the ideals along one order of the groups."""
    return [(1 << count) - 1 for count in range(len(groups.before) + 1)]


def _bits(number: int) -> Iterable[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _pairs(pipeline: Pipeline, home: list[int]) -> set[tuple[int, int]]:
    """Return which group comes before which."""
    nodes = pipeline.nodes
    forward = {home[each] for each, node in enumerate(nodes) if not node.backward}
    pairs = set()
    for source, target in pipeline.edges:
        one, other = home[source], home[target]
        if one == other:
            continue
        if not nodes[source].backward and not nodes[target].backward:
            pairs.add((one, other))
        elif nodes[source].backward and nodes[target].backward and not {one, other} <= forward:
            pairs.add((other, one))
    return pairs


def _sorted(home: list[int], pairs: set[tuple[int, int]]) -> tuple[list[int], set[tuple[int, int]]]:
    """Return the groups in an order, with the pairs."""
    waits = dict.fromkeys(home, 0)
    followers: dict[int, list[int]] = {}
    for one, other in sorted(pairs):
        waits[other] += 1
        followers.setdefault(one, []).append(other)
    order = [group for group, count in waits.items() if not count]
    for group in order:  # grows
        for other in followers.get(group, ()):
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order, pairs


def _without_circles(home: list[int], pairs: set[tuple[int, int]]) -> list[int]:
    """Return the groups after those that wait for each other have become one."""
    order, _ = _sorted(home, pairs)
    rest = set(home) - set(order)
    if not rest:
        return home
    followers: dict[int, set[int]] = {group: set() for group in rest}
    for one, other in pairs:
        if one in rest and other in rest:
            followers[one].add(other)
    reach = {group: _reached(group, followers) for group in rest}
    joined = {
        group: min([group, *(other for other in reach[group] if group in reach[other])]) for group in rest
    }
    return [joined.get(group, group) for group in home]


def _reached(group: int, followers: dict[int, set[int]]) -> set[int]:
    found: set[int] = set()
    waiting = [group]
    while waiting:
        for other in followers[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def _without_trifles(pipeline: Pipeline, home: list[int]) -> list[int]:
    """Return the groups after some that take no time have joined a neighbour, where that costs nothing.

    Let v take no time, and w be the only group right before it, or the only one right after it. On another
    device than w's, v adds to both devices' transfers what only the two of them exchange. On w's device it
    adds at most what it exchanges with others alone. If that is not more, v may as well be there. Only
    memory could speak against it.
    """
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for one, other in _pairs(pipeline, home):
        after.setdefault(one, set()).add(other)
        before.setdefault(other, set()).add(one)
    results = _results(pipeline, home)
    joins: dict[int, int] = {}
    touched: set[int] = set()
    for group in sorted(_free(pipeline, home)):
        around = before.get(group, set()) | after.get(group, set())
        around |= {each for maker, readers, _ in results[group] for each in (maker, *readers)}
        if ({group} | around) & touched:  # what has just joined another group has changed its neighbours
            continue
        for near in (after.get(group, set()), before.get(group, set())):
            if len(near) == 1 and _harmless(group, next(iter(near)), results[group]):
                joins[group] = next(iter(near))
                touched |= {group, *around}
                break
    return [joins.get(each, each) for each in home]


def _harmless(group: int, near: int, results: list[tuple[int, frozenset[int], float]]) -> bool:
    """Return whether a group that takes no time may always be where its neighbour is."""
    pair = {group, near}
    saved = added = 0.0
    for maker, readers, seconds in results:
        if maker in pair and readers <= pair:
            saved += seconds
        elif near not in readers and maker != near:
            added += seconds
    return added <= saved


def _results(pipeline: Pipeline, home: list[int]) -> dict[int, list[tuple[int, frozenset[int], float]]]:
    """Return the results that each group makes for others or reads from others: maker, readers, seconds."""
    found: dict[int, list[tuple[int, frozenset[int], float]]] = {group: [] for group in home}
    for each, readers in enumerate(pipeline.readers()):
        maker = home[each]
        groups = frozenset(home[reader] for reader in readers)
        for group in {maker, *groups} if groups - {maker} else ():
            found[group].append((maker, groups, pipeline.nodes[each].transfer_seconds))
    return found


def _free(pipeline: Pipeline, home: list[int]) -> set[int]:
    """Return the groups that take no time on any device."""
    short = sum(node.memory_bytes for node in pipeline.nodes) > pipeline.memory_bytes
    busy = {
        group
        for group, node in zip(home, pipeline.nodes)
        if node.accelerator_seconds
        or node.processor_seconds
        or not node.accelerated
        or (short and node.memory_bytes)
    }
    return set(home) - busy
