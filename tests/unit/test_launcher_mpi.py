"""What the launcher understands of the MPIs, and the words about failures."""

import os
import signal
from collections import deque
from dataclasses import replace

import pytest

from kvstore_mpi.errors import ConfigurationError
from mpilaunch import mpi
from mpilaunch.events import Limits
from mpilaunch.outcome import report
from mpilaunch.outcome.root_cause import Failure, Reason, Verdict, describe_code
from mpilaunch.rank.rank_main import check_size
from mpilaunch.rank.record import ExitRecord, RankName, record_name
from mpilaunch.rank.reporter import Reporter, rank_and_size


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("[mpiexec@vm] Exit codes: [vm] 0,768", (0, 3)),
        ("[mpiexec@vm] Exit codes: [vm] 9,11", (137, 139)),
        ("[mpiexec@vm] Exit codes: [a] 0,9 [b] 256", (0, 137, 1)),
    ],
)
def test_exit_codes_of_all_ranks(line, codes):
    """Hydra prints wait statuses, with other lines around them."""
    assert mpi.rank_codes(["= BAD TERMINATION", line, "Please see the FAQ"]) == codes


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        (["srun: error: node1: task 2: Exited with exit code 3"], (0, 0, 3)),
        (
            ["srun: error: n1: tasks 0,2-3: Killed", "srun: error: n2: task 1: Exited with exit code 1"],
            (137, 1, 137, 137),
        ),
        (["srun: error: n1: task 0: Segmentation fault (core dumped)"], (139,)),
        (["srun: error: n1: task 0: Terminated"], (143,)),
        (["srun: Job step aborted: Waiting up to 7 seconds for job step to finish."], None),
    ],
)
def test_exit_codes_that_srun_prints(lines, codes):
    """Tasks of which it prints nothing have ended well."""
    assert mpi.rank_codes(lines) == codes


def test_no_exit_codes():
    """Other MPIs do not print them."""
    assert mpi.rank_codes(["something else"]) is None


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (-9, 137), (143, 143)])
def test_codes_of_processes(code, expected):
    """Python tells a signal by a negative number, shells by 128 + n."""
    assert mpi.normalise(code) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 8)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2)),
        ({}, (0, None)),
    ],
)
def test_what_the_process_manager_says(environment, expected):
    """The nearest process manager is believed first."""
    assert rank_and_size(environment) == expected


def test_ranks_that_are_all_zero_of_one():
    """The message names both sides."""
    check_size(4, 4, "MPICH")
    check_size(1, None, "MPICH")
    with pytest.raises(ConfigurationError, match=r"started 4 ranks.*Open MPI v5.*0 of 1"):
        check_size(1, 4, "Open MPI v5.0\nmore")


def test_the_library_may_be_in_a_folder_with_spaces(monkeypatch, tmp_path):
    """Beside it mpiexec is looked for."""
    library = tmp_path / "my m p i" / "libmpi.so.12"
    library.parent.mkdir()
    library.write_bytes(b"x")
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: pass\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "import mmap\n"
        f"with open({str(library)!r}, 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "def get_vendor(): return 'MPICH', (5, 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert mpi.find_library() == mpi.Library("MPICH", "5.0", str(library))


def library(monkeypatch, vendor, path=""):
    monkeypatch.setattr(mpi, "find_library", lambda: mpi.Library(vendor, "5.0", path))


def test_mpiexec_of_another_mpi_is_passed_over(monkeypatch):
    """The first program whose version text fits the library is taken."""
    library(monkeypatch, "Open MPI")
    said = {"/a/mpiexec": "HYDRA build details", "/b/mpiexec": "mpiexec (Open MPI) 5.0.11"}
    monkeypatch.setattr(mpi, "candidates", lambda *_: iter(said))
    monkeypatch.setattr(mpi, "version_text", said.__getitem__)
    assert mpi.find_mpi().mpiexec == "/b/mpiexec"


def test_no_mpiexec_fits(monkeypatch):
    """The message lists what was looked at and what it said."""
    library(monkeypatch, "Open MPI")
    monkeypatch.setattr(mpi, "candidates", lambda *_: iter(["/a/mpiexec"]))
    monkeypatch.setattr(mpi, "version_text", lambda _: "HYDRA build details\n")
    with pytest.raises(ConfigurationError, match=r"/a/mpiexec \(HYDRA build details\).*mpilaunch doctor"):
        mpi.find_mpi()


def test_an_mpi_that_we_do_not_know(monkeypatch):
    """It is named, beside those that we know."""
    library(monkeypatch, "Fujitsu MPI")
    with pytest.raises(ConfigurationError, match=r"Fujitsu MPI.*MPICH.*Open MPI"):
        mpi.find_mpi()


def test_mpiexec_beside_the_library_comes_first(monkeypatch, tmp_path):
    """An MPI's own folder is looked at before PATH."""
    for folder in ("mpi/bin", "path"):
        program = tmp_path / folder / "mpiexec"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    found = list(mpi.candidates(str(tmp_path / "mpi/lib/libmpi.so"), mpi.FLAVOURS[1]))
    assert found[0] == str(tmp_path / "mpi/bin/mpiexec")
    assert found[-1] == str(tmp_path / "path/mpiexec")


def test_records_are_read_as_they_were_written(tmp_path):
    """The record of an end survives the file, whatever the exception's text."""
    os.mkfifo(tmp_path / "events")
    events = os.open(tmp_path / "events", os.O_RDWR | os.O_NONBLOCK)
    name = RankName(0, 1)
    record = ExitRecord(0, 1, "host", 7, 76, "MismatchError", "caf\xe9 \u2014\n", ["a", "b"], 1.5, 2.5)
    Reporter(tmp_path, name).record_end(record)
    assert ExitRecord.read((tmp_path / record_name(name)).read_bytes()) == record
    assert ExitRecord.read(None) is None
    assert b'"end"' in os.read(events, 1000)
    os.close(events)


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "exit code 3"), (137, "SIGKILL (exit code 137)"), (128, "exit code 128"), (255, "exit code 255")],
)
def test_codes_in_words(code, text):
    """Signals have names."""
    assert describe_code(code) == text


