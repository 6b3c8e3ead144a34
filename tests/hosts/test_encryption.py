"""A whole job on two hosts, and somebody on one of them who listens in on its link."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN

SCRIPTS = Path(__file__).resolve().parents[1] / "launcher/scripts"
PATTERN = "0.7654321"
"""Of the gradient: its bytes in float32 are looked for."""

PUSHES = f"""
import numpy as np
from kvstore_mpi.node import process_worker
from kvstore_mpi.testing.blocking_store import BlockingStore

worker = process_worker("a test", "sync")
store = BlockingStore(worker)
store.begin_init("w", np.zeros(5000, np.float32)).result(60)
for _ in range(5):
    store.begin_pushpull("w", np.full(5000, {PATTERN}, np.float32)).result(60)
assert np.allclose(store.value("w"), worker.num_workers * {PATTERN})
worker.close()
print("TRAINED", flush=True)
"""

SNIFFS = f"""
import socket, sys, numpy as np
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
tap.bind(("eth0", 0))
tap.settimeout(1)
pattern, seen, count = np.full(4, {PATTERN}, np.float32).tobytes(), 0, 0
print("LISTENS", flush=True)
import select
while True:
    ready, _, _ = select.select([tap, sys.stdin], [], [])
    if tap in ready:
        packet = tap.recv(65536)
        seen, count = seen + (pattern in packet), count + len(packet)
    elif sys.stdin in ready:
        break
print(seen, count, flush=True)
"""

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_gradient_between_hosts(cluster, tmp_path, encrypt):
    """Its bytes are seen without --encrypt and not with it; the sums are the same."""
    script = tmp_path / "pushes.py"
    script.write_text(PUSHES)
    command = cluster.command("node0", [sys.executable, "-c", SNIFFS])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sniffer:
        assert sniffer.stdout.readline() == "LISTENS\n"
        done = cluster.run(
            LOGIN,
            [
                *("env", f"PYTHONPATH={SCRIPTS / 'without_mxnet'}", sys.executable, "-m", "mpilaunch.cli"),
                *("--ssh", cluster.ssh, "--log-dir", str(tmp_path / "logs"), "--hosts", "node0:1,node1:1"),
                *("--clients", "2", "--servers", "1", *(["--encrypt"] if encrypt else []), str(script)),
            ],
            timeout=120,
        )
        said, _ = sniffer.communicate("\n", timeout=60)
    assert done.stdout.count("TRAINED") == 2, done.stdout + done.stderr
    seen, count = map(int, said.split())
    assert count > 5 * 2 * 20_000  # pushes and values of the worker that is not where the server is
    assert (seen > 0) is not encrypt
    cluster.check_nothing_left()
