"""A host behind an agent, which a pipe reaches here as ssh reaches it elsewhere."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvstore_mpi.errors import ConfigurationError
from mpilaunch.hosts import messages as m
from mpilaunch.hosts.orders import Orders
from mpilaunch.hosts.remote import LOST, RemoteHost

AGENT = [sys.executable, "-m", "mpilaunch.hosts.agent"]
SOON_S = 20.0


@pytest.fixture(name="host")
def _host(tmp_path):
    """A host that is open."""
    host = reach(tmp_path)
    host.open(str(tmp_path), SOON_S)
    yield host
    host.close()
    host.join()
    wait_for(lambda: not (tmp_path / "private").exists())  # soon, if the agent itself was killed


def reach(folder, command=AGENT, silence=20.0):
    host = RemoteHost("far", command, remedy=str.upper, directory=str(folder / "private"), silence=silence)
    host.facts(SOON_S)
    return host


def read_all(descriptor):
    """Read a pipe to its end."""
    data = b""
    while select.select([descriptor], [], [], SOON_S)[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            os.close(descriptor)
            return data
        data += part
    raise AssertionError(f"no end after {data[-200:]!r}")


def wait_for(holds):
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_over(process):
    """Return whether a process is gone, or a zombie that nobody waits for."""
    try:
        return not (process / "cmdline").read_bytes()
    except FileNotFoundError:
        return True


def reap(host, count=1):
    """Wait for the ends of processes."""
    ended = []
    while len(ended) < count:
        assert select.select([host.news()], [], [], SOON_S)[0]
        ended += host.reap()
    return ended


def run(host, *argv):
    """Run a process; return what it says."""
    out, err = host.spawn("process", argv, dict(os.environ))
    assert (out.is_error, err.is_error) == (False, True)
    return read_all(out.descriptor), read_all(err.descriptor)


def test_processes(host, tmp_path):
    """What they say, in their folder, and their exit codes; also of those that cannot be started."""
    assert run(host, "sh", "-c", "pwd; echo bad >&2; exit 3") == (f"{tmp_path}\n".encode(), b"bad\n")
    assert [each[:2] for each in reap(host)] == [("process", 3)]
    assert b"No such file" in run(host, "no such program")[1]
    assert [each[:2] for each in reap(host)] == [("process", 71)]


def test_much_output(host):
    """More than a pipe holds, which waits for whoever reads."""
    out, _ = run(host, sys.executable, "-c", "print('x' * 3_000_000)")
    assert len(out) == 3_000_001
    reap(host)


def test_signals(host):
    """By name."""
    streams = host.spawn("sleeper", ["sleep", "100"], dict(os.environ))
    host.signal("sleeper", signal.SIGTERM)
    assert [each[:2] for each in reap(host)] == [("sleeper", 128 + signal.SIGTERM)]
    for stream in streams:
        os.close(stream.descriptor)


def test_files_and_pipes(host, tmp_path):
    """Private ones; what processes write to a pipe comes, and what we write to another goes there."""
    path = Path(host.put("some/file", b"content"))
    heard = host.listen("heard")
    talk = host.talk("told")
    script = f"cat {path}; cat {path} > {host.directory}/heard; head -n 1 {host.directory}/told"
    os.write(talk, b"word\nmore\n")
    assert run(host, "sh", "-c", script)[0] == b"contentword\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_all(heard) == b"content"
    os.close(talk)
    reap(host)


def test_ranks(host):
    """Their ends are seen, and the record that one has left comes before what tells of it."""
    events = host.listen("records/events", lasting=True)
    script = "echo $$ > {0}/events; read x < {0}/go; echo end > {0}/1.exit.json; echo over > {0}/events"
    go = host.talk("records/go")
    out, err = host.spawn(
        "rank", ["sh", "-c", script.format(f"{host.directory}/records")], dict(os.environ)
    )
    assert select.select([events], [], [], SOON_S)[0]
    gone = host.watch(int(os.read(events, 100)))
    assert host.read("records/1.exit.json") is None
    os.write(go, b"\n")
    assert select.select([events], [], [], SOON_S)[0]
    assert os.read(events, 100) == b"over\n"
    assert host.read("records/1.exit.json") == b"end\n"
    assert read_all(gone) == b""
    for descriptor in (go, events, out.descriptor, err.descriptor):
        os.close(descriptor)
    reap(host)


def test_who_has_gone_already(host):
    """Is seen at once."""
    out, _ = run(host, "sh", "-c", "echo $$")
    reap(host)
    assert read_all(host.watch(int(out))) == b""


def test_settling(host):
    """All that was said before is there when the descriptor can be read."""
    heard = host.listen("heard", lasting=True)
    run(host, "sh", "-c", f"head -c 60000 /dev/zero > {host.directory}/heard")
    assert read_all(host.settle()) == b""
    assert len(os.read(heard, 1 << 20)) == 60_000
    os.close(heard)
    reap(host)


def test_the_launcher_that_goes_takes_all_along(host):
    """Processes, and theirs."""
    out, err = host.spawn(
        "job", ["sh", "-c", "sleep 1000 & echo $!; wait"], {**os.environ, "X": host.directory}
    )
    assert select.select([out.descriptor], [], [], SOON_S)[0]
    helper = Path("/proc") / os.read(out.descriptor, 100).decode().strip()
    host.close()
    host.join()
    wait_for(lambda: is_over(helper))
    for stream in (out, err):
        os.close(stream.descriptor)


def test_a_launcher_that_says_nothing_is_dead(tmp_path):
    """As when its host has lost the network: the agent ends everything by itself."""
    host = reach(tmp_path, silence=1.0)
    host.open(str(tmp_path), SOON_S)
    os.kill(host._process.pid, 0)
    say_nothing(host, grace=0.0)
    wait_for(lambda: bool(host.lost()))
    host.join()


def say_nothing(host, grace):
    """Be silent for longer than the agent's limit, which it is told anew."""
    host._orders.put(m.Open("", "", 0.3, grace))
    host._orders._pause = 1000.0  # until now we speak every 0.2 s