def describe(verdict, tails=None):
    return report.describe(verdict, tails or {}, "logs/x", Limits(grace=25.0, timeout=60.0))


def test_success_needs_no_words():
    """A job that went well ends silently."""
    assert describe(Verdict(Reason.SUCCESS, 0)) == ""


def test_the_block_names_the_cause():
    """Who, where, with what, the last lines, what to do, and what failed besides."""
    cause = Failure("client0.1", 137, 1.0, "vm", 41)
    other = Failure("client1.0", 69, 0.5, "vm", 42, "PeerLostError", "worker1 is lost")
    text = describe(
        Verdict(Reason.FAILURE, 137, cause, (other, cause)), {"client0.1": ["step 1", "step 2"]}
    )
    for part in (
        "client0.1 on vm (pid 41) failed first: SIGKILL (exit code 137)",
        "its last lines:\n  step 1\n  step 2\n",
        "what to do: somebody killed it",
        "then failed, too: client1.0 exit code 69",
        "logs: logs/x",
        "exit code 137",
    ):
        assert part in text


def test_who_does_not_reach_the_others_says_why_in_the_line_of_the_cause():
    """They say that it has not come; of what ends by itself nothing is said but that."""
    late = Failure("client0.0", 69, 1.0, "vm", 41, "DeadlineError", "missing: client1.0")
    other = Failure("scheduler", 69, 2.0)
    why = "tcp://10.0.0.1:99: No route to host"
    tails = {
        "client0.0": ["it waits"],
        "client1.0": ["WARNING log: cannot connect to tcp://10.0.0.1:9: Invalid argument", "x"],
        "client1.1": [f"WARNING log: cannot connect to tcp://a: b, cannot connect to {why}", "x"],
    }
    verdict = report.explained(Verdict(Reason.FAILURE, 69, late, (late, other)), tails)
    text = describe(verdict, tails)
    both = "client1.0 cannot connect to tcp://10.0.0.1:9: Invalid argument; client1.1 cannot connect to "
    assert f"  DeadlineError: missing: client1.0; {both}{why}\n" in text
    assert "what to do: look at the routes and firewalls between these hosts" in text
    assert "then failed, too: scheduler exit code 69\n" in text
    for cause in (replace(late, code=1), replace(late, error="LeaseExpiredError"), None):
        own = Verdict(Reason.FAILURE, 69, cause)
        assert report.explained(own, tails) == own
    quiet = Verdict(Reason.FAILURE, 69, late, (late,))
    assert report.explained(quiet, {"client0.0": ["it waits"]}) == quiet
    many = {f"client{number}.0": tails["client1.0"] for number in range(9)}
    assert report.explained(quiet, many).cause.text.count("cannot connect") == 3
    server = Failure("server0", 69, 1.0)
    said = deque(["began", "kvstore_mpi error 69 PeerLostError: server0: missing: client1.0"])
    last = {**tails, "server0": said}
    text = describe(report.explained(Verdict(Reason.FAILURE, 69, server, (server,)), last), last)
    assert f"  kvstore_mpi error 69 PeerLostError: server0: missing: client1.0; {both}{why}\n" in text
    silent = report.explained(Verdict(Reason.FAILURE, 69, server, (server,)), tails)
    assert silent.cause.text.startswith("client1.0 cannot connect")


def test_the_block_of_a_timeout_and_of_a_signal():
    """Both say who was too late to save."""
    assert "longer than --timeout 60 s" in describe(Verdict(Reason.TIMEOUT, 69))
    late = Verdict(Reason.SIGNAL, 143, signum=signal.SIGTERM, unsaved=("client0.0",))
    assert "SIGTERM to mpilaunch" in describe(late)
    assert "within --grace 25 s and may have lost work: client0.0" in describe(late)
    assert "all ranks have ended in time" in describe(Verdict(Reason.SIGNAL, 75, signum=signal.SIGTERM))


@pytest.mark.parametrize("code", [1, 2, 64, 69, 70, 71, 74, 75, 76, 77, 78, 134, 135, 137, 139, 143, 200])
def test_every_code_has_a_remedy(code):
    """There is always something to do."""
    assert report.remedy(Failure("client0.0", code, 1.0))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Failure("client0.0", 1, 1.0, error="ValueError"), "the script ended with an exception"),
        (Failure("client0.0", 1, 1.0, error="MemoryError"), "memory ran out: use a smaller batch"),
        (Failure("client0.0", 1, 1.0, error="MXNetError", text="std::bad_alloc"), "memory ran out"),
        (Failure("server0", 1, 1.0), "a defect of kvstore_mpi"),
        (Failure("server0", 71, 1.0), "choose another place with TMPDIR"),
        (Failure("client0.0", 1, 1.0, remedy="do this"), "do this"),
    ],
)
def test_the_advice_is_about_what_has_happened(failure, words):
    """Not only about the exit code, of which there are too few."""
    assert words in report.remedy(failure)
