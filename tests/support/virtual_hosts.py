"""Hosts that ssh reaches, on one machine: namespaces of network, processes, names, mounts, and an sshd.

A host shares the file system with this machine, as clusters share home folders, but neither ``/tmp`` nor
``/dev/shm``. Needs root, iproute2, util-linux and openssh-server. Beside the hosts there is a login node,
which has no sshd.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from harness.netns import Network, NetworkError, check_tools  # type: ignore  # noqa: E402, PGH003

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

READY_S = 20.0
LEFT_S = 15.0
"""What is left of a job when it has ended must be gone so soon."""

LINK_BITS_PER_S = 1e9
"""What each host's link carries in either direction, by a token bucket."""

SSHD = "/usr/sbin/sshd"
LOGIN = "login"

_SETUP = """
set -e
echo "$NAME" >/proc/sys/kernel/hostname
mount --bind "$FOLDER/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
# By it MPI and others tell whether two processes share memory.
cat /proc/sys/kernel/random/uuid >"$FOLDER/$NAME.boot_id"
mount --bind "$FOLDER/$NAME.boot_id" /proc/sys/kernel/random/boot_id
mkdir -p "$FOLDER/$NAME.tmp"
mount --bind "$ROOT" "$FOLDER/root"
mount -t tmpfs tmpfs "$FOLDER/$NAME.tmp"
# What the hosts share may lie in /tmp.
mkdir -p "$FOLDER/$NAME.tmp$ROOT_IN_TMP" "$FOLDER/$NAME.tmp$FOLDER_IN_TMP"
mount --bind "$ROOT" "$FOLDER/$NAME.tmp$ROOT_IN_TMP"
mount --bind "$FOLDER" "$FOLDER/$NAME.tmp$FOLDER_IN_TMP"
mount --rbind "$FOLDER/$NAME.tmp" /tmp
# Whatever the user's shell does when it begins, such as waiting for a lock of pyenv, is no part of a test.
[ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc
touch "$FOLDER/$NAME.up"
exec "$@"
"""


def missing() -> str:
    """Return why there can be no such hosts here, or nothing."""
    try:
        check_tools()
    except NetworkError as error:
        return str(error)
    absent = [tool for tool in ("unshare", "nsenter", "ssh", SSHD) if shutil.which(tool) is None]
    return f"{', '.join(absent)} not found: install openssh-server and util-linux" if absent else ""


