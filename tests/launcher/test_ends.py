"""However a rank ends, its script finds what it finds with ``python``: files, handlers, its module."""

import os
import signal
import zipapp
import zlib

import pytest

pytestmark = pytest.mark.mpi

OPEN_FILES = """
import gzip
text, binary = open(f"text{rank}", "w"), open(f"binary{rank}", "wb")
packed = gzip.open(f"packed{rank}", "wt")
text.write("last line")
binary.write(b"last bytes")
packed.write("last of many")
"""


def has_written(folder, rank):
    """Tell whether a rank's files have what the script has written."""
    text, binary, packed = (
        (folder / f"{name}{rank}").read_bytes() for name in ("text", "binary", "packed")
    )
    unpacked = zlib.decompressobj(wbits=31).decompress(packed)
    return (text, binary, unpacked) == (b"last line", b"last bytes", b"last of many")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("1 / 0", 1),
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("raise KeyboardInterrupt", 130),
        ("pass", 0),
    ],
)
def test_files_that_a_rank_leaves_open(launch, script, end, code):
    """They have what the script has written, however it ends."""
    job = launch("--workers", 1, script(f"{OPEN_FILES}{end}\n"))
    assert job.wait() == code, job.text
    assert has_written(job.folder, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_files_that_ranks_leave_open_when_they_are_told_to_end(launch, script, number):
    """Those of all ranks; nothing of theirs is lost."""
    job = launch("--workers", 2, script(f"{OPEN_FILES}print('waiting')\ntime.sleep(1000)\n"))
    job.wait_for("waiting", 2)
    job.signal(number)
    assert job.wait() == 75, job.text
    assert has_written(job.folder, 0)
    assert has_written(job.folder, 1)


def test_files_that_survivors_leave_open(launch, script):
    """Of a rank that has lost another, and of one that is told of it."""
    body = f"""{OPEN_FILES}
if rank == 0:
    from kvstore_mpi.errors import PeerLostError
    raise PeerLostError("lost client1")
time.sleep(1000)
"""
    job = launch("--workers", 2, script(body))
    assert job.wait() == 69, job.text
    assert has_written(job.folder, 0)
    assert has_written(job.folder, 1)


def test_a_file_that_takes_nothing(launch, script):
    """A pipe that nobody reads does not keep the rank, nor what its other files hold."""
    body = f"""
full = [open(os.pipe()[1], "wb", buffering=1 << 20) for _ in range(2)]
for file in full:
    file.write(bytes(1 << 20))
{OPEN_FILES}1 / 0
"""
    job = launch("--workers", 1, script(body))
    assert job.wait() == 1, job.text
    assert has_written(job.folder, 0)


PICKLES = """
class State:
    epoch = 7
def copied(who):
    print(who, pickle.loads(pickle.dumps(State())).epoch, sys.argv[1:], flush=True)
def outlive():
    threading.main_thread().join()
    copied("thread")
import atexit, multiprocessing, pickle, sys, threading
if __name__ == "__main__":
    import fake_worker
    fake_worker.join()
    atexit.register(copied, "handler")
    threading.Thread(target=outlive).start()
    child = multiprocessing.get_context("spawn").Process(target=copied, args=("child",))
    child.start()
    child.join()
"""


def in_folder(folder):
    """Return the start of a program that runs the launcher in a folder."""
    start = f"import os, sys; os.chdir({str(folder)!r}); from mpilaunch.cli import main; sys.exit(main())"
    return ("-c", start)


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(75)", 75)])
@pytest.mark.parametrize("command", [("script.py",), ("-m", "script"), ("folder",), ("archive.zip",)])
def test_exit_handlers_and_threads_find_what_the_script_defines(launch, tmp_path, command, end, code):
    """It is ``__main__`` to the end, also for processes that it spawns."""
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "script.py", tmp_path / "folder" / "__main__.py"):
        path.write_text(f"{PICKLES}    {end}\n")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "archive.zip")
    job = launch("--workers", 1, *command, "x", program=in_folder(tmp_path))
    assert job.wait() == code, job.text
    # Python's own way to spawn does not find the __main__.py of a folder.
    spawned = ["child"] if "script" in command[-1] else []
    for who in ["handler", "thread", *spawned]:
        assert f"client0.0| {who} 7 ['x']" in job.lines, job.text


@pytest.mark.parametrize("command", ["script.py", "./script.py", "folder/../script.py"])
def test_a_script_that_changes_its_folder_finds_what_is_beside_it(launch, tmp_path, command):
    """Its file is an absolute path, and its first argument what was typed, as with python."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "script.py"
    body = "import os, sys, fake_worker\nfake_worker.join()\nos.chdir('/')\n"
    path.write_text(f"{body}print(os.path.samefile(__file__, {str(path)!r}), sys.argv)\n")
    job = launch("--workers", 1, command, "x", program=in_folder(tmp_path))
    assert job.wait() == 0, job.text
    assert f"client0.0| True [{command!r}, 'x']" in job.lines, job.text


HOOK = """
from kvstore_mpi.errors import PeerLostError
def hook(kind, error, frames):
    print("hook", kind.__name__, error, os.path.basename(frames.tb_frame.f_code.co_filename))
sys.excepthook = hook
"""


@pytest.mark.parametrize(
    ("kind", "code"), [("ValueError", 1), ("PeerLostError", 69), ("KeyboardInterrupt", 130)]
)
def test_a_hook_for_exceptions(launch, script, kind, code):
    """It is the script's to show them, and the job knows of them all the same."""
    job = launch("--workers", 1, script(f"{HOOK}raise {kind}('boom')\n"))
    assert job.wait() == code, job.text
    assert f"client0.0| hook {kind} boom train.py" in job.lines, job.text
    assert not job.with_text("| Traceback"), job.text
    assert job.with_text(f"mpilaunch|   {kind}: boom"), job.text


HANDLERS = """
import atexit
def second():
    print("second")
    1 / 0
atexit.register(print, "first")
atexit.register(second)
"""


@pytest.mark.parametrize("end", ["raise ValueError", "sys.exit(1)", "sys.exit('no')"])
def test_exit_handlers_of_a_rank_that_fails(launch, script, end):
    """They run as Python runs them, each once; then its client ends, although the others wait for it."""
    job = launch("--workers", 2, script(f"{HANDLERS}if rank:\n    {end}\nMPI.COMM_WORLD.Barrier()\n"))
    assert job.wait() == 1, job.text
    assert [line for line in job.lines if line.endswith(("| first", "| second"))] == [
        "client0.1| second",
        "client0.1| first",
    ], job.text


def test_an_exit_handler_that_waits_for_others(launch, script):
    """The job ends after the grace, without a loss; ranks of other clients have heard of it at once."""
    body = f"""
import atexit
def wait():
    print("waiting in a handler")
    MPI.COMM_WORLD.Barrier()
if client == 0 and rank:
    atexit.register(wait)
    with open("go") as told:
        told.read()
    exec({OPEN_FILES!r})
    sys.exit(3)
try:
    print("waiting")
    time.sleep(1000)
finally:
    print("saved")
"""
    job = launch("--clients", 2, "--servers", 1, "--workers", 4, "--grace", 5, script(body))
    os.mkfifo(job.folder / "go")
    job.wait_for("waiting", 3)
    (job.folder / "go").write_text("")
    job.wait_for("waiting in a handler")
    assert job.wait() == 3, job.text
    assert {"client1.0| saved", "client1.1| saved"} <= set(job.lines), job.text
    assert has_written(job.folder, 1)
