"""``mpilaunch doctor``: checks what a job needs, one line per check, with what to do where one fails."""

from __future__ import annotations

import importlib
import importlib.util
import os
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError
from mpilaunch.hosts.checkup import check_hosts
from mpilaunch.hosts.judgement import NEEDED_SHM_BYTES, Finding, last_line
from mpilaunch.hosts.survey import version_of
from mpilaunch.inputs import read_hosts
from mpilaunch.mpi import PYTHON, find_mpi
from mpilaunch.options import make_parser_of
from mpilaunch.plan import inherited

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

OLDEST_PYTHON = (3, 10)
_NO_MXNET = (3, 12)
"""The first Python on which mxnet 1.9.1 does not run."""
NEEDED_FILES = 1024
DEPENDENCIES = ("numpy", "mpi4py", "msgspec")

_IMPORT_S = 300.0
_CONNECT_S = 10.0
_RANK = "import os; from mpi4py import MPI; os.write(1, b'size %d\\n' % MPI.COMM_WORLD.Get_size())"
"""One write, because mpiexec mixes what ranks write in pieces."""


Check = Callable[[], Finding]


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Run all checks, of this host or of those that are named; return 0, or 78 if one has failed.

    Raises:
        UsageError: The hosts are not named as for a job.
    """
    options = make_parser_of("doctor", ("hosts", "hostfile", "network", "ssh")).parse_args(arguments)
    slots = read_hosts(getattr(options, "hosts", ""), getattr(options, "hostfile", ""))
    if slots:
        ssh = getattr(options, "ssh", "ssh")
        findings = check_hosts([each.name for each in slots], ssh, getattr(options, "network", ""))
    else:
        findings = ((name, check()) for name, check in CHECKS)
    failed = False
    for name, finding in findings:
        failed = failed or bool(finding.remedy)
        out.write(f"{'FAIL' if finding.remedy else 'ok  '} {name}: {finding.what}\n")
        if finding.remedy:
            out.write(f"     -> {finding.remedy}\n")
    return ConfigurationError.exit_code if failed else 0


def check_python() -> Finding:
    """Is this Python new enough?"""
    version = ".".join(map(str, sys.version_info[:3]))
    remedy = "" if sys.version_info >= OLDEST_PYTHON else "use Python 3.10 or newer"
    return Finding(f"{version} ({sys.executable})", remedy)


def check_dependencies() -> Finding:
    """Are the packages that the core needs installed?"""
    found = {name: version_of(name) for name in DEPENDENCIES}
    missing = [name for name, version in found.items() if not version]
    remedy = f"pip install {' '.join(missing)}" if missing else ""
    return Finding(", ".join(f"{name} {version or 'missing'}" for name, version in found.items()), remedy)


def check_mxnet() -> Finding:
    """Does mxnet import? Only with the NumPy that it was made for."""
    if importlib.util.find_spec("mxnet") is None:
        if sys.version_info >= _NO_MXNET:
            return Finding("not installed, as there is none for this Python; jobs without it can run")
        return Finding(
            "not installed",
            "pip install 'kvstore_mpi[mxnet]' with Python 3.10 or 3.11, unless you do without",
        )
    code = "import mxnet; print(mxnet.__version__)"
    try:
        # The first import of a new installation compiles it, which on a busy machine has taken two minutes.
        done = _python(code, seconds=_IMPORT_S)
    except subprocess.TimeoutExpired:
        by_hand = shlex.join([*PYTHON, "-c", code])
        return Finding(f"does not import in {_IMPORT_S:g} s", f"try it by hand: {by_hand}")
    if done.returncode:
        pin = "" if version_of("numpy").startswith("1.2") else f" (NumPy is {version_of('numpy')})"
        return Finding(
            f"does not import{pin}: {_last_line(done)}", "pip install 'mxnet==1.9.1' 'numpy<1.24'"
        )
    # Warnings, if somebody wants them (PYTHONWARNINGS), are on the other stream.
    return Finding(f"{last_line(done.stdout)} with NumPy {version_of('numpy')}")


def check_mpi() -> Finding:
    """Do two ranks of the mpiexec that we would use see each other?"""
    try:
        mpi = find_mpi()
    except ConfigurationError as error:
        return Finding("no MPI that works", str(error))
    argv = [mpi.mpiexec, *mpi.flavour.options, "-n", "2", *PYTHON, "-c", _RANK]
    by_hand = f"try it by hand: {shlex.join(argv)}"
    environment = {**inherited(os.environ), **dict(mpi.flavour.env)}
    try:
        done = subprocess.run(  # noqa: S603  the same argv that a job would start
            argv,
            env=environment,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return Finding(f"{mpi.mpiexec} did not end in 60 s", by_hand)
    what = f"{mpi.version} ({mpi.library}), {mpi.mpiexec}"
    if done.stdout.count("size 2") == 2:  # noqa: PLR2004  both of them
        return Finding(f"{what}: two ranks see each other")
    if "size 1" in done.stdout:
        return Finding(
            f"{what}: every rank is 0 of 1", "mpiexec belongs to another MPI; put the right one on PATH"
        )
    return Finding(f"{what}: exit code {done.returncode}, {_last_line(done)}", by_hand)


def check_loopback() -> Finding:
    """Can a port be had, and be reached, on the loopback interface?"""
    try:
        # An address of an interface that is down can be bound as well.
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), _CONNECT_S),
        ):
            return Finding(f"port {listener.getsockname()[1]} on 127.0.0.1 can be reached")
    except OSError as error:
        return Finding(str(error), "bring the loopback interface up: ip link set lo up")


def check_shared_memory() -> Finding:
    """Is there room in /dev/shm? MPI and MXNet's data loaders need some."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108  looked at only
    except OSError as error:
        return Finding(str(error), "mount a tmpfs there; in a container: --shm-size=1g")
    free = status.f_bavail * status.f_frsize
    remedy = "" if free >= NEEDED_SHM_BYTES else "make room, or in a container: --shm-size=1g"
    return Finding(f"{free >> 20} MB free in /dev/shm", remedy)


def check_open_files() -> Finding:
    """May a process open enough files and sockets?"""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= NEEDED_FILES
    return Finding(f"ulimit -n is {limit}", "" if enough else f"ulimit -n {NEEDED_FILES}")


def _python(code: str, *, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  our own interpreter and our own text
        [*PYTHON, "-c", code],
        env=inherited(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return last_line(done.stdout + done.stderr)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("Python", check_python),
    ("packages", check_dependencies),
    ("mxnet", check_mxnet),
    ("MPI", check_mpi),
    ("loopback", check_loopback),
    ("shared memory", check_shared_memory),
    ("open files", check_open_files),
)