class VirtualHosts:
    """Hosts ``node0``, ``node1``, ...; a context manager that leaves nothing behind."""

    def __init__(self, number: int, folder: Path) -> None:
        """Nothing is made yet; ``folder`` is for keys and settings, and all hosts see it."""
        self.names = [f"node{index}" for index in range(number)]
        self.network = Network(number)
        self.folder = folder
        self.daemons: tuple[str, ...] = ("sshd: ", SSHD)  # how their commands begin
        self._inits: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def ssh(self) -> str:
        """The command that reaches them."""
        return f"ssh -F {self.folder}/ssh_config"

    def __enter__(self) -> Self:
        """Start them."""
        self.network.__enter__()
        try:
            with contextlib.suppress(NetworkError):  # a kernel without that filter
                self.network.limit(LINK_BITS_PER_S)
            self._write_settings()
            for name in (*self.names, LOGIN):
                self._start(name)
            for name in self.names:
                self._wait_for(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all that runs on them."""
        for name in list(self._inits):
            self.kill(name)
        self.network.__exit__()

    def kill(self, name: str) -> None:
        """Let a host die, with everything on it."""
        init = self._inits.pop(name)
        init.kill()
        init.wait()

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a host."""
        return ["nsenter", "--all", f"--target={self._pid_of(name)}", f"--wdns={ROOT}", *argv]

    def run(self, name: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        settings: dict[str, Any] = {"capture_output": True, "text": True, **options}
        return subprocess.run(self.command(name, argv), check=False, **settings)

    def processes(self, name: str) -> list[str]:
        """Return the commands of the processes on a host, without its daemons."""
        said = self.run(name, ["ps", "-eo", "args", "--no-headers"]).stdout.splitlines()
        # Connections that were cut hold an sshd until TCP gives them up.
        own = (*self.daemons, "ps -eo", "sleep infinity")
        return [line for line in said if not line.startswith(own) and not line.endswith("<defunct>")]

    def job_processes(self) -> list[psutil.Process]:
        """Return the processes on hosts that jobs have started, as this machine knows them."""
        found = []
        for name in self.alive:
            for process in psutil.Process(self._pid_of(name)).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    command = " ".join(process.cmdline())
                    if command and not command.startswith((*self.daemons, "sleep infinity")):
                        found.append(process)
        return found

    @property
    def alive(self) -> list[str]:
        """The hosts that have not been killed."""
        return [name for name in self.names if name in self._inits]

    def files(self, name: str) -> list[str]:
        """Return the private directories and the shared memory of jobs on a host."""
        look = ["sh", "-c", "ls -d /tmp/kvstore_mpi-* /dev/shm/* 2>/dev/null"]
        return self.run(name, look).stdout.split()

    def remove_files(self) -> None:
        """Remove them."""
        for name in [*self.alive, LOGIN]:
            for path in self.files(name):
                self.run(name, ["rm", "-rf", path])

    def check_nothing_left(self, but: str = "(none)") -> None:
        """Wait until no process, private directory or shared memory of a job is on any host.

        Args:
            but: How the commands of processes begin that are the cluster's and may stay for a while.
        """
        deadline = time.monotonic() + LEFT_S
        while left := self._left(but):
            if time.monotonic() > deadline:
                raise AssertionError(f"left on hosts: {left}")
            time.sleep(0.1)

    def _left(self, but: str) -> dict[str, list[str]]:
        found = {
            name: [*(each for each in self.processes(name) if not each.startswith(but)), *self.files(name)]
            for name in [*self.alive, LOGIN]
        }
        return {name: each for name, each in found.items() if each}

    def cut(self, name: str) -> None:
        """Let nothing through the host's link any more, in either direction."""
        self._link(name, "down")

    def mend(self, name: str) -> None:
        """Take that back."""
        self._link(name, "up")

    def _link(self, name: str, state: str) -> None:
        port = f"host{self.names.index(name)}-eth0"
        hub = f"{self.network._prefix}-hub"
        subprocess.run(["ip", "-n", hub, "link", "set", port, state], check=True)

    def _pid_of(self, name: str) -> int:
        """Return the first process of a host, which is the child of what has made its namespaces."""
        init = self._inits[name].pid
        children = Path(f"/proc/{init}/task/{init}/children").read_text(encoding="utf-8").split()
        return int(children[0])

    def _write_settings(self) -> None:
        folder = self.folder
        (folder / "root").mkdir()
        for key in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        addresses = {name: self.network.address(index) for index, name in enumerate(self.names)}
        addresses[LOGIN] = self.network.hub_address
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        public = (folder / "host_key.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text("".join(f"{name} {' '.join(public)}\n" for name in self.names))
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nPidFile none\n"
            "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        )
        (folder / "ssh_config").write_text(
            f"IdentityFile {folder}/user_key\nUserKnownHostsFile {folder}/known_hosts\n"
            "StrictHostKeyChecking yes\nIdentitiesOnly yes\n"
        )

    def _start(self, name: str) -> None:
        is_login = name == LOGIN
        program = (
            ["sleep", "infinity"] if is_login else [SSHD, "-D", "-e", "-f", f"{self.folder}/sshd_config"]
        )
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv = [*apart, "sh", "-c", _SETUP, "sh", *program]
        place = (
            self.network.in_hub(argv) if is_login else self.network.in_host(self.names.index(name), argv)
        )
        environment = {**os.environ, **self._variables(name)}
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._inits[name] = subprocess.Popen(place, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        while not (self.folder / f"{name}.up").exists():
            if self._inits[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name}: {(self.folder / f'{name}.log').read_text()}")
            time.sleep(0.02)

    def _variables(self, name: str) -> Mapping[str, str]:
        def in_tmp(path: Path) -> str:
            return str(path)[4:] if str(path).startswith("/tmp/") else "/unused"

        return {
            "NAME": name,
            "FOLDER": str(self.folder),
            "ROOT": str(ROOT),
            "ROOT_IN_TMP": in_tmp(ROOT),
            "FOLDER_IN_TMP": in_tmp(self.folder),
        }

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + READY_S
        while self.run(LOGIN, [*self.ssh.split(), "-o", "ConnectTimeout=5", name, "true"]).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: {(self.folder / f'{name}.log').read_text()}")
            time.sleep(0.05)
