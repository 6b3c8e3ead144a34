"""``benchmarks/gpu_tensor.py`` without a GPU: whether it runs and checks; its figures mean nothing here."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.designs import DESIGNS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("gpu_tensor", "gpu_designs_worker", "harness.gpu_kernels")


@pytest.fixture
def benchmark(stand_in, monkeypatch):
    """The modules of the benchmark, which import the CuPy of the CPU; kernels take two vectors only."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    program, worker, kernels = map(importlib.import_module, MODULES)
    monkeypatch.setattr(kernels, "COUNTS", (2,))
    yield SimpleNamespace(program=program, worker=worker, kernels=kernels)
    for name in MODULES:
        sys.modules.pop(name, None)


class Job:
    """Runs a command of ``mpiexec`` in threads: the n-th communicators that ranks make are of one group."""

    def __init__(self, main, monkeypatch):
        self._main, self._monkeypatch = main, monkeypatch
        self._lock, self._thread = threading.Lock(), threading.local()

    def run(self, command, **_):
        """Stand for ``subprocess.run``."""
        self._size = int(command[command.index("-n") + 1])
        self._groups = []
        self._monkeypatch.setattr(sys, "argv", command[command.index("mpi4py") + 1 :])
        with ThreadPoolExecutor(self._size) as pool:
            list(pool.map(self._rank, range(self._size)))

    def _rank(self, rank):
        self._thread.rank, self._thread.numbers = rank, itertools.count()
        self._main()

    def communicator(self):
        """Stand for ``MpiCommunicator``."""
        number = next(self._thread.numbers)
        with self._lock:
            if number == len(self._groups):
                self._groups.append(memory_communicators(self._size))
        return self._groups[number][self._thread.rank]


@pytest.fixture
def measure(benchmark, monkeypatch, tmp_path):
    """What calls the program, with ranks in threads."""
    job = Job(benchmark.worker.main, monkeypatch)
    monkeypatch.setattr(benchmark.program, "subprocess", job)
    monkeypatch.setattr(benchmark.worker, "MpiCommunicator", job.communicator)

    def call(*options):
        written = str(tmp_path / "out.json")
        monkeypatch.setattr(importlib.import_module("harness.results"), "PROBE_S", 0.0)
        anyhow = ("--dirty", "--allow-load", "--json", written)
        monkeypatch.setattr(sys, "argv", ["gpu_tensor.py", *options, *anyhow])
        benchmark.program.main()
        return json.loads(Path(written).read_text())

    return call


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_one_command_measures_and_checks_everything(benchmark, measure, capsys, dtype):
    """Kernels, parts, and all designs of ranks with two devices."""
    result = measure("--ranks", "1,2", "--sizes", "40004", "--dtype", dtype)
    assert result["facts"]["card"] == "no card 0"
    assert {row["bytes"] for row in result["facts"]["kernels"]} == {40_004}
    parts = benchmark.program.PARTS
    rows = {(row["ranks"], row["what"]): row for row in result["runs"]}
    assert set(rows) == set(itertools.product((1, 2), (*parts, *DESIGNS)))
    assert {(row["on"], row["dtype"]) for row in rows.values()} == {("gpu", dtype)}
    assert all(row["s"] > 0 for row in rows.values())
    assert all(row["wrong"] == 0 for row in rows.values() if row["what"] not in parts)
    assert capsys.readouterr().out.count(">= 1.8 ") == 2


def test_wrong_results_end_the_program(benchmark, measure, monkeypatch):
    """And are counted in the row of the design."""
    right = benchmark.worker.Vectors.on_host
    monkeypatch.setattr(benchmark.worker.Vectors, "on_host", lambda *vector: right(*vector) + 1)
    with pytest.raises(SystemExit, match="wrong results"):
        measure("--ranks", "2", "--sizes", "404", "--designs", "library")


def test_kernels_are_measured(benchmark):
    """A row for each kernel and type, each with its share of what is copied."""
    known, rows = benchmark.kernels.measure([4_096])
    kinds = {row["what"] for row in rows}
    assert {"reduce", "cupy +", "cupy.sum", "Elementwise", "to host", "from host"} <= kinds
    assert len(rows) == 2 * len(kinds)
    assert all(row["of"] > 0 for row in rows)
    assert benchmark.kernels.table(known, rows).count("\n") == 1 + len(rows)


@pytest.mark.mpi
def test_designs_are_compared_on_the_host(tmp_path):
    """Their results are checked; what a design cannot do stands in its row."""
    designs = "multiring,library"
    written = tmp_path / "out.json"
    options = ("--on", "host", "--ranks", "2", "--sizes", "40004", "--designs", designs)
    anyhow = ("--dirty", "--allow-load", "--json", str(written))
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_tensor.py"), *options, *anyhow],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads(written.read_text())["runs"]}
    assert set(rows) == {"local reduce", "host ring", "local share", *designs.split(",")}
    assert all(rows[name]["wrong"] == 0 for name in designs.split(","))
