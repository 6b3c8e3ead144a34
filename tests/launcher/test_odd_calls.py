"""Jobs that are started in ways that few think of: they run, or one line says why not."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

JOINS = Path(__file__).parent / "scripts" / "joins.py"
PUBLIC = ("-m", "mpilaunch.cli")
MONTH_S = 30 * 24 * 3600


@pytest.mark.parametrize(
    "arguments",
    [
        ("--workers", 2, "--timeout", MONTH_S),
        ("--clients", 2, "--servers", 1, "--lease", MONTH_S),
        ("--clients", 2, "--servers", 1, "--join-warning", MONTH_S),
    ],
)
def test_a_time_of_a_month(launch, arguments):
    """Longer than the system lets anybody wait."""
    job = launch(*arguments, JOINS, program=PUBLIC)
    assert job.wait() == 0, job.text
    assert len(job.with_text("| joined as")) == 2
