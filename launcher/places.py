"""Where the processes of a job are, and what is known of them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import HostLostError, PeerError
from mpilaunch.plan import RECORDS
from mpilaunch.rank.record import ExitRecord, RankName, record_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.hosts.interface import Host
    from mpilaunch.plan import Plan, Process


class Places:
    """The hosts of a plan's processes and ranks.

    Attributes:
        hosts: Each once.
    """

    def __init__(self, plan: Plan, hosts: Mapping[str, Host]) -> None:
        """Take hosts by the names that the plan has for them; several may stand for one."""
        self._plan = plan
        self._hosts = hosts
        self.hosts = list({id(host): host for host in hosts.values()}.values())

    def process(self, name: str) -> Process:
        """Return a process of the plan."""
        return next(each for each in self._plan.processes if each.name == name)

    def is_service(self, name: str) -> bool:
        """Return whether a process is a server or the scheduler."""
        return self.process(name) not in self._plan.clients

    def of(self, name: str) -> Host:
        """Return the host of a process."""
        return self._hosts[self.process(name).host]

    def of_rank(self, rank: RankName) -> Host:
        """Return the host of a rank."""
        return self._hosts[self._place(rank)]

    def of_ranks(self, name: str) -> list[Host]:
        """Return the hosts of the ranks that a process has started, each once."""
        return list({id(host): host for host in map(self.of_rank, self._ranks(name))}.values())

    def why_lost(self, name: str) -> str:
        """Return which host of a process, or of the ranks that it starts, is lost, and why; or nothing."""
        of_ranks = [(self._place(each), self.of_rank(each)) for each in self._ranks(name)]
        places = [(self.process(name).host, self.of(name)), *of_ranks]
        return next(filter(None, (_why_lost(place, host) for place, host in places)), "")

    def record_of(self, rank: RankName, pid: int) -> ExitRecord | None:
        """Return the record of a rank's end; of one whose host is lost, that."""
        host = self.of_rank(rank)
        record = ExitRecord.read(host.read(f"{RECORDS}/{record_name(rank)}"))
        if record is not None or not host.lost():
            return record
        place = self._place(rank)
        error, why = HostLostError.__name__, _why_lost(place, host)
        return ExitRecord(rank.client, rank.rank, place, pid, PeerError.exit_code, error, why)

    def _place(self, rank: RankName) -> str:
        return self._plan.host_of_rank(rank.client, rank.rank)

    def _ranks(self, name: str) -> list[RankName]:
        """Return the ranks that a process starts."""
        clients = [each.name for each in self._plan.clients]
        numbers = range(self._plan.client_size if name in clients else 0)
        return [RankName(clients.index(name), number) for number in numbers]


def _why_lost(place: str, host: Host) -> str:
    return f"host {place} is lost: {host.lost()}" if host.lost() else ""
