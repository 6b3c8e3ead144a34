"""Compares the planner's predictions with measured steps over limited links, of P3, allreduce and tables.

Without options, with all that is in ``results/``; with ``--measure``, with steps that it has the benchmarks
``p3_bandwidth.py`` and ``sparse_step.py`` measure now, at a few points, which needs root. See README.md
beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from harness import zoo
from harness.planner_points import P3, SPARSE, compared, is_current, table

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"
MEASURED = {
    P3: "p3_bandwidth.py --compute 2 --quick --models sockeye --ratios 0.8,1.2 --variants ours-p3",
    SPARSE: "sparse_step.py --models lm,alpha-0.28,dense --mbit 50 --steps 1,3 --repeats 2 "
    "--variants allreduce,servers,hybrid",
}
HOSTS = (2, 4)


def measure(overrule: list[str]) -> list[Path]:
    """Have both benchmarks measure; return their files."""
    files = []
    for what, command in MEASURED.items():
        for hosts in HOSTS:
            path = RESULTS / f"planner-model-{what}-{hosts}-{time.strftime('%Y-%m-%dT%H%M%S')}.json"
            program, *options = command.split()
            options += ["--hosts", str(hosts), *overrule, "--json", str(path)]
            subprocess.run((sys.executable, str(BENCHMARKS / program), *options), check=True)
            files.append(path)
    return files


def main() -> None:
    """Print the table."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", type=Path, nargs="+", metavar="JSON", help="compare with these results")
    parser.add_argument("--measure", action="store_true", help="measure a few points now")
    parser.add_argument("--dirty", action="store_true", help="with --measure: as of all benchmarks")
    parser.add_argument("--allow-load", action="store_true", help="with --measure: as of all benchmarks")
    arguments = parser.parse_args()
    names = ("dirty", "allow_load")
    overrule = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    paths = arguments.load or (
        measure(overrule)
        if arguments.measure
        else [*RESULTS.glob(f"{P3}*.json"), *RESULTS.glob(f"{SPARSE}*.json")]
    )
    files = [json.loads(path.read_text()) for path in sorted(paths)]
    print(table(compared(files if arguments.load else filter(is_current, files), zoo.load)))


if __name__ == "__main__":
    main()
