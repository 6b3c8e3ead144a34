"""Which ``mpiexec`` belongs to the MPI library that mpi4py runs on, and how that one is talked to.

The differences between vendors stand in one table. The library is looked at in a process of its own: to
load it here would leave its threads and files in the launcher.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Flavour(NamedTuple):
    """How one family of ``mpiexec`` is recognised and talked to.

    Attributes:
        name: For people.
        vendors: What mpi4py calls libraries whose ranks it can start.
        marks: One of these stands in the output of its ``--version``.
        commands: Names of the program, best first.
        options: What it is always given.
        env: What is added to its environment.
        defaults: What is added to the ranks' where the user has not set it.
        folder_variables: Where it makes its temporary files, which it leaves behind if it is killed.
        across_options: What it is given instead of ``options`` where ranks are on several hosts.
        takes_along: What names a variable that they are to have there; nothing where they have all.
        pmi: By which its ranks meet where Slurm starts them, as ``srun --mpi`` calls it.
    """

    name: str
    vendors: tuple[str, ...]
    marks: tuple[str, ...]
    commands: tuple[str, ...]
    options: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    defaults: tuple[tuple[str, str], ...]
    folder_variables: tuple[str, ...]
    across_options: tuple[str, ...]
    takes_along: str
    pmi: str

    def across(
        self, launcher: str, ssh: str, here: str, hosts: Sequence[str], variables: Iterable[str]
    ) -> tuple[str, ...]:
        """Return its options for ranks on several hosts.

        Args:
            launcher: What mpiexec calls how they are reached.
            ssh: The program that reaches them.
            here: Our own address, at which they reach us.
            hosts: The host of each rank. A host may come again after others: ranks keep their order.
            variables: Names of those that the ranks are to have.
        """
        named = sorted(variables) if self.takes_along else ()
        listed = ",".join(f"{name}:{len(list(ranks))}" for name, ranks in itertools.groupby(hosts))
        return (
            *(
                option.format(launcher=launcher, ssh=ssh, here=here, hosts=listed, each=",".join(hosts))
                for option in self.across_options
            ),
            *(word for name in named for word in (self.takes_along, name)),
        )


FLAVOURS = (
    Flavour(
        name="Hydra",
        vendors=("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2"),
        marks=("HYDRA", "Intel(R) MPI"),
        commands=("mpiexec.hydra", "mpiexec", "mpiexec.mpich", "mpirun"),
        # All ranks are on this host; inside a batch job Hydra would spread them over its hosts.
        options=("-launcher", "fork", "-hosts", "localhost", "-print-all-exitcodes"),
        env=(),
        # All ranks of a client are on this host: UCX, with which each of them listens, needs no network.
        # The port of mpiexec itself is on all networks whatever it is told (docs/security.md).
        defaults=(("UCX_NET_DEVICES", "lo"),),
        folder_variables=(),
        across_options=(
            *("-launcher", "{launcher}", "-launcher-exec", "{ssh}", "-localhost", "{here}"),
            *("-hosts", "{hosts}", "-print-all-exitcodes"),
        ),
        takes_along="",
        pmi="pmi2",
    ),
    Flavour(
        name="Open MPI",
        vendors=("Open MPI",),
        marks=("Open MPI", "OpenRTE", "PRRTE"),
        commands=("mpiexec", "mpiexec.openmpi", "mpirun", "mpirun.openmpi"),
        # Each client has an mpiexec that knows nothing of the others and would bind to the same cores.
        options=("--oversubscribe", "--bind-to", "none"),
        env=(
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ),
        defaults=(("OMPI_MCA_btl", "^tcp"),),  # likewise: its ranks then listen nowhere
        folder_variables=("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"),
        # Its daemons start no others: only this host has the script that reaches them, and perhaps the
        # keys. Those of version 4 end if they do not find the program all the same: that is sh. A manager's
        # own way of starting them is left out (version 5 calls ssh's ssh, version 4 rsh). By seq ranks have
        # their places in the list: otherwise a host that comes again would get all its ranks together.
        across_options=(
            *("--mca", "plm_rsh_agent", "sh {ssh}", "--mca", "plm_rsh_no_tree_spawn", "1"),
            *("--mca", "plm", "^slurm,lsf,tm", "--host", "{each}", "--map-by", "seq"),
            *("--oversubscribe", "--bind-to", "none"),
        ),
        takes_along="-x",  # for all at once version 5 alone has a word
        pmi="pmix",
    ),
)

PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))
"""Looks for no modules in the working directory, whose ``random.py`` would be taken for Python's own."""

HOW_TO_GET_MPI = (
    "Install one with: pip install 'kvstore_mpi[mpich]'; or load your cluster's MPI module. "
    "mpilaunch doctor then checks it"
)