SAVES = """
import os, signal, sys
def save(*_):
    os.write(1, b"saved")
    if sys.argv[1] == "ends":
        sys.exit(75)
signal.signal(signal.SIGUSR1, save)
os.write(1, str(os.getpid()).encode())
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("what", "grace"), [("ends", 600.0), ("goes on", 1.0)])
def test_ranks_save_when_the_launcher_says_nothing(tmp_path, what, grace):
    """It may be stopped. The agent waits for them, but not for longer than their grace."""
    host = reach(tmp_path, silence=1.0)
    host.open(str(tmp_path), SOON_S)
    environment = {**os.environ, "X": host.directory}
    out, err = host.spawn("job", [sys.executable, "-c", SAVES, what], environment)
    assert select.select([out.descriptor], [], [], SOON_S)[0]
    ended = host.watch(int(os.read(out.descriptor, 100)))
    say_nothing(host, grace)
    assert select.select([ended], [], [], SOON_S)[0]
    wait_for(lambda: bool(host.lost()))
    assert read_all(out.descriptor) == b"saved"
    assert [each[:2] for each in reap(host)] == [("job", 75 if what == "ends" else LOST)]
    os.close(err.descriptor)
    host.join()


TALKS = SAVES.replace('os.write(1, b"saved")', "saves = open('saved', 'x')").replace(
    "signal.pause()", 'os.write(1, b"x" * 4096)'
)


@pytest.mark.parametrize("what", ["ends", "goes on"])
def test_a_talkative_rank_saves_when_the_launcher_has_stopped_reading(tmp_path, what):
    """As when it is stopped, or cut off, in the middle of a line: the agent waits in no write."""
    private = tmp_path / "private"
    environment = {**os.environ, "X": str(private)}
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:

        def tell(*messages):
            for each in messages:
                agent.stdin.write(m.encode(each))
            agent.stdin.flush()

        argv = [sys.executable, "-c", TALKS, what]
        tell(m.Open(str(private), str(tmp_path), 1.0, 600.0 if what == "ends" else 1.0))
        tell(m.Spawn("rank", argv, environment, 1, 2))
        stream, said = m.Stream(greeted=False), []
        while not any(isinstance(each, m.Data) for each in said):
            said += stream.feed(os.read(agent.stdout.fileno(), 4096))
        pid = next(each.content for each in said if isinstance(each, m.Data))
        tell(m.Watch(3, int(pid[: pid.index(b"x")] if b"x" in pid else pid)))
        assert agent.wait(SOON_S) == 0  # though nobody reads, nor closes, its output
        assert not private.exists()
    assert (tmp_path / "saved").exists()


STOPPED = """
import os
import sys
from mpilaunch.hosts.orders import Orders
orders = Orders(open(os.devnull, "wb"), "h", 0.5)
print("begins", flush=True)
sys.stdin.readline()
print(orders.stopped(), flush=True)
"""


def test_a_launcher_that_was_stopped_knows_it():
    """It is none of the hosts' fault that they have taken it for dead."""
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(1.5)  # how long it is stopped is what this is about
        process.send_signal(signal.SIGCONT)
        told, _ = process.communicate("\n", timeout=SOON_S)
    assert float(told) >= 1.3


