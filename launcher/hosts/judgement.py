"""What ``mpilaunch doctor --hosts`` makes of what hosts have said of themselves and of each other. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NEEDED_SHM_BYTES = 256 << 20
CLOCKS_S = 1.0
"""Clocks that differ by more make log files of different hosts misleading; a job itself needs no clock."""

_STICKY, _OTHERS_WRITE = 0o1000, 0o022

_HYDRAS_ADVICE = ("This typically refers to a problem", "Please see the FAQ page")
_OPEN_MPIS_FRAME = re.compile(r"^-{40,}\s*$", re.MULTILINE)
_OPEN_MPIS_COUNT = " sent help message help-"
"""It says a help message once, in a frame, and later how many other processes would have said it."""

_NOT_THERE = ("No such file", "not found", "cannot open shared object", "Permission denied")


class Finding(NamedTuple):
    """What one check has found; ``remedy`` is empty where all is well."""

    what: str
    remedy: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What a host says of itself.

    Attributes:
        versions: Of Python, packages and MPI; an empty text for what is not there.
        mpi_problem: Why there is no MPI that works.
        host: What the host calls itself.
        addresses: What the names of all hosts, and its own name, are there.
        shared_memory: Bytes free in /dev/shm.
        folder: Where temporary files go.
        folder_mode: Its permissions.
        port: On which it answers others.
    """

    versions: dict[str, str]
    mpi_problem: str
    host: str
    addresses: dict[str, list[str]]
    shared_memory: int
    folder: str
    folder_mode: int
    port: int


class Reached(msgspec.Struct, frozen=True):
    """What has come of a connection.

    Attributes:
        target: Address and port.
        problem: Why there was none.
        ahead: Seconds by which the clock there is ahead of the one here.
        uncertain: By how much that may be wrong.
    """

    target: str
    problem: str = ""
    ahead: float = 0.0
    uncertain: float = 0.0


def ssh_remedy(name: str, said: str) -> str:
    """Return what to do about a host that ssh does not reach, from what ssh has said."""
    return _remedy((*_SSH, *_ENVIRONMENT), name, said) or f"try it by hand: ssh {name} true"


def step_remedy(name: str, command: Sequence[str], said: str) -> str:
    """Return what to do about a host on which a workload manager starts nothing.

    Args:
        name: Of the host.
        command: Of the manager's that has been tried, up to what it was to start.
        said: What it has said.
    """
    return _remedy(_ENVIRONMENT, name, said) or f"try it by hand: {shlex.join([*command, 'true'])}"


def _remedy(known: Iterable[tuple[tuple[str, ...], str]], name: str, said: str) -> str:
    for words, remedy in known:
        if any(word in said for word in words):
            return remedy.format(name=name)
    return ""


_SSH = (
    (
        ("Host key verification failed", "host key is known"),
        "compare and accept its key once, by ssh {name} true (if it is another now, ssh-keygen -R {name})",
    ),
    (("Permission denied",), "let ssh log in without a password: ssh-copy-id {name}"),
    (
        ("Could not resolve hostname", "Name or service not known"),
        "correct the name, or add {name} to ~/.ssh/config or /etc/hosts",
    ),
    (("Connection refused", "Connection reset", "Connection closed"), "start sshd there, or wait for it"),
    (
        ("timed out", "No route to host", "did not answer", "Network is unreachable"),
        "is it up, and does a firewall let ssh through?",
    ),
)

_ENVIRONMENT = (
    (
        ("No module named", "No such file or directory", "not found"),
        "install the same Python environment there, at the same path, as on this host",
    ),
    (("kvstore_mpi",), "install the same version on all hosts: pip install -U kvstore_mpi"),
)


def judge_versions(facts: Mapping[str, Facts]) -> Finding:
    """Are Python, packages and MPI the same everywhere?"""
    broken = [f"{host}: {each.mpi_problem}" for host, each in facts.items() if each.mpi_problem]
    if broken:
        return Finding("; ".join(broken), f"on {broken[0].partition(':')[0]}: mpilaunch doctor")
    kinds = dict.fromkeys(kind for each in facts.values() for kind in each.versions)
    told, wrong = [], []
    for kind in kinds:
        found = {host: each.versions.get(kind, "") or "none" for host, each in facts.items()}
        if len(set(found.values())) == 1:
            told.append(f"{kind} {next(iter(found.values()))}")
        else:
            wrong.append(f"{kind} is " + ", ".join(f"{text} on {host}" for host, text in found.items()))
    if wrong:
        return Finding("; ".join(wrong), "install the same on all hosts, or share one environment")
    return Finding(f"{', '.join(told)} on all")


