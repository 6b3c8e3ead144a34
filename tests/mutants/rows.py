"""Rows of a table: how they are merged, and how some of them are updated."""

from __future__ import annotations

from mutants.table import Mutant

_ROWS = ("unit/test_rows.py", "property/test_rows.py")
_UPDATES = ("unit/test_row_updates.py",)
_EQUAL = ("contract/test_row_updates_equal_mxnet.py",)
_EXACT = ("property/test_missed_steps.py",)
_SHARDS = ("unit/test_table_shards.py",)
_KERNELS = "kvstore_mpi/values/row_kernels.py"
_MERGE = "kvstore_mpi/values/rows.py"
_RULES = "kvstore_mpi/server_optimizers/"

MUTANTS = [
    Mutant(
        "the factor of the last table is used again",
        _KERNELS,
        "if columns > len(self._factors) or self._factor != factor or self._factors.dtype != dtype:",
        "if columns > len(self._factors):",
        _ROWS,
    ),
    Mutant(
        "the factors of another type are read",
        _KERNELS,
        "or self._factor != factor or self._factors.dtype != dtype:",
        "or self._factor != factor:",
        _ROWS,
    ),
    Mutant(
        "positions that 32 bits do not hold",
        _MERGE,
        "if num_rows > min(_SPARSEST * sum(map(len, ids)), _MOST_MARKED):",
        "if num_rows > _SPARSEST * sum(map(len, ids)):",
        _ROWS,
    ),
    Mutant(
        "repeated rows are added in any order",
        _KERNELS,
        '    order = np.argsort(positions, kind="stable")',
        '    order = np.argsort(positions, kind="stable")[::-1]',
        _ROWS,
    ),
    Mutant(
        "a kernel that has changed is used",
        _KERNELS,
        "        if not np.array_equal(out, [[5, 7], [1, 1], [1, 1], [9, 13]]):",
        "        if out.shape != (4, 2):",
        _ROWS,
    ),
    Mutant(
        "half precision is summed as it is",
        _MERGE,
        'return np.dtype(np.float32) if dtype.name in {"float16", "bfloat16"} else dtype',
        "return dtype",
        _ROWS,
    ),
    Mutant(
        "ids that are repeated once in a row pass for unique",
        _MERGE,
        "    if (flat[1:] > flat[:-1]).all():",
        "    if (flat[1:] >= flat[:-1]).all():",
        _ROWS,
    ),
    Mutant(
        "ids stay marked for the next merge",
        _MERGE,
        "        mask.fill(False)",
        "        mask[1:].fill(False)",
        _ROWS,
    ),
    Mutant(
        "the last merge shines through",
        _MERGE,
        "            out[start : start + block] = 0",
        "            out[start : start + 1] = 0",
        _ROWS,
    ),
    Mutant(
        "masks for tables of any size",
        _MERGE,
        "        if num_rows > min(_SPARSEST * sum(map(len, ids)), _MOST_MARKED):",
        "        if num_rows < 0:",
        _ROWS,
    ),
    Mutant(
        "what is kept is not the caller's",
        _MERGE,
        "        fresh = own and dtype == summed",
        "        fresh = False",
        _ROWS,
    ),
    Mutant(
        "descent goes uphill",
        _RULES + "rows.py",
        "RowAdder().add(weight, slots, gradient, -hyper.lr * hyper.rescale_grad)",
        "RowAdder().add(weight, slots, gradient, hyper.lr * hyper.rescale_grad)",
        _UPDATES,
    ),
    Mutant(
        "descent without decay",
        _RULES + "rows.py",
        "    return plain and not hyper.wd and (hyper.clip_gradient",
        "    return plain and (hyper.clip_gradient",
        _UPDATES,
    ),
    Mutant(
        "descent without momentum",
        _RULES + "rows.py",
        "    plain = type(optimizer) is SGD and not optimizer.num_states()",
        "    plain = type(optimizer) is SGD",
        _UPDATES,
    ),
    Mutant(
        "each block has the gradient of the first",
        _RULES + "rows.py",
        "        step = gradient[part].astype(single)",
        "        step = gradient[: len(rows[0])].astype(single)",
        _UPDATES,
    ),
    Mutant(
        "slots beyond the table are written to",
        _RULES + "rows.py",
        '    assert 0 <= slots.min() <= slots.max() < len(weight), "a slot outside the table"',
        "    assert 0 <= slots.min()",
        _UPDATES,
    ),
    Mutant(
        "a row's rate is that of its sum",
        _RULES + "rows.py",
        "        history += np.mean(gradient * gradient, axis=1, keepdims=True)",
        "        history += np.sum(gradient * gradient, axis=1, keepdims=True)",
        (*_UPDATES, *_EQUAL),
    ),
    Mutant(
        "FTRL knows no sparsity",
        _RULES + "rules.py",
        "        weight[np.abs(pull, out=root) <= self.lamda1] = 0.0",
        "        np.abs(pull, out=root)",
        _EQUAL,
    ),
    Mutant(
        "FTRL forgets its root",
        _RULES + "rules.py",
        "        np.subtract(new_root, root, out=root)",
        "        np.copyto(root, new_root)",
        _EQUAL,
    ),
    Mutant(
        "optimizers of parameters update rows",
        _RULES + "registry.py",
        "refers = terms.whole or terms.params or terms.bases",
        "refers = terms.whole or terms.bases",
        _UPDATES,
    ),
    Mutant(
        "steps are multiplied in the wrong order",
        _RULES + "missed_steps.py",
        "        earlier[...] = _product(np.reshape(step, (4, 1)), earlier)",
        "        earlier[...] = _product(earlier, np.reshape(step, (4, 1)))",
        _EXACT,
    ),
    Mutant(
        "the step of a row's own gradient is made up for as well",
        _RULES + "missed_steps.py",
        'np.searchsorted(self._firsts, distinct + 1, side="right") - 1',
        'np.searchsorted(self._firsts, distinct, side="right") - 1',
        _EXACT,
    ),
    Mutant(
        "one missed step too many",
        _RULES + "missed_steps.py",
        "ends[run] - 1 - distinct",
        "ends[run] - distinct",
        _EXACT,
    ),
    Mutant(
        "a row is caught up with twice",
        _RULES + "missed_steps.py",
        "        self._last[late] = self._num_steps",
        "        self._last[late] = last",
        _EXACT,
    ),
    Mutant(
        "NAG's momentum is decayed by the weight before",
        _RULES + "missed_steps.py",
        "        return ww, wm, -decay * ww, mu - decay * wm",
        "        return ww, wm, -decay, mu",
        _EXACT,
    ),
    Mutant(
        "new rows have missed everything",
        _RULES + "missed_steps.py",
        "        new = np.full(num_rows - len(self._last), self._num_steps)",
        "        new = np.full(num_rows - len(self._last), 0)",
        _EXACT,
    ),
    Mutant(
        "each step is a run",
        _RULES + "missed_steps.py",
        "        if not self.num_runs or step != tuple(self._runs[:, -1]):",
        "        if True:",
        _EXACT,
    ),
    Mutant(
        "Adam is lazy though told not to be",
        _RULES + "registry.py",
        'spec.name in {"sgd", "nag"}',
        'spec.name in {"sgd", "nag", "adam"}',
        _UPDATES,
    ),
    Mutant(
        "rows are sent without what they have missed",
        "kvstore_mpi/server/table_shards.py",
        "        piece.catch_up(places)",
        "        assert piece.master is None or places is None or places.size",
        _SHARDS,
    ),
    Mutant(
        "rows are updated before what they have missed",
        "kvstore_mpi/server/table_shards.py",
        "        piece.catch_up(merged.ids)",
        "        assert merged.ids.ndim == 1",
        _SHARDS,
    ),
    Mutant(
        "an exact step has changed the pushed rows only",
        "kvstore_mpi/server/table_piece.py",
        "            return None  # an exact step changes the rows that it has no gradient for as well",
        "            assert version > 0",
        _SHARDS,
    ),
    Mutant(
        "behind a barrier a pull of an async table shows what was there at the last push",
        "kvstore_mpi/adapters/mxnet/row_calls.py",
        "                    staging.others_pushed = True",
        "                    staging.others_pushed = False",
        ("contract/test_mxnet_rows.py::test_contract_of_async_stores",),
    ),
    Mutant(
        "behind a barrier rows that came before it are used",
        "kvstore_mpi/adapters/mxnet/row_calls.py",
        "            self._tables.prefetched.all_have_met()",
        "            assert self._tables.prefetched",
        ("contract/test_mxnet_rows.py::test_contract_of_async_stores",),
    ),
    Mutant(
        "ranks without an array are given the value of an async table",
        "kvstore_mpi/worker/table_collectives.py",
        "        if not nobody_wants_it:",
        "        if value is not None or not nobody_wants_it:",
        ("scenarios/test_tables.py::test_ranks_without_an_array_of_an_async_table",),
    ),
]
