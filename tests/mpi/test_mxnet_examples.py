"""MXNet's own sparse examples, as they are, reach the same losses on these stores as on MXNet's.

MXNet's package has no examples: ``MXNET_EXAMPLES`` names the folder ``example/sparse`` of its sources. Data
are drawn and put where the examples look, so that nothing is downloaded. Losses are in pytest's log.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness import jobs

pytest.importorskip("mxnet")
pytest.importorskip("mpi4py")

MXNET_EXAMPLES = os.environ.get("MXNET_EXAMPLES")
DEADLINE_S = 120
LOG = logging.getLogger(__name__)

WORDS, WORDS_EACH = 60, 8

TWO_EPOCHS = ("--num-epoch", "2", "--batch-size", "100")
FILES = ("--data-train", "data/avazu-app", "--data-test", "data/avazu-app.t")
RATES = ("--linear-lr", "0.005", "--factor-lr", "0.002")
LAYOUTS = ["--clients 2 --servers 2", "--workers 2 --servers 2", "--workers 2"]

pytestmark = [
    *(pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.thorough),
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        MXNET_EXAMPLES is None, reason="MXNET_EXAMPLES names no folder example/sparse of MXNet's sources"
    ),
]


def write_samples(path, count, seed):
    """Write samples of ones, whose class the sum of their words' weights says, in libsvm's format.

    All lines are of one length: the reader cuts a file by its bytes, and workers need as many batches each.
    """
    words, weights = np.random.default_rng(0), np.random.default_rng(seed)
    names = np.sort(words.choice(np.arange(100_000, 1_000_000), WORDS, replace=False))
    values = words.normal(0.3, size=WORDS)
    chosen = np.sort(weights.permuted(np.tile(np.arange(WORDS), (count, 1)), axis=1)[:, :WORDS_EACH])
    classes = values[chosen].sum(axis=1) > 0
    lines = (
        " ".join([str(int(label)), *(f"{name}:1" for name in row)])
        for label, row in zip(classes, names[chosen])
    )
    path.write_text("".join(f"{line}\n" for line in lines))


def write_ratings(path, count, seed):
    """Write ratings in MovieLens' format."""
    rows = np.random.default_rng(seed).integers(1, [200, 300, 6], size=(count, 3))
    path.write_text("".join("::".join(map(str, row)) + "::0\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder in which all jobs run, with the data in ``data``."""
    folder = tmp_path_factory.mktemp("examples")
    ratings = folder / "data/ml-10M100K"
    ratings.mkdir(parents=True)
    for seed, (name, count) in enumerate({"avazu-app": 1950, "avazu-app.t": 400}.items(), 1):
        write_samples(folder / "data" / name, count, seed)
    for seed, (name, count) in enumerate({"r1.train": 1950, "r1.test": 400}.items(), 1):
        write_ratings(ratings / name, count, seed)
    return folder


def script(example, *options):
    """Return the words that run an example for two epochs."""
    return str(Path(MXNET_EXAMPLES).resolve() / example / "train.py"), *TWO_EPOCHS, *options


def losses(where, said, workers):
    """Return what workers have found on the test data after each of two epochs, in order of epochs."""
    found = sorted(re.findall(r"epoch (\d), eval [\w ]+ = (\S+)", said))
    assert len(found) == 2 * workers, said[-3000:]
    LOG.info("%s: %s", where, found)
    return [float(loss) for _, loss in found]


def alone(folder, words):
    """Return the losses of one process of MXNet alone."""
    return losses("alone", run(folder, sys.executable, *words), 1)


def on_stock(folder, words):
    """Return the losses of two workers that have MXNet's own server."""
    jobs.run(jobs.stock_plan((sys.executable, *words), jobs.free_port()), folder, DEADLINE_S)
    said = [(folder / f"worker{index}.log").read_text() for index in range(2)]
    return losses("MXNet's servers", "".join(said), 2)


def on_ours(folder, layout, words, workers=2):
    """Return the losses of workers that ask for MXNet's store and get this one."""
    launcher = str(Path(sys.executable).with_name("mpilaunch"))
    options = (*layout.split(), "--take-over", "--log-dir", str(folder / "logs"))
    return losses(layout, run(folder, launcher, *options, *words), workers)


def run(folder, *command):
    """Run a command to its end; return what it has said."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def to_rounding(expected):
    """Return what is equal to some losses."""
    return pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_linear_classification(folder, optimizer):
    """Synchronous workers: as with MXNet's servers, whoever sums and updates."""
    words = script("linear_classification", "--kvstore", "dist_sync", "--optimizer", optimizer)
    expected = to_rounding(on_stock(folder, words))
    for layout in LAYOUTS:
        assert on_ours(folder, layout, words) == expected, layout


def test_factorization_machine(folder):
    """Asynchronous workers: one as in one process; two clients, whose order is by chance, to a tenth."""
    options = ("factorization_machine", *FILES, *RATES, "--kvstore")
    words = script(*options, "dist_async")
    found = alone(folder, script(*options, "local"))
    assert on_ours(folder, "--servers 2", words, workers=1) == to_rounding(found)
    # One client pushes the sum of two equal gradients, which weight decay alone tells from one of them.
    together = pytest.approx(np.repeat(found, 2), rel=1e-2)
    assert on_ours(folder, "--workers 2 --servers 2", words) == together
    # The least loss is that of the worker which was last, when all pushes had come.
    by_stock, by_ours = min(on_stock(folder, words)), min(on_ours(folder, LAYOUTS[0], words))
    assert by_ours == pytest.approx(by_stock, rel=0.1)
    assert by_stock < 0.75 * min(found)  # each worker's pushes count


def test_matrix_factorization(folder):
    """One worker as in one process, two as with MXNet's servers, once its module is given their store."""
    train, *options = script("matrix_factorization", "--factor-size", "8")
    words = (str(Path(__file__).with_name("module_store.py")), "dist_sync", train, *options)
    expected = to_rounding(alone(folder, (train, *options)))
    assert on_ours(folder, "--servers 2", words, workers=1) == expected
    expected = to_rounding(on_stock(folder, words))
    for layout in LAYOUTS:
        assert on_ours(folder, layout, words) == expected, layout
