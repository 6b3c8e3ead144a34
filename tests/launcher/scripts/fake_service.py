"""A scheduler or a server that knows only how to begin and end: it goes when all workers have left.

The scheduler listens on a port of its own; every worker and server holds a connection to it.
"""

import json
import os
import socket
import sys
from pathlib import Path


def scheduler():
    secret = json.loads(Path(os.environ["KVMPI_JOB_FILE"]).read_text())["secret"]
    assert len(bytes.fromhex(secret)) == 32
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    with Path(os.environ["KVMPI_READY_PIPE"]).open("w") as ready:
        ready.write(json.dumps({"addresses": [f"tcp://{host}:{port}"]}) + "\n")
    workers = [None] * int(os.environ["KVMPI_NUM_WORKERS"])
    servers = [None] * int(os.environ["KVMPI_NUM_SERVERS"])
    for _ in range(len(workers) + len(servers)):
        connection, _ = listener.accept()
        role = connection.recv(1)
        (workers if role == b"w" else servers).append(connection)
    for worker in workers[len(workers) // 2 :]:
        worker.recv(1)


def server():
    host, port = os.environ["KVMPI_SCHEDULER"].split(",")[0][len("tcp://") :].split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.send(b"s")
        sys.stdout.write(f"serving {os.getpid()}\n")
        sys.stdout.flush()
        connection.recv(1)


if __name__ == "__main__":
    assert "DMLC_ROLE" not in os.environ
    {"scheduler": scheduler, "server": server}[os.environ["KVMPI_ROLE"]]()
