"""However a rank ends, its script finds what it finds with ``python``: files, handlers, its module."""

import signal
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
