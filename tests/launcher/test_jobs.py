"""The launcher with real processes: whole jobs, from the command line to the exit code."""

import json
import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

JOB = ("--clients", 2, "--servers", 1, "--workers", 4, "--grace", 20)
PURE = ("--workers", 2, "--grace", 20)
WAIT = """
try:
    print("waiting", os.getpid())
    time.sleep(100)
finally:
    print("saved")
"""
PUBLIC = ("-m", "mpilaunch.cli")
MAIN = "; import sys; from mpilaunch.cli import main; sys.exit(main())"


def only_client0_rank1(statement):
    return f"if (client, rank) == (0, 1): {statement}\n{WAIT}"


def test_a_job_that_goes_well(launch, script):
    """Every process says whole lines under its own name, and the exit code is 0."""
    body = "sys.stdout.write('from '); sys.stdout.flush(); print(client, rank, sys.argv[1:])\n"
    job = launch(*JOB, script(body), "--lr", "0.1")
    assert job.wait() == 0, job.text
    for client in range(2):
        for rank in range(2):
            assert f"client{client}.{rank}| from {client} {rank} ['--lr', '0.1']" in job.lines
    assert len(job.with_text("server0| serving")) == 1
    assert not job.with_text("mpilaunch|")


@pytest.mark.parametrize(("said", "elements"), [((), 1_000_000), (("--set", "slice_elements=7"), 7)])
def test_slices_on_one_host(launch, script, said, elements):
    """They are large, if the user does not say otherwise."""
    job = launch(*PURE, *said, script("print('slices of', os.environ['KVMPI_SLICE_ELEMENTS'])\n"))
    assert job.wait() == 0, job.text
    assert len(job.with_text(f"| slices of {elements}")) == 2


@pytest.mark.parametrize("clients", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_one_host_under_two_addresses(launch, script, clients):
    """As two hosts: MPI knows it by neither, and its variables are those of one."""
    where = ("--hosts", "127.0.0.1:2,127.0.0.2:2", "--server-hosts", "127.0.0.2")
    job = launch(*JOB[2:], "--clients", clients, *where, script("print('from', client, rank)\n"))
    assert job.wait() == 0, job.text
    assert len(job.with_text("| from ")) == 4, job.text
    second = "client0 ranks 2 to 3" if clients == 1 else "client1 ranks 0 to 1"
    assert job.with_text(f"mpilaunch| 127.0.0.2: {second}, server0")


def test_logs_are_kept_one_file_per_process(launch, script):
    """Below --log-dir, a folder of this run's own."""
    job = launch(*JOB, "--log-dir", "logs", script("print('hello', client)\n"))
    assert job.wait() == 0, job.text
    (folder,) = [path for path in (job.folder / "logs").iterdir() if path.is_dir()]
    names = {path.name for path in folder.iterdir()}
    assert {"server0.log", "client0.0.log", "client0.1.log", "client1.0.log", "client1.1.log"} <= names
    assert (folder / "client1.0.log").read_text() == "hello 1\n"


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("sys.exit(256)", 1, "exit code 1"),
        ("sys.exit('sorry')", 1, "sorry"),
        ("raise ValueError('bad label')", 1, "ValueError: bad label"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL (exit code 137)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV (exit code 139)"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "KeyboardInterrupt"),
    ],
)
def test_the_first_failure_is_named_and_ends_the_job(launch, script, statement, code, words):
    """One rank fails: its code is the job's, the other client saves, and the block says who it was."""
    job = launch(*JOB, script(only_client0_rank1(statement)))
    assert job.wait() == code, job.text
    (named,) = job.with_text("failed first")
    assert re.search(r"client0\.1 on \S+ \(pid \d+\) failed first", named)
    assert words in job.text
    assert f"mpilaunch| exit code {code}" in job.lines


@pytest.mark.parametrize(("statement", "code"), [("MPI.COMM_WORLD.Abort(42)", 42), ("os._exit(5)", 5)])
def test_a_rank_that_ends_without_a_record(launch, script, statement, code):
    """The client is named, and the rank where its MPI tells which one it was."""
    job = launch(*JOB, script(only_client0_rank1(statement)))
    assert job.wait() == code, job.text
    assert re.search(r"mpilaunch\| client0(\.1)? on \S+ .*failed first", job.text)
    assert job.with_text("ended without a record")


