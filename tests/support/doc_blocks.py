"""Reads the code blocks of the documents, and says what each needs to run.

A block of Python or of commands that is not named here is a mistake: it runs, or there is a reason why not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = {"python", "bash", "text", "diff", "toml"}
ALONE = ()
"""A script that runs without a job."""

IN_A_JOB = ("mpilaunch", "--clients", "2", "--servers", "1")
IN_RANKS = ("mpilaunch", "--model-parallel", "2", "--")
IN_MPI = ("mpiexec", "-n", "2")

NET = """
import mxnet as mx
from mxnet import autograd, gluon
from kvstore_mpi.mxnet import *
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.Dense(2, in_units=4))
net.initialize()
loss_fn, batch_size, hyper = gluon.loss.L2Loss(), 4, {"learning_rate": 0.1}
loader = [(mx.nd.ones((4, 3)), mx.nd.ones((4, 2)))] * 2
"""
"""What the examples leave to their readers: a net, a loss and data."""

STEP = """
with autograd.record():
    loss = loss_fn(net(loader[0][0]), loader[0][1])
loss.backward()
"""
STEP_OF_BATCH = """with autograd.record():
        loss = loss_fn(net(data), label)
    loss.backward()
"""
PARTS = """
class Top(gluon.HybridBlock):
    def hybrid_forward(self, F, left, right):
        return left + right
left, right, top, loss = gluon.nn.Dense(2), gluon.nn.Dense(2), Top(), loss_fn
left.initialize(), right.initialize()
images, labels = loader[0]
words, kv = images, mx.kv.create("sync-mpi")
"""
GROUP = """
import numpy as np
from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup
gradient_of_device_0, gradient_of_device_1 = np.ones(8, np.float32), np.ones(8, np.float32)
"""


CLUSTER = """
python <<'END'
from pathlib import Path
from kvstore_mpi.planner import Cluster, EpochsCurve, Link, Roofline
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.epochs import write_curve
cluster = Cluster(1, None, 2, Link(1e9), device=Roofline(1e9, 1e9))
Path("cluster.toml").write_text(write_cluster(cluster))
few, many = {batches}
Path("curve.json").write_bytes(write_curve(EpochsCurve.of({{few: 4, many: 8}})))
END
"""
"""Commands that write what a plan is made of."""

DIGITS = "examples/digits_epochs.py --epochs 1"
"""A script of a few seconds that reports what it reaches."""


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        document: Where it stands, from the root of the repository.
        line: Where it begins.
        language: What follows its first fence.
        text: What stands in it.
    """

    document: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Setting:
    """What a block needs to run.

    Attributes:
        document: Where the block stands.
        part: A part of the block, by which it is found.
        launch: The command that the script is given to, if it is Python.
        before: Python that comes before it.
        after: Python that comes after it.
        replace: What readers are to replace by their own, or is too long for a test; and by what.
        reason: Why it cannot run, if it cannot.
    """

    document: str
    part: str
    launch: tuple[str, ...] = IN_A_JOB
    before: str = ""
    after: str = ""
    replace: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def fits(self, block: Block) -> bool:
        """Tell whether this is about a block."""
        return self.document == block.document and self.part in block.text

    def text_of(self, block: Block) -> str:
        """Return a block as it can run."""
        text = block.text
        for old, new in self.replace:
            assert old in text, f"{block.document}:{block.line} has no {old!r}"
            text = text.replace(old, new)
        return self.before + text + self.after


