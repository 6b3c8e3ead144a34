"""The secret by which the processes of a job know each other: made for each job, or read from a file.

A file is for who keeps secrets elsewhere, as Kubernetes does, which mounts them with links in their path.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat

from kvstore_mpi.errors import UsageError

SECRET_BYTES = 32
_HEX = re.compile(rb"\s*([0-9a-f]{%d})\s*" % (2 * SECRET_BYTES))
_MOST_BYTES = 1024


def make_secret() -> str:
    """Return a new secret, as hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES)


def job_record(job: str, secret_file: str) -> bytes:
    """Return what each process of a job reads from its private directory.

    Args:
        job: The job's number.
        secret_file: Where its secret is; empty if it is to be made.

    Raises:
        UsageError: The file cannot be read, others can read it, or there is no secret in it.
    """
    secret = _read(secret_file) if secret_file else make_secret()
    return json.dumps({"job": job, "secret": secret}).encode()


def _read(path: str) -> str:
    try:
        # The opening of a named pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MOST_BYTES) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise UsageError(f"--secret-file {path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"--secret-file {path} can be read or written by others (mode {stat.S_IMODE(mode):04o}): "
            "say chmod 400, or defaultMode: 0400 on Kubernetes"
        )
    found = _HEX.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--secret-file {path} has no secret, {2 * SECRET_BYTES} hexadecimal digits: "
            f"make one with openssl rand -hex {SECRET_BYTES}"
        )
    return found[1].decode()