def test_the_others_save_when_one_fails(launch, script):
    """Ranks of another client get SIGUSR1 and unwind before they are ended."""
    body = f"""
if (client, rank) == (0, 1):
    while not os.path.exists("go"):
        time.sleep(0.01)
    raise ValueError
{WAIT}"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 3)
    (job.folder / "go").touch()
    assert job.wait() == 1, job.text
    assert {"client1.0| saved", "client1.1| saved"} <= set(job.lines)


def test_errors_of_ours_keep_their_code(launch, script):
    """A MismatchError ends the job with 76; the traceback begins in the script."""
    body = "from kvstore_mpi.errors import MismatchError\n" + only_client0_rank1(
        "raise MismatchError('differs')"
    )
    job = launch(*JOB, script(body))
    assert job.wait() == 76, job.text
    assert "MismatchError: differs" in job.text
    assert not job.with_text("rank_main.py")


def test_a_worker_that_never_joined(launch, script):
    """The job fails and says why, although the script has ended well."""
    job = launch(*PURE, script("print('trained alone')\n", join=False))
    assert job.wait() == 78, job.text
    assert 'no store was made; give the Trainer or Module one, kvstore=mx.kv.create("sync-mpi")' in job.text


def test_a_worker_that_has_failed_makes_its_rank_fail(launch, script):
    """An error that the script never saw still counts."""
    body = "from kvstore_mpi.errors import DeadlineError\nfake_worker.join(DeadlineError('push of fc1'))\n"
    job = launch(*PURE, script(body, join=False))
    assert job.wait() == 69, job.text
    assert "DeadlineError: push of fc1" in job.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_gives_ranks_time_to_save(launch, script, number):
    """A rank that needs three seconds in its finally block finishes; the job ends with 75."""
    body = WAIT.replace('print("saved")', 'time.sleep(3 * rank); print("saved")')
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 4)
    job.signal(number)
    assert job.wait() == 75, job.text
    assert len(job.with_text("| saved")) == 4
    assert job.with_text(f"{number.name} to mpilaunch")


def test_exit_handlers_save_too(launch, script):
    """What the script has registered with atexit runs before the rank is ended."""
    body = (
        "import atexit\natexit.register(lambda: print('saved at exit'))\nprint('ready')\ntime.sleep(100)\n"
    )
    job = launch(*PURE, script(body))
    job.wait_for("ready", 2)
    job.signal(signal.SIGTERM)
    assert job.wait() == 75, job.text
    assert len(job.with_text("saved at exit")) == 2


def test_ranks_that_do_not_save_in_time_are_ended(launch, script):
    """The grace runs out: 128 + n, and they are named."""
    body = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nprint('ready')\ntime.sleep(100)\n"
    job = launch("--workers", 2, "--grace", 0.5, script(body))
    job.wait_for("ready", 2)
    job.signal(signal.SIGTERM)
    assert job.wait() == 143, job.text
    assert job.with_text("may have lost work: client0.0, client0.1")


def test_a_second_interrupt_ends_at_once(launch, script):
    """Ctrl-C twice does not wait for the grace."""
    body = "signal.signal(signal.SIGUSR1, lambda *_: print('saving'))\nprint('ready')\ntime.sleep(1000)\n"
    job = launch("--workers", 2, "--grace", 1000, script(body))
    job.wait_for("ready", 2)
    job.signal(signal.SIGINT)
    job.wait_for("saving", 2)
    job.signal(signal.SIGINT)
    assert job.wait() == 130, job.text


def test_timeout(launch, script):
    """A job that takes too long ends with 69 and says so."""
    job = launch(*PURE, "--timeout", 2, script(WAIT))
    assert job.wait() == 69, job.text
    assert job.with_text("longer than --timeout 2 s")


def test_a_server_that_is_killed(launch, script):
    """It is named with its signal, and the ranks save."""
    job = launch(*JOB, script(WAIT))
    job.wait_for("waiting", 4)
    os.kill(job.number_after("server0| serving"), signal.SIGKILL)
    assert job.wait() == 137, job.text
    assert re.search(r"server0 on \S+ \(pid \d+\) failed first: SIGKILL", job.text)
    assert len(job.with_text("| saved")) == 4


def test_mpiexec_that_is_killed(launch, script):
    """No rank survives it, and the job ends."""
    job = launch("--workers", 2, "--grace", 1, script(WAIT))
    job.wait_for("waiting", 2)
    os.kill(job.child("mpiexec", "prterun"), signal.SIGKILL)
    assert job.wait() == 137, job.text


def test_the_launchers_own_sigkill_leaves_nothing(launch, script):
    """No process, no temporary file, no shared memory, not even of a server that is stopped."""
    job = launch(*JOB, script(WAIT))
    job.wait_for("waiting", 4)
    notes = [note.read_text() for note in (job.folder / "tmp").glob("*/records/*.shm")]
    assert len(notes) == 4
    shared = [Path(line) for note in notes for line in note.splitlines()]
    os.kill(job.number_after("server0| serving"), signal.SIGSTOP)
    job.signal(signal.SIGKILL)
    job.wait()
    job.wait_until_clean()
    assert not [path for path in shared if path.exists()]


def test_a_killed_rank_leaves_no_shared_memory(launch, script):
    """MPICH would leave its file in /dev/shm."""
    shared = "[l.split()[-1] for l in open('/proc/self/maps') if '/dev/shm/mpich' in l]"
    job = launch(*PURE, script(f"print('shm', {shared}); " + "os.kill(os.getpid(), signal.SIGKILL)"))
    assert job.wait() == 137, job.text
    paths = re.findall(r"/dev/shm/\w+", job.text)
    assert not [path for path in paths if Path(path).exists()]


def test_a_helper_that_a_rank_leaves_behind_is_ended(launch, script):
    """Even one in a session of its own."""
    body = """
