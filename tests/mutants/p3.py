"""Order and windows: what leaves first, and how much is under way."""

from __future__ import annotations

from mutants.table import Mutant

_TURNS = ("paper/test_p3_turns.py",)
_QUEUE = ("unit/test_send_queue.py", "property/test_send_queue.py")
_WINDOW = ("unit/test_window.py",)

MUTANTS = [
    Mutant(
        "the window is off",
        "kvstore_mpi/p3/window.py",
        "return not num_bytes or not in_flight or in_flight + num_bytes <= self.limit",
        "return True",
        _QUEUE,
    ),
    Mutant(
        "a slice larger than the window waits for ever",
        "kvstore_mpi/p3/window.py",
        "return not num_bytes or not in_flight or in_flight + num_bytes <= self.limit",
        "return not num_bytes or in_flight + num_bytes <= self.limit",
        _QUEUE,
    ),
    Mutant(
        "the window is not a share of the iteration",
        "kvstore_mpi/p3/window.py",
        "wanted = max(least, SHARE * self._iteration_bytes, BUSY_PEER_S * rate)",
        "wanted = max(least, BUSY_PEER_S * rate)",
        _WINDOW,
    ),
    Mutant(
        "the window does not grow with the rate",
        "kvstore_mpi/p3/window.py",
        "wanted = max(least, SHARE * self._iteration_bytes, BUSY_PEER_S * rate)",
        "wanted = max(least, SHARE * self._iteration_bytes)",
        _WINDOW,
    ),
    Mutant(
        "a server's window is like a worker's",
        "kvstore_mpi/p3/window.py",
        "self.limit = self._times * int(min(wanted, max(MOST_BYTES, least)))",
        "self.limit = int(min(wanted, max(MOST_BYTES, least)))",
        _WINDOW,
    ),
    Mutant(
        "a fixed window changes",
        "kvstore_mpi/p3/window.py",
        "        if self._fixed:",
        "        if self._fixed < 0:",
        _WINDOW,
    ),
    Mutant(
        "a pause counts as slowness",
        "kvstore_mpi/p3/window.py",
        "        self._paused = True",
        "        self._paused = False",
        _WINDOW,
    ),
    Mutant(
        "the least urgent first",
        "kvstore_mpi/p3/priority_queue.py",
        "rank = -priority if self._by_priority else 0",
        "rank = priority if self._by_priority else 0",
        _QUEUE,
    ),
    Mutant(
        "fifo looks at priorities",
        "kvstore_mpi/p3/priority_queue.py",
        "rank = -priority if self._by_priority else 0",
        "rank = -priority",
        _TURNS,
    ),
    Mutant(
        "among equals the last first",
        "kvstore_mpi/p3/priority_queue.py",
        "heapq.heappush(self._heap, (epoch, rank, self._arrived, num_bytes, item))",
        "heapq.heappush(self._heap, (epoch, rank, -self._arrived, num_bytes, item))",
        _QUEUE,
    ),
    Mutant(
        "no epochs: something may wait for ever",
        "kvstore_mpi/p3/priority_queue.py",
        "epoch = self._arrived_bytes // self._epoch_bytes",
        "epoch = 0",
        _QUEUE[1:],
    ),
    Mutant(
        "what is unwanted is kept and the rest discarded",
        "kvstore_mpi/p3/priority_queue.py",
        "self._heap = [entry for entry in self._heap if not unwanted(entry[4])]",
        "self._heap = [entry for entry in self._heap if unwanted(entry[4])]",
        _QUEUE,
    ),
    Mutant(
        "bundles have no limit",
        "kvstore_mpi/p3/send_queue.py",
        "if items and (total > BUNDLE_BYTES or travelling > most):",
        "if items and travelling > most:",
        _QUEUE,
    ),
    Mutant(
        "messages of any part of the window",
        "kvstore_mpi/p3/send_queue.py",
        "if first_travels and in_flight and room < min(most, lane.num_bytes):",
        "if first_travels and in_flight and room < 0:",
        _QUEUE,
    ),
    Mutant(
        "bytes that wait are not counted down",
        "kvstore_mpi/p3/send_queue.py",
        "            lane.num_bytes -= wire_bytes",
        "            lane.num_bytes -= 0",
        _QUEUE,
    ),
    Mutant(
        "what is shared counts for the window",
        "kvstore_mpi/p3/send_queue.py",
        "wire_bytes = num_bytes if travels else 0",
        "wire_bytes = num_bytes",
        _QUEUE,
    ),
    Mutant(
        "one destination takes all of a turn",
        "kvstore_mpi/p3/send_queue.py",
        "again.append((destination, lane, under_way + num_bytes))",
        "again.append((destination, lane, under_way))",
        _QUEUE,
    ),
    Mutant(
        "what is dropped still waits",
        "kvstore_mpi/p3/send_queue.py",
        "lane.queue.discard(lambda _: True)",
        "lane.queue.discard(lambda _: False)",
        _QUEUE,
    ),
    Mutant(
        "the last slice of a shard is too long",
        "kvstore_mpi/p3/slicing.py",
        "min(a + slice_elements, hi)",
        "a + slice_elements",
        ("unit/test_store.py", "unit/test_worker_state.py", "paper/test_p3_protocol.py"),
    ),
    Mutant(
        "an empty key has no slice",
        "kvstore_mpi/p3/slicing.py",
        "if hi > lo else (lo,)",
        "if hi > lo else ()",
        ("unit/test_worker_state.py", "paper/test_p3_protocol.py"),
    ),
    Mutant(
        "every key begins with the same rank",
        "kvstore_mpi/p3/slicing.py",
        "return [(key_id + position * ranks // num_slices) % ranks for position in range(num_slices)]",
        "return [position * ranks // num_slices for position in range(num_slices)]",
        ("property/test_placement.py",),
    ),
    Mutant(
        "slicing goes by priority",
        "kvstore_mpi/p3/schedule.py",
        "return self is Schedule.P3",
        "return self is not Schedule.FIFO",
        _TURNS,
    ),
    Mutant(
        "fifo updates slices one by one",
        "kvstore_mpi/p3/schedule.py",
        "return self is not Schedule.FIFO",
        "return True",
        ("paper/test_p3_figures.py", "unit/test_server_state.py"),
    ),
]
