"""``mpilaunch.launch``: jobs from Python, from any thread."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kvstore_mpi.errors import ConfigurationError, InternalError, UsageError
from mpilaunch import Result, launch
from mpilaunch.outcome import result
from mpilaunch.outcome.root_cause import Failure, Reason, Restart, Verdict

SCRIPTS = Path(__file__).parent / "scripts"
JOINS = SCRIPTS / "joins.py"
FAILURE = Failure("client0.1", 3, 1.5, "node0", 17, "ValueError", "bad label", "look")


@pytest.fixture(autouse=True)
def _without_mxnet(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS / 'without_mxnet'}")


@pytest.mark.mpi
def test_what_is_given_as_a_path_or_a_number_of_numpy(tmp_path):
    """And dates among the arguments of a job file, as texts."""
    script = tmp_path / "a script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    ended = launch(
        script,
        tmp_path,
        workers=np.int64(1),
        grace=np.float32(2.5),
        env={"A": np.int32(3)},
        log_dir=tmp_path / "logs",
    )
    assert (ended.code, ended.cause.who) == (3, "client0.0")
    assert (Path(ended.log_folder) / "client0.0.log").read_text().startswith(f"['{tmp_path}']\n")
    (tmp_path / "job.toml").write_text(f"script = '{script}'\nargs = [1979-05-27]\n")
    ended = launch(config=tmp_path / "job.toml", log_dir=str(tmp_path / "logs"))
    assert (Path(ended.log_folder) / "client0.0.log").read_text().startswith("['1979-05-27']\n")


@pytest.mark.mpi
def test_jobs_from_threads(tmp_path, capsys):
    """Two at once, beside the main thread; each result is that of its own job."""
    bad = tmp_path / "bad.py"
    bad.write_text("import os, sys\nprint('word', os.environ['WORD'], sys.argv[1:])\nsys.exit(3)\n")
    (tmp_path / "job.toml").write_text("clients = 7\nlog-dir = 'nowhere'\n[env]\nWORD = 'no'\n")
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(launch, str(JOINS), clients=1, servers=1, log_dir=str(tmp_path / "good"))
        failed = pool.submit(
            launch,
            str(bad),
            "--lr",
            0.1,
            config=tmp_path / "job.toml",
            clients=1,
            env={"WORD": 7},
            settings={"step_timeout": 60},
            log_dir=str(tmp_path / "bad"),
        )
    well, ill = good.result(), failed.result()
    assert (well.code, well.cause, well.verdict.reason) == (0, None, Reason.SUCCESS)
    assert well.seconds > 0
    assert "joined as 0 of 1" in (Path(well.log_folder) / "client0.0.log").read_text()
    assert (ill.code, ill.cause.who, ill.cause.code) == (3, "client0.0", 3)
    assert Path(ill.log_folder).parent == tmp_path / "bad"
    said = capsys.readouterr().out
    assert "client0.0| joined as 0 of 1" in said
    assert "client0.0| word 7 ['--lr', '0.1']" in said
    assert "failed first" in said


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_a_job_ends_with_who_has_asked_for_it(tmp_path):
    """A process that is killed leaves no job behind: the ranks save."""
    saves = tmp_path / "saves.py"
    saves.write_text(
        "import time\nwith open('said', 'w', buffering=1) as said:\n    try:\n"
        "        said.write('begun\\n')\n        time.sleep(200)\n"
        "    finally:\n        said.write('saved\\n')\n"
    )
    os.mkfifo(tmp_path / "said")
    asker = f"import mpilaunch; mpilaunch.launch({str(saves)!r}, echo=False)"
    process = subprocess.Popen([sys.executable, "-c", asker], cwd=tmp_path)
    with (tmp_path / "said").open() as said:
        assert said.readline() == "begun\n"
        process.kill()
        process.wait()
        assert said.read() == "saved\n"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"cleints": 2}, "launch(): there is no 'cleints': did you mean clients? known are"),
        ({"clients": "2"}, "launch(): clients: '2' is not a whole number"),
        ({"settings": {"schedul": "p3"}}, "launch(): [set] there is no 'schedul'"),
        ({"config": "no.toml"}, "config no.toml cannot be read"),
        ({"timeout": math.inf}, "launch(): timeout: must be at most 1000000000 seconds, not inf"),
        ({"timeout": 10**10}, "launch(): timeout: must be at most 1000000000 seconds, not 10000000000"),
        ({"module": "m"}, "launch(): give one of script, module"),
    ],
)
def test_mistakes_are_errors_of_the_caller(call, words):
    """Before anything is started."""
    with pytest.raises(UsageError) as error:
        launch("train.py", **call)
    assert words in str(error.value)


def test_what_the_job_refuses_is_raised(tmp_path):
    """The process that was to run the job says why it does not."""
    with pytest.raises(UsageError, match=r"the script 'nowhere\.py' does not exist"):
        launch("nowhere.py", clients=2, servers=1)


def test_a_result_travels_whole():
    """With all failures and restarts; what is no result is an error that says so."""
    restart = Restart("server0", 1, (FAILURE,))
    verdict = Verdict(Reason.FAILURE, 3, FAILURE, (FAILURE, FAILURE), 15, ("client0.0",), (restart,))
    told = Result(verdict, "logs/1", "a report", 1.5)
    assert result.read(result.write(told)) == told
    assert str(told) == (
        "exit code 3 (client0.1 on node0: ValueError: bad label) after 1.5 s; logs: logs/1"
    )
    with pytest.raises(ConfigurationError, match="no MPI"):
        result.read(result.write(ConfigurationError("no MPI")))
    with pytest.raises(InternalError, match="without a result"):
        result.read(b"")
