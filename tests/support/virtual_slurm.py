"""A Slurm cluster of virtual hosts: ``slurmd`` and ``munged`` on each, ``slurmctld`` on the login node.

The machine stays as it was: daemons, sockets, keys and states are in the hosts' own folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from support.virtual_hosts import LOGIN, VirtualHosts
from support.virtual_hosts import missing as missing_for_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Self

READY_S = 30.0
TOOLS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "munged")
SLOTS = 4
"""Processors that each node claims to have."""


def missing() -> str:
    """Return why there can be no such cluster here, or nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if absent:
        return f"{', '.join(absent)} not found: install slurm-wlm and munge"
    return missing_for_hosts()


class VirtualSlurm:
    """A context manager with the hosts of the cluster as ``hosts``."""

    def __init__(self, number: int, folder: Path) -> None:
        """Nothing is started yet; all hosts see ``folder``."""
        self.hosts = VirtualHosts(number, folder)
        self.hosts.daemons += ("munged ", "slurmd ", "slurmctld ", ": slurmscriptd")
        self.folder = folder
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        """Start hosts and daemons, and wait until the nodes can be used."""
        self._exits.enter_context(self.hosts)
        try:
            self._write_settings()
            for name in (LOGIN, *self.hosts.names):
                self._start(name, ["munged", "--foreground", "--force", *self._munge()])
            self._start(LOGIN, ["slurmctld", "-D"])
            for name in self.hosts.names:
                self._start(name, ["slurmd", "-D", "-N", name])
            self._wait()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything: daemons die with their host."""
        self._exits.close()

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one on the login node."""
        return self.hosts.command(LOGIN, ["env", f"SLURM_CONF={self.folder}/slurm.conf", *argv])

    def run(self, argv: Sequence[str], timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node to its end."""
        return subprocess.run(
            self.command(argv), capture_output=True, text=True, check=False, timeout=timeout
        )

    def _munge(self) -> list[str]:
        # The socket's folder is each host's own, and so are the other files.
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        own = [f"--{option}=/tmp/munge/{name}" for option, name in files.items()]
        return [*own, f"--key-file={self.folder}/munge.key"]

    def _start(self, name: str, argv: Sequence[str]) -> None:
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        settings = [f"SLURM_CONF={self.folder}/slurm.conf", f"PATH={path}"]
        # Entering the network hides /sys/fs/cgroup, at which slurmd looks, though it shall use none.
        shell = """mkdir -p /tmp/munge /tmp/slurm; chmod 711 /tmp/munge
mountpoint -q /sys/fs/cgroup || mount -t tmpfs tmpfs /sys/fs/cgroup
exec "$@" """
        command = ["env", *settings, "sh", "-c", shell, "sh", *argv]
        with (self.folder / f"{name}.{argv[0]}.log").open("wb") as log:
            process = subprocess.Popen(self.hosts.command(name, command), stdout=log, stderr=log)
        self._exits.callback(process.wait)  # after its host has died
        self._exits.callback(process.kill)

    def _write_settings(self) -> None:
        folder = self.folder
        (folder / "munge.key").write_bytes(os.urandom(64))
        (folder / "munge.key").chmod(0o600)
        (folder / "state").mkdir()
        names = ",".join(self.hosts.names)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "slurm.conf").write_text(
            f"""ClusterName=virtual
SlurmctldHost={LOGIN}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/slurm
SlurmdPidFile=/tmp/slurm/slurmd.pid
SlurmctldPidFile=/tmp/slurm/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=15
MpiDefault=none
SlurmdParameters=config_overrides
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName={names} CPUs={SLOTS} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=spare Nodes={names} State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes={names} State=UP PriorityTier=3 PreemptMode=OFF
"""
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while self.run(["sinfo", "-h", "-o", "%t"]).stdout.split() != ["idle"]:
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.*d.log")
                )
                raise RuntimeError(logs)
            time.sleep(0.1)
