"""The parts of a net that is one block: its operations, in the groups that are worth dividing.

What MXNet traces of the block is cut into pieces, each of which becomes a block of its own over the same
parameters. A part has the name of its last operation, without what all names begin with.
"""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.parts.graph import names_of
from kvstore_mpi.adapters.mxnet.parts.segments import Part
from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.pipelines.chains import Result, chains

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_Node = dict[str, Any]
"""An operation or a variable, as MXNet writes it in JSON."""

_FILLS = frozenset({"_zeros", "_ones", "_full", "_arange", "_linspace", "_eye"})
"""Operations whose results are the same wherever they are computed, and cheap."""


def parts_of(net: mx.gluon.HybridBlock, num_inputs: int = 1) -> list[Part]:
    """Return a net in as many parts as there are chains of operations in it, all of them on rank 0.

    ``mpilaunch plan`` measures and places them; with ``mpilaunch --plan`` a ``PartTrainer`` has them where
    the plan has.

    Args:
        net: Initialised, though shapes may wait for the first batch; called once before, it draws its
            values in its own order. Its parameters are the parts': after ``PartTrainer.gather`` it can be
            evaluated and saved.
        num_inputs: How many arrays a batch has: the net is called with ``data``, ``data1``, ...

    Raises:
        UsageError: The net has several outputs.
    """
    batch = ["data", *(f"data{number}" for number in range(1, num_inputs))]
    symbol = net(*map(mx.sym.var, batch))
    if isinstance(symbol, (list, tuple)) or len(symbol.list_outputs()) != 1:
        raise UsageError(f"{net.name} has several outputs: join them, or make parts of it by hand")
    graph = json.loads(symbol.tojson())
    nodes: list[_Node] = graph["nodes"]
    head, output, _ = graph["heads"][0]
    reads, groups = _groups(nodes, batch, (head, output))
    titles = _titles(names_of(nodes), groups)
    params = net.collect_params()
    dtype = next((param.dtype for param in params.values()), np.float32)
    parts = []
    for group in groups:
        piece = _Piece(nodes, group, batch=batch, titles=titles, parted=reads)
        text = json.dumps({"attrs": graph["attrs"], **piece.graph(_result(reads, group, (head, output)))})
        inputs = [mx.sym.var(name, dtype=dtype) for name in piece.inputs]
        block = mx.gluon.SymbolBlock(mx.sym.load_json(text), inputs, params=params)
        parts.append(Part(titles[group[-1]], block, 0, tuple(piece.inputs)))
    return parts


def part_names(symbol: mx.sym.Symbol, inputs: Collection[str]) -> dict[str, str]:
    """Return the name of the part that each operation of a symbol is computed in, by the operation's name.

    They are the parts that ``parts_of`` makes of the same net. What does not depend on the inputs is
    counted in the first part that takes it.

    Args:
        symbol: Of one output.
        inputs: Names of the arrays of a batch.
    """
    graph = json.loads(symbol.tojson())
    nodes: list[_Node] = graph["nodes"]
    names = names_of(nodes)
    head, output, _ = graph["heads"][0]
    reads, groups = _groups(nodes, inputs, (head, output))
    titles = _titles(names, groups)
    home = {number: titles[group[-1]] for group in groups for number in group}
    for number in sorted(names, reverse=True):
        for source, _, _ in nodes[number]["inputs"]:
            if source in names and source not in reads and number in home:
                home[source] = home[number]
    return {names[number]: part for number, part in home.items()}


def _titles(names: Mapping[int, str], groups: Sequence[Sequence[int]]) -> dict[int, str]:
    """Return the name of each part, by the number of its last operation.

    It is that operation's, without what all have in common: Gluon counts the nets that a process has made.
    """
    whole = {group[-1]: names[group[-1]] for group in groups}
    ends = min(whole.values()), max(whole.values())
    same = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ends)))
    common = same.rpartition("_")[0] if len(whole) > 1 else ""
    return {number: name.removeprefix(f"{common}_") for number, name in whole.items()}


def _groups(
    nodes: Sequence[_Node], batch: Collection[str], last: Result
) -> tuple[dict[int, list[Result]], list[list[int]]]:
    """Return what operations take of others, and the groups of them that are worth dividing."""
    reads = _reads(nodes, batch)
    return reads, chains(reads, last, _shared(nodes, reads))


def _reads(nodes: Sequence[_Node], batch: Collection[str]) -> dict[int, list[Result]]:
    """Return what operations take of others, of those that depend on the batch."""
    reads: dict[int, list[Result]] = {}
    for number, node in enumerate(nodes):
        sources = [(source, output) for source, output, _ in node["inputs"]]
        own = [result for result in sources if result[0] in reads]
        if own or any(nodes[source]["name"] in batch for source, _ in sources):
            reads[number] = own
    return reads


def _shared(nodes: Sequence[_Node], reads: Mapping[int, Sequence[Result]]) -> list[set[int]]:
    """Return operations that take the same of what does not depend on the batch.

    A piece computes that for itself, and two that draw random numbers, such as a mask over weights, would
    not draw the same.
    """
    takers: dict[int, set[int]] = {}
    for number in reversed(range(len(nodes))):
        own = {number} if number in reads else takers.get(number, set())
        for source, _, _ in nodes[number]["inputs"]:
            if source not in reads and nodes[source]["op"] not in {"null", *_FILLS}:
                takers.setdefault(source, set()).update(own)
    return list(takers.values())


def _result(reads: Mapping[int, Sequence[Result]], group: Sequence[int], last: Result) -> Result:
    """Return which result of a group others take."""
    taken = [result for number, results in reads.items() if number not in group for result in results]
    return next((result for result in taken if result[0] == group[-1]), last)


class _Piece:
    """Some operations of a graph, and what they need, as a graph of their own.

    Attributes:
        inputs: Names of the arrays of a batch and of the parts whose results it takes.
    """

    def __init__(
        self,
        nodes: Sequence[_Node],
        group: Sequence[int],
        *,
        batch: Collection[str],
        titles: Mapping[int, str],
        parted: Collection[int],
    ) -> None:
        self.inputs: list[str] = []
        self._all, self._batch, self._titles, self._parted = nodes, batch, titles, parted
        self._nodes: list[_Node] = []
        self._place: dict[Any, int] = {}
        for number in group:
            node = nodes[number]
            inputs = [[*self._input(source, output), 0] for source, output, _ in node["inputs"]]
            self._add(number, {**node, "inputs": inputs})

    def graph(self, result: Result) -> dict[str, Any]:
        """Return it as MXNet writes a graph, with a result of its last operation."""
        variables = [place for place, node in enumerate(self._nodes) if node["op"] == "null"]
        return {
            "nodes": self._nodes,
            "arg_nodes": variables,
            "heads": [[self._place[result[0]], result[1], 0]],
        }

    def _add(self, key: Any, node: _Node) -> int:
        self._place[key] = len(self._nodes)
        self._nodes.append(node)
        return self._place[key]

    def _input(self, source: int, output: int) -> tuple[int, int]:
        """Return the place of what an operation takes, and which of its results that is."""
        node = self._all[source]
        if source in self._place:
            return self._place[source], output
        if source not in self._parted:  # a variable, or what follows from constants: each has its own
            if node["name"] in self._batch:
                self.inputs.append(node["name"])
            inputs = [[*self._input(each, which), 0] for each, which, _ in node["inputs"]]
            return self._add(source, {**node, "inputs": inputs}), output
        name = self._titles[source]
        if name not in self.inputs:
            self.inputs.append(name)
            self._add(("result", source), {"op": "null", "name": name, "inputs": []})
        return self._place["result", source], 0
