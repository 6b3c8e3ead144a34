"""What every host back end must do; the local one does it."""

import mmap
import os
import select
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from mpilaunch.hosts import reaper
from mpilaunch.hosts.local import LocalHost


@pytest.fixture
def host():
    with LocalHost() as host:
        yield host
    assert not Path(host.directory).exists()


def read_all(descriptor):
    """Read a descriptor to its end."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def reap(host, name, descriptor):
    """Wait for the end of what a process says, then for its own."""
    read_all(descriptor)
    while True:
        for ended in host.reap():
            assert ended.name == name
            return ended
        os.sched_yield()


def test_files_are_private(host):
    """Only the user can read them, and they are read back as they were put."""
    path = host.put("job.json", b"secret")
    assert path == f"{host.directory}/job.json"
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(host.directory).stat().st_mode) == 0o700
    assert host.read("job.json") == b"secret"
    assert host.read("nosuch") is None
    with pytest.raises(FileExistsError):
        host.put("job.json", b"another")


@pytest.mark.parametrize("make", [LocalHost.listen, LocalHost.talk])
def test_a_pipe_that_cannot_be_made_is_named(host, make):
    """As where the folder for temporary files is full."""
    os.close(make(host, "news"))
    with pytest.raises(FileExistsError) as caught:
        make(host, "news")
    assert caught.value.filename == f"{host.directory}/news"


@pytest.mark.parametrize("leads", [True, False], ids=["a group of its own", "in another's group"])
def test_a_rank_is_signalled_directly(host, leads):
    """With all of its group if it leads one; nothing happens if it has gone."""
    program = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, start_new_session=leads) as rank:
        helper = int(rank.stdout.readline())
        host.signal_rank(rank.pid, signal.SIGUSR1)
        assert rank.wait() == -signal.SIGUSR1
        if leads:
            assert rank.stdout.read() == b""  # its helper has gone, too
        else:
            os.kill(helper, signal.SIGKILL)
    host.signal_rank(rank.pid, signal.SIGUSR1)


def test_a_process_says_what_it_has_to_say_and_ends_with_a_code(host):
    """Output and errors apart, and a code of its own; it sees the environment that it was given."""
    program = "echo $COLOUR; echo oh >&2; exit 3"
    out, err = host.spawn("server0", ("sh", "-c", program), {"COLOUR": "blue", "PATH": os.environ["PATH"]})
    assert (out.is_error, err.is_error) == (False, True)
    assert read_all(out.descriptor) == b"blue\n"
    ended = reap(host, "server0", err.descriptor)
    assert (ended.name, ended.code) == ("server0", 3)
    assert host.reap() == []


def test_a_process_is_signalled_by_its_name(host):
    """128 + n is its code then; a name that nobody has any more does nothing."""
    out, err = host.spawn("client0", ("sleep", "100"), dict(os.environ))
    host.signal("client0", signal.SIGTERM)
    read_all(out.descriptor)
    assert reap(host, "client0", err.descriptor).code == 128 + signal.SIGTERM
    host.signal("client0", signal.SIGTERM)


def test_the_end_of_a_rank_is_seen_by_its_number(host):
    """Also of one that another process has started."""
    out, err = host.spawn("client0", ("sleep", "100"), dict(os.environ))
    pid = host._children["client0"].pid
    descriptor = host.watch(pid)
    assert select.select([descriptor], [], [], 0)[0] == []
    host.signal("client0", signal.SIGKILL)
    assert select.select([descriptor], [], [], 30)[0] == [descriptor]
    os.close(descriptor)
    read_all(out.descriptor)
    reap(host, "client0", err.descriptor)
    with pytest.raises(ProcessLookupError):
        host.watch(pid)


def test_pipes_to_hear_and_to_talk(host):
    """One ends when its writers have, one lasts; what is told waits for its reader."""
    ends, lasts = host.listen("records/0.0.out"), host.listen("records/events", lasting=True)
    for name, text in (("0.0.out", "one"), ("events", "two")):
        script = f"echo {text} > {host.directory}/records/{name}"
        out, err = host.spawn(name, ("sh", "-c", script), dict(os.environ))
        os.close(out.descriptor)
        reap(host, name, err.descriptor)
    assert os.read(ends, 100) == b"one\n"
    assert os.read(ends, 100) == b""
    assert os.read(lasts, 100) == b"two\n"
    with pytest.raises(BlockingIOError):
        os.read(lasts, 100)
    talking = host.talk("news")
    os.write(talking, b"three\n")
    out, err = host.spawn("reader", ("head", "-n", "1", f"{host.directory}/news"), dict(os.environ))
    assert read_all(out.descriptor) == b"three\n"
    reap(host, "reader", err.descriptor)
    for descriptor in (ends, lasts, talking):
        os.close(descriptor)


def test_what_is_left_is_ended_with_the_host():
    """Every process that knows the private directory, and the directory."""
    with LocalHost() as host:
        out, err = host.spawn(
            "client0", ("sleep", "100"), {**os.environ, "KVMPI_RECORD_DIR": host.directory}
        )
    assert read_all(out.descriptor) == b""
    assert reap(host, "client0", err.descriptor).code == 128 + signal.SIGKILL


def test_a_process_that_just_begins_is_found(tmp_path):
    """In the middle of an exec its environment is empty: of 100, some 30 would be left behind."""
    mark = os.fsencode(tmp_path)
    environment = {"PATH": os.environ["PATH"], "MARK": str(tmp_path)}
    for _ in range(100):
        with subprocess.Popen(["sleep", "60"], env=environment) as child:
            found = reaper.environment_of(Path(f"/proc/{child.pid}"))
            child.kill()
            assert mark in found


def test_segments_that_nobody_has_mapped_are_removed(tmp_path):
    """MPICH leaves them when a rank is killed within MPI_Init; those of other jobs are left alone."""
    memory, directory = tmp_path / "shm", tmp_path / "job"
    for folder in (memory, directory):
        folder.mkdir()
    began = time.time() - 10.0
    paths = [memory / name for name in ("mpich_shm_1_0", "mpich_shm_11_0", "mpich_shm_1_02", "other")]
    for path in paths:
        path.write_bytes(bytes(mmap.PAGESIZE))
    with paths[1].open("r+b") as file, mmap.mmap(file.fileno(), 0):
        reaper.remove(directory, time.time() + 10.0, memory)
        assert not directory.exists()
        assert sorted(memory.iterdir()) == sorted(paths)  # all of them are older
        reaper.remove(directory, began, memory)
        assert sorted(memory.iterdir()) == sorted(paths[i] for i in (1, 3))
