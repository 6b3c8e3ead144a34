"""Compares the planner's predictions with measured steps over limited links, of P3, allreduce and tables.

Without options, with all that is in ``results/``. With ``--measure``, with steps that it has the benchmarks
``p3_bandwidth.py`` and ``sparse_step.py`` measure now; those of tables are predicted by what ``mpilaunch
measure-links`` has measured just before on the same hosts. That needs root and openssh-server.
See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import zoo
from harness.planner_points import P3, SPARSE, compared, is_current, table

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"

if TYPE_CHECKING:
    from collections.abc import Callable

OF_P3 = "--compute 2 --quick --models sockeye --ratios 0.8,1.2 --variants ours-p3"
OF_TABLES = "--launched --variants allreduce,servers,hybrid"


def measure(arguments: argparse.Namespace) -> list[Path]:
    """Have both benchmarks measure; return their files."""
    files = [
        _have_measured(P3, f"{hosts}", f"{OF_P3} --hosts {hosts}", arguments)
        for hosts in (arguments.hosts if arguments.p3 else ())
    ]
    mbit = ",".join(f"{each:g}" for each in arguments.mbit)
    for hosts in arguments.hosts:
        options = f"{OF_TABLES} --hosts {hosts} --mbit {mbit} --models {arguments.models} "
        options += f"--steps {arguments.steps} --repeats {arguments.repeats}"
        files.append(_have_measured(SPARSE, f"{hosts}", options, arguments))
    return files


def _have_measured(what: str, where: str, options: str, arguments: argparse.Namespace) -> Path:
    """Run a benchmark; return its file."""
    path = RESULTS / f"planner-model-{what}-{where}-{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    names = ("dirty", "allow_load")
    overrule = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    program = BENCHMARKS / f"{what.replace('-', '_')}.py"
    command = (sys.executable, str(program), *options.split(), *overrule, "--json", str(path))
    subprocess.run(command, check=True)
    return path


def main() -> None:
    """Print the table."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--load", type=Path, nargs="+", metavar="JSON", help="compare with these results")
    add("--measure", action="store_true", help="measure now, as these say")
    add("--hosts", type=_numbers(int), default=[2, 4], help="comma-separated (default: 2,4)")
    add("--mbit", type=_numbers(float), default=[200.0], help="of links for tables (default: 200)")
    add("--models", default="lm,ctr", help="of sparse_step.py (default: lm,ctr)")
    add("--steps", default="4,20", help="of sparse_step.py (default: 4,20)")
    add("--repeats", type=int, default=1, help="jobs for each point of tables (default: 1)")
    add("--no-p3", dest="p3", action="store_false", help="measure tables only")
    add("--dirty", action="store_true", help="as of all benchmarks")
    add("--allow-load", action="store_true", help="as of all benchmarks")
    arguments = parser.parse_args()
    names = (P3, SPARSE, "planner-model")
    everything = [path for name in names for path in RESULTS.glob(f"{name}*.json")]
    paths = arguments.load or (measure(arguments) if arguments.measure else everything)
    files = [json.loads(path.read_text()) for path in sorted(paths)]
    print(table(compared(files if arguments.load else filter(is_current, files), zoo.load)))


def _numbers(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