SETTINGS = [
    Setting(
        "docs/model-parallel.md",
        "# one worker of two ranks",
        replace=(("digits_pipeline.py", "digits_pipeline.py --epochs 1 --target 0"),),
    ),
    Setting(
        "docs/model-parallel.md",
        "PipelineTrainer(",
        launch=IN_RANKS,
        before=NET + "images, loss = mx.nd.ones((32, 3)), loss_fn\n",
    ),
    Setting(
        "docs/model-parallel.md",
        "parts_of(",
        before=NET + 'kv, loss, (images, labels) = mx.kv.create("sync-mpi"), loss_fn, loader[0]\n',
    ),
    Setting(
        "docs/model-parallel.md",
        "step_picture",
        before=CLUSTER.format(batches="480, 960"),
    ),
    Setting("docs/model-parallel.md", "parts = [", launch=IN_RANKS, before=NET + PARTS),
    Setting("README.md", "ArrayDataset"),
    Setting("README.md", "--workers 4 train.py"),
    Setting("README.md", "scripts/demo", replace=(("scripts/test", "scripts/test --version"),)),
    Setting("README.md", "pip install", replace=(("pip install", ": .ci/claims does pip install"),)),
    Setting(  # tests/mpi/test_sparse_examples.py has four workers, too
        "README.md",
        "examples/sparse",
        replace=(
            ("--workers 4", "--workers 2"),
            ("_parallel.py", "_parallel.py --quick"),
            ("language_model_parallel.py --quick", "language_model_parallel.py --quick --streams 8"),
        ),
    ),
    Setting("CONTRIBUTING.md", "def place", launch=ALONE, before="from __future__ import annotations\n"),
    Setting(
        "docs/choosing-a-mode.md",
        "DiLoCo()",
        before=NET + "from kvstore_mpi import DiLoCo\n",
        replace=(("    ...,", '    net.collect_params(), "sgd", kvstore=mx.kv.create("async-mpi"),'),),
        after=STEP + "trainer.step(4)\n",
    ),
    Setting(
        "docs/collectives.md",
        "calibrate",
        replace=(("profile.json ...", "profile.json train.py"), ("measure ...", "measure train.py")),
    ),
    Setting(
        "docs/several-hosts.md",
        "mpilaunch --hosts",
        replace=(("mpilaunch --hosts", "mpilaunch --dry-run --hosts"),),
    ),
    Setting("docs/several-hosts.md", "doctor --hosts", reason="there are no such hosts; see tests/hosts"),
    Setting("docs/jobs.md", "import launch", launch=ALONE),
    Setting("docs/kubernetes.md", "kubectl apply", replace=(("| kubectl apply -f -", "| grep kind:"),)),
    Setting("docs/kubernetes.md", "kubectl create", replace=(("kubectl create", "echo"),)),
    Setting(
        "docs/slurm.md", "salloc", reason="tests/hosts/test_slurm.py does it, where there is a cluster"
    ),
    Setting("docs/slurm.md", "render", replace=(("sbatch job.sh", "bash -n job.sh"),)),
    Setting("docs/slurm.md", "bsub", reason="there is no LSF here; tests/hosts/test_lsf.py has a stand-in"),
    Setting(
        "docs/seeing.md",
        "mpilaunch top",
        reason="they show a job that runs meanwhile, as tests/unit/test_observer.py does",
    ),
    Setting("docs/seeing.md", "compare", reason="it is of two runs; tests/launcher/test_trace.py compares"),
    Setting(
        "docs/seeing.md",
        "--metrics",
        replace=(("pip install", ": .ci/claims does pip install"), ("--metrics 9100", "--metrics 0")),
    ),
    Setting("docs/collectives.md", "start_allreduce", launch=IN_MPI, before=GROUP),
    Setting("docs/collectives.md", 'DESIGNS["auto"]', launch=IN_MPI, before=GROUP),
    Setting(
        "docs/elastic.md", "trainer.center()", before=NET, replace=(("...\ntrainer", STEP + "trainer"),)
    ),
    Setting(
        "docs/elastic.md", "Elastic(alpha", before=NET + "weight, center = mx.nd.ones(3), mx.nd.ones(3)\n"
    ),
    Setting(
        "docs/elastic.md",
        "compensate_delays",
        before=NET + 'kv = mx.kv.create("async-mpi")\n',
    ),
    Setting(
        "docs/planner.md",
        "measure-links",
        replace=(
            ("--workers 4 --hosts a:2,b:2", "--workers 2"),
            ("--target 0.97 --batch 32 train.py", f"--target 0.1 --batch 32 --delays 1,2 {DIGITS}"),
            ("--picture plan.png train.py", DIGITS),
            ("--plan plan.json", "--dry-run --plan plan.json"),
        ),
    ),
    Setting(
        "docs/planner.md",
        "examples/digits_pipeline.py",
        before=CLUSTER.format(batches="128, 256"),
        replace=(("benchmarks/", f"{ROOT}/benchmarks/"), ("--epochs 2", "--epochs 1")),
    ),
    Setting(
        "docs/planner.md",
        "--output plan.json net-symbol.json",
        before=CLUSTER.format(batches="32, 64")
        + f"python <<'END'{NET}net.hybridize()\nnet(mx.nd.ones((1, 3)))\nnet.export('net')\nEND\n",
        replace=(("data:32,3,224,224", "data:32,3"), ("--plan plan.json", "--dry-run --plan plan.json")),
    ),
    Setting(
        "docs/planner.md",
        "SymbolBlock",
        launch=ALONE,
        before=NET
        + "net.hybridize()\nnet(loader[0][0])\nnet.export('net')\n"
        + "kv, loss = mx.kv.create('local'), loss_fn\n",
        after="trainer.step(*loader[0])\n",
    ),
    Setting(
        "docs/planner.md",
        "DelayedTrainer(",
        before=f"{NET}from kvstore_mpi import report_epoch\n"
        'kv, train, accuracy = mx.kv.create("sync-mpi"), lambda _: None, lambda _: 1.0\n',
    ),
    Setting("docs/elastic.md", "simulated_exchange", replace=(("0 2000", "0 5"),)),
    Setting(
        "docs/large-tables.md",
        "TableEmbedding(",
        before=NET
        + 'trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="sync-mpi")\n'
        + "net = lambda rows: rows.sum(axis=1)\n"
        + "batches = [([1, 2**62], mx.nd.ones(2), [3, 1])] * 3\n",
        replace=(("    trainer.step(batch_size)\n", ""),),
        after="assert users([1, 2**62, 5]).shape == (3, 64)\n",
    ),
    Setting(
        "docs/sparse.md",
        "sparse_routes",
        replace=(("python ", f"python {ROOT}/"), ("docs/images/", "")),
    ),
    Setting(
        "docs/sparse.md",
        "parallel(trainer)",
        before=f"{NET}dataset = gluon.data.ArrayDataset(mx.nd.ones((9, 3)), mx.nd.ones((9, 2)))\n",
        replace=(("...\n", STEP_OF_BATCH),),
        after="assert kv.num_workers == 2\n",
    ),
    Setting(
        "docs/sparse.md",
        "compression_params",
        before=NET + 'kv = mx.kv.create("sync-mpi")\n',
        after=STEP + "assert kv.server_optimizer.compress\n",
    ),
    Setting(
        "docs/sparse.md",
        "kv.partitioner",
        before="import mxnet as mx\nimport kvstore_mpi.mxnet\n",
        after="table = mx.nd.ones((9, 2)).tostype('row_sparse')\n"
        "kv.init(['decoder0', 'embedding0'], [table] * 2)\n"
        "assert [each.partitions for each in kv.plan().keys] == [8, 1]\n",
    ),
    Setting(
        "docs/sparse.md",
        "average_weights",
        before=NET + "import kvstore_mpi.mxnet\n",
        replace=(("\n...\n", STEP + "trainer.step(batch_size)\n"),),
    ),
    Setting(
        "docs/sparse.md",
        "clip_global_norm",
        before=NET,
        after=STEP + "trainer.step(batch_size)\nassert kv.server_optimizer.clip_norm == 5\n",
    ),
    Setting("docs/placement.md", "graph_of(vision", launch=ALONE, after="assert found.gap == 0\n"),
    Setting("docs/tracing.md", "--trace run1"),
    Setting("docs/tracing.md", '    ...\nwith annotate("backward")', launch=ALONE),
    Setting(
        "docs/tracing.md",
        "wait_for_weights",
        before=NET
        + "from kvstore_mpi import annotate\n"
        + 'trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=mx.kv.create("sync-mpi"))\n',
    ),
    Setting(
        "docs/tracing.md",
        "picture",
        replace=(("--epochs 2", "--epochs 1"), ("docs/images/trace.png", "trace.png")),
    ),
]


def read(path: Path) -> list[Block]:
    """Return the blocks of a document."""
    text = path.read_text(encoding="utf-8")
    document = str(path.relative_to(ROOT))
    return [
        Block(document, text[: match.start()].count("\n") + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def benchmark_commands() -> list[str]:
    """Return the lines that measure something, for minutes or hours; without what follows them."""
    return [
        line.partition("  #")[0].strip()
        for block in ALL
        if block.document.startswith("benchmarks") and block.language == "bash"
        for line in block.text.splitlines()
    ]


ALL = [block for path in DOCUMENTS for block in read(path)]
RUN = [block for block in ALL if block.language in {"python", "bash"} and block.document[:5] != "bench"]