@dataclass(frozen=True)
class Mpi:
    """An MPI: the library that mpi4py loads, and the ``mpiexec`` that starts ranks for it."""

    flavour: Flavour
    version: str
    library: str
    mpiexec: str


class Library(NamedTuple):
    """What mpi4py says about the library that it has loaded."""

    vendor: str
    version: str
    path: str


_LOOK = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
lines = open("/proc/self/maps").read().splitlines()
paths = [line.split(maxsplit=5)[-1] for line in lines if "/libmpi" in line]  # it may have spaces
vendor, version = MPI.get_vendor()
print(vendor, ".".join(map(str, version)), paths[0] if paths else "", sep="\\n")
"""
"""Imports nothing but MPI; JSON takes as long again. Linux writes a newline in a path as ``\\012``."""


def find_mpi() -> Mpi:
    """Find the MPI of this Python.

    Raises:
        ConfigurationError: mpi4py finds no library, or no ``mpiexec`` on this machine belongs to it.
    """
    library = find_library()
    flavour = next((known for known in FLAVOURS if library.vendor in known.vendors), None)
    if flavour is None:
        known = ", ".join(vendor for each in FLAVOURS for vendor in each.vendors)
        raise ConfigurationError(
            f"mpi4py runs on {library.vendor} {library.version}, and mpilaunch can start {known} only"
        )
    seen = []
    for candidate in candidates(library.path, flavour):
        said = version_text(candidate)
        if any(mark in said for mark in flavour.marks):
            return Mpi(flavour, f"{library.vendor} {library.version}", library.path, candidate)
        seen.append(f"{candidate} ({said.strip().splitlines()[0] if said.strip() else 'silent'})")
    raise ConfigurationError(
        f"mpi4py runs on {library.vendor} {library.version} ({library.path or 'path unknown'}), but no "
        f"mpiexec of it was found; looked at: {', '.join(seen) or 'none at all'}. With another MPI's "
        f"mpiexec every rank would be 0 of 1. {HOW_TO_GET_MPI}"
    )


def find_library() -> Library:
    """Ask mpi4py, in a process of its own, which library it loads.

    Raises:
        ConfigurationError: There is none.
    """
    done = subprocess.run(  # noqa: S603  our own interpreter and our own text
        [*PYTHON, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigurationError(f"no MPI: mpi4py cannot load a library: {reason[-1]}. {HOW_TO_GET_MPI}")
    return Library(*done.stdout.split("\n")[-4:-1])


def candidates(library: str, flavour: Flavour) -> Iterator[str]:
    """Yield programs to look at: beside the library, beside this Python, then on PATH."""
    beside = [parent / "bin" for parent in list(Path(library).parents)[1:3]] if library else []
    folders = [*beside, Path(sys.executable).parent]
    for search in (os.pathsep.join(map(str, folders)), None):
        for command in flavour.commands:
            found = shutil.which(command, path=search)
            if found:
                yield found


def version_text(mpiexec: str) -> str:
    """Return what a program says about itself, or nothing if it cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603  found by name on the user's own PATH
            [mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def normalise(code: int) -> int:
    """Return the shell's form of a ``Popen.returncode``: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def rank_codes(lines: Sequence[str]) -> tuple[int, ...] | None:
    """Read the exit codes of all ranks from what Hydra or srun printed, or ``None`` if they printed none.

    Hydra prints wait statuses: 768 is exit code 3, and 9 is signal 9 (which becomes 137).
    """
    for line in reversed(lines):
        _, marked, rest = line.partition("] Exit codes: ")
        if marked:
            statuses = re.sub(r"\[[^]]*\]", ",", rest).split(",")
            return tuple(_from_status(int(text)) for text in statuses if text.strip())
    return _codes_of_tasks(lines)


_TASKS = re.compile(r"srun: error: \S+: tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.+))")
_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


def _codes_of_tasks(lines: Sequence[str]) -> tuple[int, ...] | None:
    """Read the lines that srun prints of tasks that have ended badly: their numbers, and how."""
    codes: dict[int, int] = {}
    for found in filter(None, map(_TASKS.search, lines)):
        tasks, code, told = found.groups()
        number = int(code) if code else 128 + _SIGNALS.get((told or "").removesuffix(" (core dumped)"), 0)
        for each in tasks.split(","):
            first, _, last = each.partition("-")
            codes.update(dict.fromkeys(range(int(first), int(last or first) + 1), number))
    return tuple(codes.get(rank, 0) for rank in range(max(codes) + 1)) if codes else None


def _from_status(status: int) -> int:
    number = status & 0x7F
    return 128 + number if number else status >> 8