def judge_names(facts: Mapping[str, Facts], addresses: Mapping[str, str]) -> Finding:
    """Does each host's name lead to it, from itself as from the others?

    The job's own processes go by addresses. Scripts and other libraries often go by names.

    Args:
        facts: What each host has said.
        addresses: Of each host, on the network of the job.
    """
    if len(facts) == 1:
        return Finding("there is one host, and none that would look for its name")
    wrong = []
    for host, each in facts.items():
        for name in facts:
            found = each.addresses.get(name, [])
            if found != [addresses[name]]:
                wrong.append(f"on {host}, {name} is {' and '.join(found) or 'unknown'}")
        own = each.addresses.get(each.host, [])
        if each.host not in facts and own != [addresses[host]]:
            wrong.append(f"on {host}, its own name {each.host} is {' and '.join(own) or 'unknown'}")
    if not wrong:
        return Finding("each host's name is its address on this network, everywhere")
    lines = ", ".join(f"{address} {name}" for name, address in addresses.items())
    return Finding(
        "; ".join(wrong), f"in /etc/hosts of each: {lines}; and no line that gives the own name 127.0.1.1"
    )


def judge_ports(reached: Mapping[str, Mapping[str, Reached]]) -> Finding:
    """Can each host connect to a port of each other?"""
    pairs = [(here, there, each) for here, others in reached.items() for there, each in others.items()]
    wrong = [f"{there} from {here}: {each.problem}" for here, there, each in pairs if each.problem]
    if wrong:
        return Finding(
            "; ".join(wrong),
            "open all ports between the hosts, in both directions, or choose another network "
            "with --interface",
        )
    return Finding(f"ports chosen by the system can be reached, in all {len(pairs)} directions")


def judge_clocks(reached: Mapping[str, Mapping[str, Reached]]) -> Finding:
    """Do the clocks agree?"""
    measured = [
        (abs(each.ahead), each.uncertain, here, there)
        for here, others in reached.items()
        for there, each in others.items()
        if not each.problem
    ]
    if not measured:
        return Finding("not compared, since no host reaches another")
    apart, uncertain, here, there = max(measured)
    what = f"{here} and {there} are {apart * 1e3:.1f} ms apart (+- {uncertain * 1e3:.1f}), the most of all"
    late = "start chrony or another NTP client on both: times in their logs cannot be compared"
    return Finding(what, late if apart - uncertain > CLOCKS_S else "")


def judge_shared_memory(facts: Mapping[str, Facts]) -> Finding:
    """Is there room in each /dev/shm?"""
    return _each(
        {host: f"{each.shared_memory >> 20} MB" for host, each in facts.items()},
        [host for host, each in facts.items() if each.shared_memory < NEEDED_SHM_BYTES],
        "make room in /dev/shm there; in a container: --shm-size=1g",
    )


def judge_folders(facts: Mapping[str, Facts], shared: Mapping[str, str]) -> Finding:
    """Has each host a temporary folder of its own, in which nobody else can rename what is ours?

    Args:
        facts: What each host has said.
        shared: Why the job's private folder could not be made, of hosts where it could not.
    """
    if shared:
        host, why = next(iter(shared.items()))
        return Finding(
            "; ".join(f"{name}: {text}" for name, text in shared.items()), f"on {host}: {_first(why)}"
        )
    return _each(
        {host: each.folder for host, each in facts.items()},
        [
            host
            for host, each in facts.items()
            if each.folder_mode & _OTHERS_WRITE and not each.folder_mode & _STICKY
        ],
        "others can rename files there: chmod +t, or set TMPDIR to a folder of your own",
    )


def _first(why: str) -> str:
    """Return the remedy in the text of an error, which comes last."""
    return why.rpartition("; ")[2] or why


def _each(told: Mapping[str, str], wrong: Iterable[str], remedy: str) -> Finding:
    bad = list(wrong)
    text = ", ".join(f"{what} on {host}" for host, what in told.items())
    return Finding(text, f"{', '.join(bad)}: {remedy}" if bad else "")


def judge_mpi(num_hosts: int, code: int | None, said: str) -> Finding:
    """Do ranks on different hosts see each other?

    Args:
        num_hosts: On each of which one rank was started.
        code: Exit code of mpiexec; ``None`` if it did not end in time.
        said: What it has said.
    """
    if code == 0 and said.count(f"size {num_hosts} sum {num_hosts}\n") == num_hosts:
        return Finding(f"{num_hosts} ranks on {num_hosts} hosts see each other and sum")
    if "size 1 " in said:
        return Finding("every rank is 0 of 1", "mpiexec belongs to another MPI; put the right one on PATH")
    how, last = "did not end in time" if code is None else f"exit code {code}", last_line(said)
    remedy = "choose a network with --interface, or open all ports between the hosts"
    if any(word in last for word in _NOT_THERE):
        remedy = "install the same MPI, with its helpers, at the same path on all hosts"
    return Finding(f"{how}: {last}", remedy)


def last_line(said: str) -> str:
    """Return the last line that a command has said, but for what MPI says of each failure.

    Where Open MPI has said nothing but help messages it is how the first of them begins.
    """
    parts = _OPEN_MPIS_FRAME.split(said)
    lines = [line for line in "".join(parts[::2]).splitlines() if line.strip() and not _is_advice(line)]
    helpful = [" ".join(message.strip().partition("\n\n")[0].split()) for message in parts[1::2]]
    return [*helpful[:1], *lines][-1] if helpful or lines else "no output"


def _is_advice(line: str) -> bool:
    return line.startswith(_HYDRAS_ADVICE) or _OPEN_MPIS_COUNT in line
