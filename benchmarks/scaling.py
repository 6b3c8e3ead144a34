"""Predicts jobs of 1,000 hosts from jobs of 2 to 8 that ``p3_bandwidth.py`` has measured.

Measures nothing itself. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from harness import zoo
from harness.models import ITEM_BYTES, Granularity, Model
from harness.p3_variants import P3
from harness.results import BENCHMARKS
from harness.scaling_model import Cost, Job, fit, link_seconds
from harness.table import align

NAMES = ("2hosts", "resnet50", "vgg19", "sockeye", "inceptionv3", "8hosts")
RESULTS = [BENCHMARKS / "results" / f"p3-bandwidth-{name}.json" for name in NAMES]
LARGE = 1_000
GIGABITS = (10, 100)
TCP_SHARE = 0.956
"""Of a link's rate, what TCP carries."""

HEAD = ("model", "hosts", "Gbit/s", "MB", "slices", "link s", "cores for link speed", "slices a server")


def slices_of(model: Model) -> int:
    """Return into how many slices the store cuts a model."""
    most = Granularity.of(model).slice_elements
    return sum(-(-elements // most) for elements in model.elements())


def job_of(model: Model, hosts: int, seconds: float) -> Job:
    """Return a job with a model."""
    return Job(hosts, slices_of(model), ITEM_BYTES * sum(model.elements()), seconds)


def measured(files: list[Path]) -> list[tuple[str, Job, float]]:
    """Return for each point its model, the job, and a host's processor seconds: medians of the runs."""
    points: dict[str, list[Any]] = {}
    for path in files:
        result = json.loads(path.read_text())
        for run in result["runs"]:
            if run["variant"] == P3.name:
                spent = run["own"] * run["iteration_s"] * result["cores"] / run["point"]["hosts"]
                where = json.dumps(run["point"], sort_keys=True)
                points.setdefault(where, []).append((run["iteration_s"], spent))
    found = []
    models = {name: zoo.load(name) for name in {json.loads(where)["model"] for where in points}}
    for where, runs in points.items():
        point = json.loads(where)
        seconds, spent = (median(column) for column in zip(*runs))
        found.append((point["model"], job_of(models[point["model"]], point["hosts"], seconds), spent))
    return found


def told(cost: Cost) -> str:
    """Return a fit as text."""
    return (
        f"{1e6 * cost.slice_s:.0f} us a slice, {1e9 * cost.byte_s:.2f} ns a byte, "
        f"{1e3 * cost.second_s:.0f} ms a second"
    )


def errors_table(found: list[tuple[str, Job, float]], cost: Cost) -> str:
    """Return each measured point beside what the fit says of it."""
    rows: list[tuple[str, ...]] = [("model", "hosts", "slices", "MB", "step s", "cpu s", "fitted", "error")]
    for name, job, spent in found:
        fitted = cost.seconds(job)
        amounts = (str(job.hosts), str(job.slices), f"{job.num_bytes / 1e6:.1f}", f"{job.seconds:.2f}")
        rows.append((name, *amounts, f"{spent:.3f}", f"{fitted:.3f}", f"{fitted / spent - 1:+.0%}"))
    return align(rows)


def predictions(models: list[Model], cost: Cost) -> str:
    """Return what a host needs of its link, and of its cores so that the link stays the limit."""
    rows: list[tuple[str, ...]] = [HEAD]
    for model in models:
        for gigabits in GIGABITS:
            job = job_of(model, LARGE, 0.0)
            link = link_seconds(job, gigabits * 1e9 / 8 * TCP_SHARE)
            cores = cost.seconds(job) / link + cost.second_s
            sizes = (f"{job.num_bytes / 1e6:.0f}", str(job.slices), f"{link:.3f}", f"{cores:.1f}")
            rows.append((model.name, str(LARGE), str(gigabits), *sizes, f"{job.slices / LARGE:.2f}"))
    return align(rows)


def main() -> None:
    """Fit, test the fit on the largest jobs, and predict."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=Path, nargs="+", default=RESULTS, help="files of p3_bandwidth.py")
    found = measured(parser.parse_args().load)
    cost = fit([job for _, job, _ in found], [spent for _, _, spent in found])
    largest = max(job.hosts for _, job, _ in found)
    smaller = [each for each in found if each[1].hosts < largest]
    without = fit([job for _, job, _ in smaller], [spent for _, _, spent in smaller])
    print(f"fitted to all: {told(cost)}\n\n{errors_table(found, cost)}\n")
    print(f"fitted to fewer than {largest} hosts: {told(without)}\n")
    print(errors_table([each for each in found if each[1].hosts == largest], without))
    names = list(dict.fromkeys(name for name, _, _ in found))
    whole = [replace(zoo.load(name), scale=1) for name in names]
    print(f"\n{predictions(whole, cost)}")


if __name__ == "__main__":
    main()
