"""What an MPIJob runs, with the files and variables that the MPI operator gives to its pods."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.virtual_hosts import LOGIN

ROOT = Path(__file__).resolve().parents[2]
TELLS = """import hashlib, json, os, pathlib
_secret = json.loads(pathlib.Path(os.environ["KVMPI_JOB_FILE"]).read_text())["secret"]
print("KNOWS", hashlib.sha256(_secret.encode()).hexdigest(), flush=True)
"""

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.thorough]


def test_the_launchers_command(cluster):
    """It reads the hostfile and the Secret, takes the keys of the workers at first sight, and trains."""
    shape = ("--nodes", 2, "--clients", 2, "--servers", 2, "--workers", 4)
    pod = ("--image", "train:1", "--cpus", 4, "--memory", "8Gi")
    logs = ("--log-dir", cluster.folder / "logs")
    script = cluster.folder / "steps.py"
    script.write_text(TELLS + (ROOT / "tests/launcher/scripts/first_steps.py").read_text())
    words = [*pod, *shape, *logs, script]
    render = [sys.executable, "-m", "mpilaunch", "render", "--backend", "kubernetes", *map(str, words)]
    said = subprocess.run(render, capture_output=True, text=True, check=True).stdout
    secret, job = yaml.safe_load_all(said)
    command = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    (value,) = secret["stringData"].values()
    (cluster.folder / "secret").write_text(value)
    (cluster.folder / "secret").chmod(0o400)
    command = [word.replace("/etc/kvstore_mpi/", f"{cluster.folder}/") for word in command]
    # ~/.ssh of a pod has the key; that of this machine stays as it is.
    (cluster.folder / "config").write_text(f"IdentityFile {cluster.folder}/user_key\nIdentitiesOnly yes\n")
    tools = cluster.folder / "bin"
    tools.mkdir()
    (tools / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {cluster.folder}/config "$@"\n')
    (tools / "ssh").chmod(0o755)
    (cluster.folder / "hostfile").write_text("node0:2\nnode1:2\n")
    path = f"{tools}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {
        "PATH": path,
        "HYDRA_HOST_FILE": f"{cluster.folder}/hostfile",
        "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "K_MPI_JOB_ROLE": "launcher",
        "OMP_NUM_THREADS": "1",
    }
    told = ["env", *(f"{name}={value}" for name, value in env.items())]
    done = cluster.run(LOGIN, [*told, *command], timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert f"the MPIJob has node0:2, node1:2 ({cluster.folder}/hostfile)" in said
    assert "node1: client1 ranks 0 to 1, server1" in said
    assert said.count(f"KNOWS {hashlib.sha256(value.encode()).hexdigest()}") == 4
    assert value not in said
    cluster.check_nothing_left()