import subprocess
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("helper", helper.pid)
"""
    job = launch(script(body))
    assert job.wait() == 0, job.text
    assert job.leftovers() == ([], [])


def test_two_jobs_side_by_side(launch, script):
    """Nothing is shared: no port, no file, no name."""
    path = script("print('hello')\n")
    jobs = [launch(*JOB, path) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.text for job in jobs]
    assert [len(job.with_text("| hello")) for job in jobs] == [4, 4]


def test_the_secret_is_in_a_private_file_only(launch, script):
    """Neither argv nor environment has it, and nobody else can read the file."""
    job = launch(*JOB, script(WAIT))
    job.wait_for("waiting", 4)
    (directory,) = (job.folder / "tmp").glob("kvstore_mpi-*")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "job.json").stat().st_mode) == 0o600
    fields = json.loads((directory / "job.json").read_text())
    assert re.fullmatch("[0-9a-f]{16}", fields["job"])
    assert re.fullmatch("[0-9a-f]{64}", fields["secret"])
    seen = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            seen += str(directory).encode() in known
            assert fields["secret"].encode() not in known
    assert seen >= 6
    job.signal(signal.SIGINT)
    assert job.wait() == 75, job.text


def test_variables_reach_the_ranks(launch, script):
    """--env sets them; DMLC_ROLE, which would make mxnet a server, is taken away."""
    body = (
        "print('env', os.environ['COLOUR'], os.environ.get('DMLC_ROLE'), os.environ['KVMPI_TAKE_OVER'])\n"
    )
    path = script(body)
    job = launch(
        "--take-over",
        "--env",
        "COLOUR=a=b",
        path,
        program=("-c", "import os; os.environ['DMLC_ROLE'] = 'server'" + MAIN),
    )
    assert job.wait() == 0, job.text
    assert "client0.0| env a=b None 1" in job.lines


def test_a_module(launch, script):
    """-m runs a module with the current folder on the import path."""
    path = script("print('module', __name__, sys.argv[1:])\n")
    job = launch("-m", "train", "x", program=("-c", f"import os; os.chdir({str(path.parent)!r})" + MAIN))
    assert job.wait() == 0, job.text
    assert "client0.0| module __main__ ['x']" in job.lines


def test_any_executable(launch):
    """After -- the ranks are that program, and its code counts."""
    join = f"{sys.executable} -c 'import fake_worker; fake_worker.join()'"
    job = launch("--workers", 2, "--", "sh", "-c", f"echo I am $0; {join}", "me", program=PUBLIC)
    assert job.wait() == 0, job.text
    assert {"client0.0| I am me", "client0.1| I am me"} <= set(job.lines)
    job = launch("--", "sh", "-c", "echo oh >&2; exit 7", program=PUBLIC)
    assert job.wait() == 7, job.text
    assert "client0.0| oh" in job.lines


def test_a_program_that_never_joins(launch):
    """mpilaunch -- python train.py without a store has trained apart: 78, and what to do."""
    job = launch("--workers", 2, "--", "sh", "-c", "echo trained", program=PUBLIC)
    assert job.wait() == 78, job.text
    (said,) = job.with_text(
        "client0.0, client0.1 ended without ever having joined the job: no store was made"
    )
    assert "A program after -- has to import kvstore_mpi.mxnet itself" in said
    assert len(job.with_text("| trained")) == 2


def test_workers_that_open_no_store_are_named_while_they_train(launch, script, tmp_path):
    """After --join-warning; the job goes on, and the one that joins late is in it."""
    os.mkfifo(tmp_path / "go")
    body = f"if rank:\n    open({str(tmp_path / 'go')!r}).close()\nfake_worker.join()\n"
    job = launch(*PURE, "--join-warning", 1, script(body, join=False))
    # On a busy machine rank 0 may be late, too, and a second not enough for both to come out of MPI_Init.
    said = job.wait_for("(--join-warning)")[0]
    late = r"client0\.1 has not (joined the job|come out of MPI_Init)"
    assert re.match(rf"mpilaunch\| after 1 s \(--join-warning\) (client0\.0, )?{late}", said)
    (tmp_path / "go").open("w").close()
    assert job.wait() == 0, job.text


def test_reader_that_goes_away(launch, script):
    """mpilaunch ... | head: the ranks may save, and there is no traceback."""
    command = [sys.executable, *PUBLIC, "--workers", "2", str(script("while True: print('x' * 100)\n"))]
    pipeline = " ".join(command) + " | head -n 1; echo code ${PIPESTATUS[0]}"
    job = launch(program=("-c", f"import os; os.execvp('bash', ['bash', '-c', {pipeline!r}])"))
    job.wait()
    assert "code 75" in job.lines
    assert not job.with_text("Traceback")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nosuch.py",), 64, "the script 'nosuch.py' does not exist"),
        (("--clients", 2, "--workers", 3, "--servers", 1, "-m", "x"), 64, "give a multiple of 2"),
        (("--clients", 2, "-m", "x"), 64, "--servers 0 is pure MPI"),
        (("--log-dir", "/proc/nowhere", "-m", "x"), 78, "choose another place with --log-dir"),
        (("--", "nosuch"), 64, "the executable 'nosuch'"),
    ],
)
def test_bad_command_lines(launch, arguments, code, words):
    """One clear line, a code of its own, and nothing was started."""
    job = launch(*arguments, program=PUBLIC)
    assert job.wait() == code
    assert words in job.text
    assert "Traceback" not in job.text


def test_no_mpi(launch, script):
    """A library that cannot be loaded: what to install, and 78."""
    program = "import os; os.environ['MPI4PY_LIBMPI'] = '/nowhere/libmpi.so'"
    job = launch(script(""), program=("-c", program + MAIN))
    assert job.wait() == 78, job.text
    assert job.with_text("mpilaunch: no MPI: ")
    assert job.with_text("pip install 'kvstore_mpi[mpich]'")
    assert "Traceback" not in job.text


def test_dry_run_starts_nothing(launch, script):
    """The plan is printed; no script runs, no file is made."""
    job = launch("--dry-run", *JOB, script("open('ran', 'w')\n"), program=PUBLIC)
    assert job.wait() == 0, job.text
    assert [line for line in job.lines if re.fullmatch(r"# \w+:", line)] == [
        "# scheduler:",
        "# server0:",
        "# client0:",
        "# client1:",
    ]
    assert [path.name for path in job.folder.iterdir()] == ["tmp"]


def test_doctor(launch):
    """Where jobs run, the doctor finds nothing wrong but, here, that mxnet is hidden."""
    job = launch("doctor", program=PUBLIC)
    assert job.wait() == 78
    assert [line.split(":")[0] for line in job.with_text("FAIL")] == ["FAIL mxnet"]
    assert job.with_text("two ranks see each other")
