"""Writes what sums over ranks take here, for ``mpilaunch --collective-profile``.

``mpiexec -n 2 python -m mpi4py -m kvstore_mpi.calibrate --output profile.json``: with as many ranks, on the
hosts and with the MPI library of the job that it is for. Rank 0 writes the file. ``mpilaunch
--collective-profile measure`` measures at the start of a job, without a file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvstore_mpi.errors import ConfigurationError, KVStoreError, UsageError
from kvstore_mpi.tensor_collectives.calibration import LIBRARY_BYTES, measure
from kvstore_mpi.tensor_collectives.choice import Algorithm, Chooser, Plan
from kvstore_mpi.tensor_collectives.profile import encode


def _describe(chooser: Chooser, num_bytes: int) -> str:
    """Say what is chosen, and what each way is predicted to take."""
    chosen = chooser.plan(num_bytes, shared=True)
    rings = f" in {chosen.num_rings}" if chosen.algorithm is Algorithm.RING else ""
    ways = [Plan(algorithm) for algorithm in (Algorithm.MPI, Algorithm.SHM, Algorithm.RING)]
    times = ", ".join(
        f"{way.algorithm.value} {1e6 * chooser.seconds(way, num_bytes):.1f} us" for way in ways
    )
    return f"{chosen.algorithm.value}{rings} ({times})"


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        _measure()
    except KVStoreError as error:
        sys.stderr.write(f"calibrate: {error}\n")
        return error.exit_code
    return 0


def _measure() -> None:
    """Measure with the ranks of this MPI job; rank 0 writes the file and says what it has found."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="where the profile goes")
    path = parser.parse_args().output
    from kvstore_mpi.comm.mpi import MpiCommunicator  # noqa: PLC0415  importing it initialises MPI

    communicator = MpiCommunicator()
    if communicator.size < 2:  # noqa: PLR2004
        raise UsageError("one rank has nothing to sum with: start at least two, mpiexec -n 2 python -m ...")
    profile, seconds = measure(communicator)
    chooser = Chooser(Algorithm.AUTO, profile, communicator.hosts())
    if communicator.rank == 0:
        try:
            path.write_bytes(encode(profile))
        except OSError as error:
            raise ConfigurationError(f"--output {path} cannot be written: {error.strerror}") from error
        print(f"{path}: {profile.ranks} ranks, measured in {seconds:.2f} s; auto then chooses")
        for num_bytes in LIBRARY_BYTES:
            print(f"  {num_bytes:9} bytes: {_describe(chooser, num_bytes)}")


if __name__ == "__main__":
    sys.exit(main())
