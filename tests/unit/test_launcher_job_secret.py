"""The secret of a job, of whoever keeps it."""

from __future__ import annotations

import json
import os

import pytest

from kvstore_mpi.errors import UsageError
from mpilaunch.job_secret import job_record

SECRET = "0123456789abcdef" * 4


@pytest.fixture(name="mounted")
def _mounted(tmp_path):
    """Return a function that writes a file as Kubernetes mounts Secrets: behind two links."""

    def mount(text=SECRET, mode=0o400):
        (tmp_path / "..2026").mkdir()
        file = tmp_path / "..2026/secret"
        file.write_text(text)
        file.chmod(mode)
        (tmp_path / "..data").symlink_to("..2026")
        (tmp_path / "secret").symlink_to("..data/secret")
        return str(tmp_path / "secret")

    return mount


def test_a_secret_of_a_file(mounted):
    """It may end in a new line."""
    assert json.loads(job_record("7", mounted(f"{SECRET}\n"))) == {"job": "7", "secret": SECRET}


def test_a_secret_that_is_made():
    """Each time another one, of 32 bytes."""
    made = {json.loads(job_record("7", ""))["secret"] for _ in range(3)}
    assert [len(bytes.fromhex(each)) for each in made] == [32] * 3


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o602], ids=oct)
def test_a_file_that_others_can_read(mounted, mode):
    """What to do is said, and the secret is not."""
    with pytest.raises(UsageError, match=rf"secret .*mode {mode:04o}.*chmod 400") as caught:
        job_record("7", mounted(mode=mode))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", SECRET[1:], f"{SECRET}0", SECRET.replace("a", "g"), f"{SECRET} {SECRET}"]
)
def test_a_file_without_a_secret(mounted, text):
    """What it holds instead is not said: it may be another secret."""
    with pytest.raises(UsageError, match="64 hexadecimal digits") as caught:
        job_record("7", mounted(text))
    assert not text or text not in str(caught.value)


def test_what_is_no_file(tmp_path):
    """Nothing waits for whoever might write to a pipe."""
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        job_record("7", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        job_record("7", str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        job_record("7", str(tmp_path / "pipe"))