def test_who_was_not_stopped_knows_that():
    """However long nothing has been ordered: then the agent is told that we are alive."""
    reading, writing = os.pipe()
    orders, alive = Orders(os.fdopen(writing, "wb"), "h", 0.5), m.encode(m.Alive())
    with os.fdopen(reading, "rb") as told:
        for _ in range(3):
            assert told.read(len(alive)) == alive
            assert orders.stopped() == 0.0
        orders.put(None)


def test_a_host_that_is_lost(host):
    """Who waits for anything there is told: processes have ended, and pipes."""
    out, err = host.spawn("job", ["sleep", "1000"], {**os.environ, "X": host.directory})
    assert select.select([host.watch(1)], [], [], 0.2)[0] == []
    host._process.kill()
    assert [each[:2] for each in reap(host)] == [("job", LOST)]
    assert host.lost() == "exit code -9 of the connection"
    assert read_all(out.descriptor) == b""
    assert read_all(err.descriptor) == b""
    for stream in host.spawn("another", ["true"], {}):
        assert read_all(stream.descriptor) == b""
    assert [each[:2] for each in reap(host)] == [("another", LOST)]
    assert read_all(host.settle()) == b""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "-c", "echo Permission denied >&2; exit 255"], "Permission denied"),
        (["sh", "-c", "echo 'This account is currently not available.'"], "currently not available"),
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["sleep", "100"], "did not answer within 0.5 s"),
    ],
)
def test_hosts_that_cannot_be_used(tmp_path, command, words):
    """The error names the host, what was said, and what to do about that."""
    host = RemoteHost("far", command, remedy=str.upper, directory=str(tmp_path / "private"), silence=20.0)
    with pytest.raises(ConfigurationError, match="host far cannot be used") as caught:
        host.facts(0.5 if command[0] == "sleep" else SOON_S)
    assert words in str(caught.value)
    assert words.upper() in str(caught.value)
    host._process.kill()


def test_a_shell_that_greets(tmp_path):
    """What it says before the agent does is no message."""
    host = reach(tmp_path, ["sh", "-c", f"echo 'Welcome to this machine'; exec {' '.join(AGENT)}"])
    host.close()
    host.join()


def test_something_else_that_speaks(tmp_path):
    """After the agent's greeting: that host is lost."""
    script = r"printf '\0kvstore_mpi%ss agent speaks\0HTTP/1.1 400' \'; sleep 100"
    host = RemoteHost(
        "far", ["sh", "-c", script], remedy=str.upper, directory=str(tmp_path / "private"), silence=20.0
    )
    with pytest.raises(ConfigurationError, match=r"something else speaks there: HTTP/1\.1 400"):
        host.facts(SOON_S)


def test_another_version(tmp_path, monkeypatch):
    """Of the package on that host."""
    monkeypatch.setattr("mpilaunch.hosts.remote.__version__", "99")
    with pytest.raises(ConfigurationError, match=r"host far has kvstore_mpi .*, this one 99"):
        reach(tmp_path)


def test_folders_that_are_not_there(tmp_path):
    """The job's own, that of temporary files, and one that two hosts share."""
    (tmp_path / "private").mkdir()
    host = reach(tmp_path)
    with pytest.raises(ConfigurationError, match=r"private is there already: hosts must not share"):
        host.open(str(tmp_path), SOON_S)
    host.close()
    host.join()
    host = reach(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no folder /nowhere here"):
        host.open("/nowhere", SOON_S)
    host.close()
    host.join()
    host = reach(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="for temporary files; set TMPDIR"):
        host.open(str(tmp_path), SOON_S)
    host.close()
    host.join()
