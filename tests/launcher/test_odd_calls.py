"""Jobs that are started in ways that few think of: they run, or one line says why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.mpi import find_mpi

pytestmark = pytest.mark.mpi

JOINS = Path(__file__).parent / "scripts" / "joins.py"
PUBLIC = ("-m", "mpilaunch.cli")
SHADOWED = """
import sys
from pathlib import Path
for name in ("logging", "random", "signal", "platform", "selectors"):
    Path(f"{name}.py").write_text("raise SystemExit(99)")
sys.path.remove("")
from mpilaunch.cli import main
sys.exit(main())
"""
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


def test_an_option_without_effect_is_named(launch):
    """Once, and the job runs."""
    job = launch("--workers", 1, "--leaders", "all", JOINS)
    assert job.wait() == 0, job.text
    assert len(job.with_text("mpilaunch| --leaders all has no effect: this job has no servers")) == 1


def test_a_rank_that_reads_its_input(launch, script):
    """It comes to the end at once, and so does what it starts, in every rank."""
    body = """
import subprocess
print('read', sys.stdin.read() + subprocess.check_output(['wc', '-c'], text=True))
"""
    job = launch("--workers", 2, script(body))
    assert job.wait() == 0, job.text
    assert len(job.with_text("| read 0")) == 2


def test_a_program_that_reads_its_input(launch):
    """Likewise."""
    job = launch("--workers", 2, "--", "wc", "-c")
    assert job.wait() == 78, job.text  # it has never joined
    assert len(job.with_text("| 0")) == 2


def test_a_rank_that_is_hung_up(launch, script):
    """It ends as any program does; UCX took the signal for a wish to see its debug log."""
    body = "import signal\nsignal.raise_signal(signal.SIGHUP)\nprint('goes on')\n"
    job = launch("--workers", 1, script(body))
    assert job.wait() == 129, job.text
    assert not job.with_text("UCX"), job.text


def test_mpilaunch_as_ranks():
    """Each would run the whole job, and says so; what a rank starts of itself is no copy."""
    ours = ("KVMPI_", "PMI", "OMPI_")
    outer = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    job = (sys.executable, *PUBLIC, "--dry-run", "--", "true")
    starts = (sys.executable, "-c", f"import subprocess; subprocess.run({job}, check=True)")
    done = [
        subprocess.run(
            [find_mpi().mpiexec, "-n", "2", *command],
            env={**outer, **dict(find_mpi().flavour.env)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        for command in (job, starts)
    ]
    assert done[0].returncode == 64, done[0]
    assert done[0].stderr.count("has started mpilaunch 2 times") == 2
    if "PMI_SIZE" in done[0].stderr:  # Open MPI gives ranks nothing that what they start has not
        assert done[1].returncode == 0, done[1]


@pytest.mark.parametrize("first", ["echo none", "#!/nonexistent/sh"])
def test_a_program_that_cannot_be_run(launch, tmp_path, first):
    """As shells say it, and why."""
    program = tmp_path / "program"
    program.write_text(f"{first}\n")
    program.chmod(0o755)
    job = launch("--workers", 2, "--", program)
    assert job.wait() == 126, job.text
    assert job.with_text(f"| {program} cannot be run: ")
    assert not job.with_text("Traceback")


@pytest.mark.parametrize("only_print", [(), ("--dry-run",)])
def test_more_workers_than_any_host_takes(launch, only_print):
    """They are refused at once, also where nothing is to be started."""
    job = launch(*only_print, "--workers", 10**8, JOINS, program=PUBLIC)
    assert job.wait() == 78
    (said,) = job.lines
    assert said.startswith("mpilaunch: a process of this job may have 500000035 files open, and the limit")


CLOSED = "import os, sys; os.closerange({}, {}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@pytest.mark.parametrize("closed", [(0, 1), (1, 2), (2, 3), (0, 3)])
def test_standard_streams_that_are_closed(launch, closed):
    """The job runs, and its logs have everything."""
    job = launch(*PUBLIC, "--workers", 2, JOINS, program=("-c", CLOSED.format(*closed)))
    assert job.wait() == 0, job.text
    assert len(job.with_text("| joined as")) == (0 if closed[0] <= 1 < closed[1] else 2)
    logs = job.folder.glob("mpilaunch-logs/*/client0.*.log")
    assert sorted(path.read_text() for path in logs) == ["joined as 0 of 2\n", "joined as 1 of 2\n"]


def test_a_thread_that_is_refused(launch, tmp_path):
    """The advice is about limits, and not about the script; also where no thread can be had at first."""
    refused = "import threading\nthreading.stack_size(1 << 47)\n"
    (tmp_path / "script.py").write_text(refused + "threading.Thread(target=print).start()\n")
    (tmp_path / "sitecustomize.py").write_text(refused)
    for job in (
        launch("--workers", 1, tmp_path / "script.py", program=PUBLIC),
        launch("--workers", 1, "--env", f"PYTHONPATH={tmp_path}", JOINS, program=PUBLIC),
    ):
        assert job.wait() == 71, job.text
        assert job.with_text("client0.0 on ")
        assert job.with_text("RuntimeError: can't start new thread")
        assert job.with_text("processes or threads ran out, as the message says")


def test_a_folder_with_a_main_module(launch, tmp_path):
    """It is run as Python runs it, beside its other modules; one without is not."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "words.py").write_text("WORD = 'beside'\n")
    job = launch("--workers", 1, folder, program=PUBLIC)
    assert job.wait() == 64
    assert job.with_text(f"the script '{folder}' does not exist, or is a folder without __main__.py")
    main = "import sys, words\nprint(__name__, words.WORD, sys.argv[1:], sys.path[0])\n"
    (folder / "__main__.py").write_text(main + JOINS.read_text())
    job = launch("--workers", 1, folder, "x", program=PUBLIC)
    assert job.wait() == 0, job.text
    assert f"client0.0| __main__ beside ['x'] {folder}" in job.lines
    assert "client0.0| joined as 0 of 1" in job.lines


