"""Jobs that ``mpilaunch`` starts on hosts that ssh reaches, as a user's are; and what it measures there.

It must not know what the workers do.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .jobs import THREADS, Job, JobError, Program
from .netns import NetworkError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # which have such hosts as well

from support.virtual_hosts import LOGIN, VirtualHosts, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .netns import Network

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))
LINKS_S = 900.0


class Launched:
    """Hosts for jobs of a rank each.

    Attributes:
        network: Their links.
        folder: That all of them see.
    """

    def __init__(self, hosts: VirtualHosts) -> None:
        """Use hosts that are up."""
        self._hosts = hosts
        self.network: Network = hosts.network
        self.folder: Path = hosts.folder
        names = ",".join(f"{name}:1" for name in hosts.names)
        ranks = f"--hosts={names}", f"--workers={len(hosts.names)}"
        self._options = (*ranks, f"--ssh={hosts.ssh}", f"--log-dir={self.folder}")

    def start(self, job: Job, options: Sequence[str], worker: Sequence[str]) -> None:
        """Start a job with a rank on each host.

        Args:
            job: Where its processes belong.
            options: More options of ``mpilaunch``.
            worker: A script and its arguments.
        """
        command = self._hosts.command(LOGIN, [MPILAUNCH, *self._options, *options, *worker])
        job.start(Program("mpilaunch", tuple(command)))

    def measured_cluster(self) -> str:
        """Return what ``mpilaunch measure-links`` writes, with as few threads as jobs have.

        Raises:
            JobError: It has failed.
        """
        path = self.folder / "cluster.toml"
        threads = (f"{name}={value}" for name, value in THREADS.items())
        command = ["env", *threads, MPILAUNCH, "measure-links", *self._options, f"--output={path}"]
        done = self._hosts.run(LOGIN, command, timeout=LINKS_S)
        if done.returncode:
            raise JobError(f"measure-links: {done.stdout}{done.stderr}")
        return path.read_text()


@contextmanager
def launched(hosts: int) -> Iterator[Launched]:
    """Have hosts up.

    Raises:
        NetworkError: There can be none here.
    """
    if reason := missing():
        raise NetworkError(reason)
    with TemporaryDirectory(prefix="launched-") as name, VirtualHosts(hosts, Path(name)) as virtual:
        yield Launched(virtual)
