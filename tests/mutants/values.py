"""What stands on the wire for values: their layout, codings, and what both sides of a coding refer to."""

from __future__ import annotations

from mutants.table import Mutant

_CODED = (
    "unit/test_esgd.py::test_the_halves_of_a_byte_keep_their_signs",
    "unit/test_esgd.py::test_a_payload_of_another_size_is_an_error",
    "property/test_quantised.py",
)
_BASES = ("unit/test_bases.py",)
_REPEATED = ("unit/test_repeated_exchanges.py",)
_EXCHANGE = ("scenarios/test_exchange.py::test_parameters_and_center_conserve_their_sum",)
_STORE = ("unit/test_store.py",)
_WRONG = ("unit/test_wrong_pushes.py",)
_GRADIENTS = ("scenarios/test_gradient_coding.py",)
_HALVES = ("property/test_halves.py",)
_TWO_BITS = ("property/test_two_bits.py",)
_ROWS_IN_HALVES = ("scenarios/test_rows_in_halves.py",)
_IN = "kvstore_mpi/values/"
_ROUNDS = "kvstore_mpi/server/exchanges.py"
_TAKEN_UP = ("contract/test_taken_up.py",)

MUTANTS = [
    Mutant(
        "one level more than fits",
        _IN + "quantised.py",
        "LEVELS: dict[int, int] = {8: 127, 4: 7}",
        "LEVELS: dict[int, int] = {8: 128, 4: 8}",
        _CODED,
    ),
    Mutant(
        "the odd last element has no byte",
        _IN + "quantised.py",
        "return _SCALE.size + (size * self._bits + 7) // 8",
        "return _SCALE.size + size * self._bits // 8",
        _CODED,
    ),
    Mutant(
        "quantised values are cut off",
        _IN + "quantised.py",
        "            np.rint(difference, out=difference)",
        "            np.trunc(difference, out=difference)",
        _CODED,
    ),
    Mutant(
        "the largest difference is the largest positive one",
        _IN + "quantised.py",
        "largest = float(max(difference.max(), -difference.min())) if difference.size else 0.0",
        "largest = float(difference.max()) if difference.size else 0.0",
        _CODED,
    ),
    Mutant(
        "the halves of a byte are exchanged",
        _IN + "quantised.py",
        "    pairs |= pairs << 4",
        "    pairs = pairs >> 4 | pairs << 8",
        _CODED,
    ),
    Mutant(
        "four bits have no sign",
        _IN + "quantised.py",
        "    numbers ^= 8  # the sign of four bits, carried into the upper half",
        "    numbers ^= 0  # the sign of four bits, carried into the upper half",
        _CODED,
    ),
    Mutant(
        "a payload of another size is read",
        _IN + "payload_length.py",
        "    if found != num_bytes:",
        "    if found < num_bytes:",
        _CODED,
    ),
    Mutant(
        "a payload that is too short is read",
        _IN + "payload_length.py",
        "    if found != num_bytes:",
        "    if found > num_bytes:",
        _WRONG,
    ),
    Mutant(
        "the client compares with something else than the server",
        _IN + "base.py",
        "self._coding.encode(self._buffer[lo:hi], self._sent[lo:hi], self._understood[lo:hi])",
        "self._coding.encode(self._buffer[lo:hi], self._buffer[lo:hi], self._understood[lo:hi])",
        _BASES,
    ),
    Mutant(
        "what the server has not understood is lost",
        _IN + "base.py",
        "            out -= self._understood[lo:hi]",
        "            out[...] = 0",
        _BASES,
    ),
    Mutant(
        "the first exchange is a difference",
        _IN + "base.py",
        "        return self._number if lo in self._known else RAW",
        "        return self._number",
        _BASES,
    ),
    Mutant(
        "what came past the base is referred to",
        _IN + "base.py",
        "        self._known.discard(lo)",
        "        self._known.add(lo)",
        _BASES,
    ),
    Mutant(
        "all clients have the base of the first",
        _IN + "base.py",
        "        return self._arrays[client][part]",
        "        return self._arrays[0][part]",
        (*_BASES, *_REPEATED),
    ),
    Mutant(
        "an answer is kept and sent twice",
        _IN + "base.py",
        "        return self._payloads.pop((client, lo), None)",
        "        return self._payloads.get((client, lo), None)",
        _BASES,
    ),
    Mutant(
        "the first exchange is no larger than the others",
        _IN + "base.py",
        "return self._coding.num_bytes(hi - lo) if lo in self._known else self._buffer[lo:hi].nbytes",
        "return self._coding.num_bytes(hi - lo)",
        _BASES,
    ),
    Mutant(
        "the center is compared with what was never sent",
        _ROUNDS,
        "                compared = self._bases.of(client, place)",
        "                compared = center[here]",
        _EXCHANGE,
    ),
    Mutant(
        "the first client alone moves the center",
        _ROUNDS,
        "                out[here] += np.subtract(compared, params, dtype=out.dtype)",
        "                out[here] += 0 * np.subtract(compared, params, dtype=out.dtype)",
        _REPEATED,
    ),
    Mutant(
        "sizes of payloads are not checked",
        _IN + "dense.py",
        "        if num_bytes != (hi - lo) * self._itemsize:",
        "        if num_bytes < (hi - lo) * self._itemsize:",
        (*_STORE, *_WRONG),
    ),
    Mutant(
        "what a payload does not say is lost",
        _IN + "base.py",
        "        wanted -= understood",
        "        wanted[...] = 0",
        _GRADIENTS,
    ),
    Mutant(
        "coded gradients refer to the gradient before",
        _IN + "base.py",
        "        understood[...] = 0",
        "        understood[...] += 0",
        _GRADIENTS,
    ),
    Mutant(
        "two bits: an element that is the threshold waits",
        _IN + "two_bits.py",
        "        np.greater_equal(difference, self.threshold, out=planes[0])",
        "        np.greater(difference, self.threshold, out=planes[0])",
        _TWO_BITS,
    ),
    Mutant(
        "two bits: what is no number is lost",
        _IN + "two_bits.py",
        "            planes |= ~finite",
        "            planes &= finite",
        _TWO_BITS,
    ),
    Mutant(
        "two bits: a peer's threshold may be zero",
        _IN + "two_bits.py",
        "    return TwoBits(threshold) if 0 < threshold <= _LARGEST else None",
        "    return TwoBits(threshold) if threshold <= _LARGEST else None",
        _TWO_BITS,
    ),
    Mutant(
        "two bits: the residual of a large gradient is cut off",
        _IN + "two_bits.py",
        "    largest_error = _LARGEST",
        "    largest_error = 1.0",
        _TWO_BITS,
    ),
    Mutant(
        "a run may end inside a slice",
        "kvstore_mpi/server/rounds.py",
        "        if found is None or end > hi:",
        "        if found is None:",
        _WRONG,
    ),
    Mutant(
        "an initial value of another size counts",
        "kvstore_mpi/values/layout.py",
        "            layout.check(payload, lo, hi)",
        "            pass",
        _WRONG,
    ),
    Mutant(
        "a key without payloads counts",
        "kvstore_mpi/values/layout.py",
        "    if len(payloads) != len(runs):",
        "    if False:",
        _WRONG,
    ),
    Mutant(
        "the third client is not added",
        _IN + "dense.py",
        "    for array in arrays[2:]:",
        "    for array in arrays[3:]:",
        _STORE,
    ),
    Mutant(
        "half sums are formed in half precision",
        _IN + "dense.py",
        "_sum(arrays, np.empty(out.size, np.float32))",
        "_sum(arrays, np.empty(out.size, np.float16))",
        _STORE,
    ),
    Mutant(
        "what may change is not copied",
        _IN + "dense.py",
        "return value.view(np.uint8).data if stable else value.tobytes()",
        "return value.view(np.uint8).data",
        _STORE,
    ),
    Mutant(
        "ties go up",
        _IN + "halves.py",
        "        rounding &= 1",
        "        rounding |= 1",
        _HALVES,
    ),
    Mutant(
        "what is too large for float16 is infinite",
        _IN + "halves.py",
        "            out[over] = np.copysign(_LARGEST_FLOAT16, values[over])",
        "            out[over] = np.copysign(np.inf, values[over])",
        _HALVES,
    ),
    Mutant(
        "what is no number becomes one in bfloat16",
        _IN + "halves.py",
        "        out[np.isnan(values)] = _QUIET_NAN",
        "        out[np.isnan(values)] &= _QUIET_NAN",
        _HALVES,
    ),
    Mutant(
        "answers to pushes are not rounded",
        _IN + "row_payloads.py",
        "    return _HEADER.pack(CHANGED, place_bytes, coding, version, 0)",
        "    return _HEADER.pack(CHANGED, place_bytes, RAW, version, 0)",
        (*_ROWS_IN_HALVES, "unit/test_row_sparse.py"),
    ),
    Mutant(
        "rows that are to be exact are rounded",
        "kvstore_mpi/worker/table_state.py",
        "operation.source.coding = RAW if operation.source.exact else self.coding",
        "operation.source.coding = self.coding",
        _ROWS_IN_HALVES,
    ),
    Mutant(
        "merged rows are sent as they are",
        "kvstore_mpi/worker/table_collectives.py",
        "operation.source.versions, operation.source.coding = alone.versions, alone.coding",
        "operation.source.versions = alone.versions",
        _ROWS_IN_HALVES,
    ),
    Mutant(
        "what is cut off of a compressed gradient comes later",
        "kvstore_mpi/values/base.py",
        "            if wanted.size and not -limit <= wanted.min() <= wanted.max() <= limit:",
        "            if not wanted.size and not -limit <= wanted.min() <= wanted.max() <= limit:",
        ("unit/test_residuals.py",),
    ),
    Mutant(
        "the next step undoes what an exchange with the center has done",
        "kvstore_mpi/adapters/mxnet/centers.py",
        "                moved.copyto(master)",
        "                moved.copyto(weight)",
        ("contract/test_elastic_training.py::test_copies_in_single_precision_move_with_the_parameters",),
    ),
    Mutant(
        "a gradient of weights that a center has replaced counts",
        "kvstore_mpi/adapters/mxnet/taken_up.py",
        "            self._weights += weights",
        "            pass",
        _TAKEN_UP,
    ),
    Mutant(
        "gradients of a pass after a center do not count",
        "kvstore_mpi/adapters/mxnet/taken_up.py",
        "        if not joined or any(each._fresh_grad for each in joined):",
        "        if not joined:",
        _TAKEN_UP,
    ),
    Mutant(
        "gradients of a pass through some layers do not count",
        "kvstore_mpi/adapters/mxnet/taken_up.py",
        "        if not joined or any(each._fresh_grad for each in joined):",
        "        if not joined or all(each._fresh_grad for each in joined):",
        _TAKEN_UP,
    ),
    Mutant(
        "MXNet's list of errors grows while others look into it",
        "kvstore_mpi/adapters/mxnet/bridge/engine.py",
        "        _make_room_for_errors()",
        "        pass",
        ("contract/test_mxnet_engine.py",),
    ),
    Mutant(
        "operations that fail at once end at once",
        "kvstore_mpi/adapters/mxnet/bridge/engine.py",
        "            with _failing:",
        "            if _failing:",
        ("contract/test_mxnet_engine.py",),
    ),
    Mutant(
        "a module keeps the momentum of weights that are gone",
        "kvstore_mpi/adapters/mxnet/elastic.py",
        "    updater.states.clear()",
        "    pass",
        _TAKEN_UP,
    ),
    Mutant(
        "a parameter without a shape has a center",
        "kvstore_mpi/adapters/mxnet/elastic.py",
        "        if self._not_joined:",
        "        if False:",
        ("contract/test_centers.py",),
    ),
]
