"""Measures tensors on a GPU: the kernels against what the card copies, and the paper's designs.

First k vectors are reduced into one on the device (the kernels' speed) and into pinned memory of the host
(that of the bus), and a buffer of the host is shared with k vectors; CuPy's own additions are beside them.
Then ranks that share the GPUs reduce tensors by each design of MXNET-MPI (section 7.3), in the same job as
the parts of it. Needs CuPy and a GPU, but for ``--on host``, which compares the designs with NumPy vectors.

python benchmarks/gpu_tensor.py
python benchmarks/gpu_tensor.py --on host --ranks 2 --designs multiring,library
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.jobs import THREADS
from harness.results import BENCHMARKS, Results, begin, load, make_parser

from kvstore_mpi.tensor_collectives.designs import DESIGNS
from mpilaunch.mpi import find_mpi

if TYPE_CHECKING:
    import argparse

WORKER = BENCHMARKS / "gpu_designs_worker.py"
WHAT = "gpu-tensor"
JOB_S = 600
PARTS = ("local reduce", "host ring", "local share")
PAIR = ("multiring", "library", 1.8)
"""The paper's own design, that which it compares it with, and how many times as fast it is to be."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="1", plot=False)
    add = parser.add_argument
    add("--on", choices=("gpu", "host"), default="gpu", help="where the vectors lie (default: gpu)")
    add("--sizes", default="67108864,268435456", help="bytes of a vector, comma-separated")
    add("--ranks", default="2,4", help="ranks that compare designs, comma-separated; none: kernels only")
    add("--vectors", type=int, default=2, help="vectors of each rank's tensor (default: 2)")
    add("--dtype", default="float32", help="of the designs' tensors (default: float32)")
    add("--designs", default=",".join(DESIGNS), help=f"comma-separated (default: {','.join(DESIGNS)})")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 1
    unknown = set(arguments.designs.split(",")) - set(DESIGNS)
    if unknown:
        parser.error(f"there is no design {', '.join(sorted(unknown))}; there are {', '.join(DESIGNS)}")
    return arguments


def kernels(sizes: list[int]) -> dict[str, Any]:
    """Measure the kernels and print them; ends the program where there is no GPU."""
    try:
        from harness import gpu_kernels  # noqa: PLC0415  imports CuPy

        card = gpu_kernels.card()
    except ImportError:
        sys.exit("CuPy is not installed: pip install 'kvstore_mpi[gpu]'; or compare designs with --on host")
    except Exception as error:  # noqa: BLE001  CuPy has several for this
        sys.exit(f"there is no GPU ({error}); compare designs with --on host")
    known, measured = gpu_kernels.measure(sizes)
    print(card, gpu_kernels.table(known, measured), sep="\n")
    return {"card": card, "limits": known, "kernels": measured}


def compare(ranks: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a job of `ranks` ranks; return the rows that it has measured."""
    mpi = find_mpi()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            *(mpi.mpiexec, *mpi.flavour.options, "-n", str(ranks), sys.executable, "-m", "mpi4py"),
            *(str(WORKER), "--on", arguments.on, "--sizes", arguments.sizes, "--dtype", arguments.dtype),
            *("--vectors", str(arguments.vectors), "--designs", arguments.designs),
            *("--result", str(result)),
        ]
        environment = {**os.environ, **THREADS, **dict(mpi.flavour.env)}
        subprocess.run(command, check=True, timeout=JOB_S, env=environment)
        measured: list[dict[str, Any]] = json.loads(result.read_text())
        return measured


def table(rows: list[dict[str, Any]]) -> str:
    """Return the designs as text, each beside the parts that it is made of and the library's."""
    lines = ["ranks     bytes         what         ms     cpu ms  of the parts  x library   #wrong"]
    for row in rows:
        head = f"{row['ranks']:5} {row['bytes']:9} {row['what']:>12}"
        if "missing" in row:
            lines.append(f"{head}  {row['missing']}")
            continue
        line = f"{head} {row['s'] * 1e3:10.2f} {row['cpu_s'] * 1e3:10.2f}"
        if row["what"] not in PARTS:
            same = [each for each in rows if (each["ranks"], each["bytes"]) == (row["ranks"], row["bytes"])]
            parts = sum(each["s"] for each in same if each["what"] in PARTS)
            library = [each["s"] for each in same if each["what"] == "library"]
            ratio = f"{library[0] / row['s']:10.2f}" if library else " " * 10
            line += f" {row['s'] / parts:12.2f} {ratio} {row['wrong']:8}"
        lines.append(line + _verdict(row, rows))
    return "\n".join(lines)


def _verdict(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return whether the target is met, on the GPU, for what the paper compares."""
    ours, peer, target = PAIR
    same = [
        each
        for each in rows
        if each["what"] == peer and (each["ranks"], each["bytes"]) == (row["ranks"], row["bytes"])
    ]
    if row["what"] != ours or row["on"] != "gpu" or not same:
        return ""
    met = same[0]["s"] / row["s"] >= target
    return f"  >= {target} {'met' if met else 'MISSED'}"


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure the kernels, on a GPU, and the designs."""
    results = begin(WHAT, arguments)
    if arguments.on == "gpu":
        results.facts.update(kernels([int(size) for size in arguments.sizes.split(",")]))
    for repeat in range(arguments.repeats):
        for ranks in arguments.ranks.split(","):
            for row in compare(int(ranks), arguments) if ranks else ():
                results.add({"repeat": repeat, **row})
    return results


def main() -> None:
    """Measure or load, print and write."""
    arguments = parse_arguments()
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table(results.runs))
    results.close()
    if any(row.get("wrong") for row in results.runs):
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