NO_TEXT = """
class NoText(Exception):
    def __str__(self):
        raise KeyError
"""


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (r"raise ValueError('caf\udc80')", r"ValueError: caf\udc80"),
        ("sys.exit('caf\\udc80')", r"caf\udc80"),
        (f"{NO_TEXT}raise NoText", "NoText: (its text cannot be had: KeyError)"),
        ("sys.stdout.close(); sys.stderr.close(); raise ValueError('as ever')", "ValueError: as ever"),
        ("sys.stdout = sys.stderr = None; raise ValueError('as ever')", "ValueError: as ever"),
    ],
)
def test_what_a_rank_can_hardly_say(launch, script, end, told):
    """It fails all the same, and no other is blamed for it."""
    job = launch("--workers", 2, script(f"if not rank: signal.pause()\n{end}"))
    assert job.wait() == 1, job.text
    assert "client0.1 on " in job.text
    assert job.with_text(f"mpilaunch|   {told}")


@pytest.mark.parametrize("what", ["sys.stdout = None", "sys.stdout.close()"])
def test_streams_that_a_rank_does_without(launch, script, what):
    """As many scripts have it for all ranks but the first."""
    job = launch("--workers", 2, script(f"if rank: {what}"))
    assert job.wait() == 0, job.text


TOLD_MEANWHILE = """
import traceback
format_exception = traceback.format_exception
def told_meanwhile(*args):
    os.kill(os.getpid(), signal.SIGUSR1)
    return format_exception(*args)
traceback.format_exception = told_meanwhile
flush = sys.stdout.flush
def flush_meanwhile():
    os.kill(os.getpid(), signal.SIGUSR1)
    flush()
sys.stdout.flush = flush_meanwhile
"""


@pytest.mark.parametrize(
    ("end", "code"), [("raise ValueError('boom')", 1), ("sys.exit(3)", 3), ("raise KeyboardInterrupt", 130)]
)
def test_a_rank_that_is_told_to_end_while_it_says_how_it_has_failed(launch, script, end, code):
    """As ranks are that fail together: it ends at once, and as it has failed."""
    job = launch("--workers", 1, "--grace", 3600, script(f"{TOLD_MEANWHILE}{end}"))
    assert job.wait() == code, job.text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python looks in the working directory before that")
@pytest.mark.parametrize("options", [("--workers", 2), ("--clients", 2, "--servers", 1)])
def test_a_folder_with_modules_of_pythons_names(launch, options):
    """A script of another folder runs from it, as with python."""
    job = launch(*options, JOINS, program=("-c", SHADOWED))
    assert job.wait() == 0, job.text
    assert len(job.with_text("| joined as")) == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python looks in the working directory before that")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("measure-links", "--workers", 2), "for mpilaunch plan --cluster"),
        (("doctor",), "two ranks see each other"),
    ],
)
def test_commands_in_a_folder_with_modules_of_pythons_names(launch, command, said):
    """They start Python as jobs do."""
    job = launch(*command, program=("-c", SHADOWED))
    job.wait()
    assert job.with_text(said), job.text
