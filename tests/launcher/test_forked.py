"""Children that a script forks, in jobs with real MPI."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi

PURE = ("--workers", 2, "--grace", 20)


@pytest.mark.parametrize(
    ("end", "code"),
    [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(9)", 9), ("sys.exit('no')", 1), ("1 / 0", 1)],
)
def test_a_forked_child_that_comes_back_from_the_script_is_not_the_rank(launch, script, end, code):
    """It ends as Python ends, exit handlers included, and the rank goes on with MPI."""
    body = f"""
import atexit
from mpi4py import MPI
atexit.register(lambda: print("handler of", os.getpid()))
MPI.COMM_WORLD.Barrier()
child = os.fork()
if child == 0:
    {end}
else:
    print("child", child, "has ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("ranks", MPI.COMM_WORLD.allreduce(1))
"""
    job = launch(*PURE, script(body))
    assert job.wait() == 0, job.text
    told = job.with_text(f" has ended with {code}")
    assert len(told) == len(job.with_text("ranks 2")) == 2, job.text
    for line in told:
        assert job.with_text(f"handler of {line.split()[2]}"), job.text
