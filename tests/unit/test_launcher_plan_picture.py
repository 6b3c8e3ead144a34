"""The picture of a plan is drawn, by itself and by the command."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import pytest

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.planner import Cluster, EpochsCurve, Link, ModelParallel, Net, NetLayer, plan
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.epochs import write_curve
from kvstore_mpi.planner.net import write_net
from mpilaunch.planning import plan_command
from mpilaunch.planning.plan_picture import draw, lines_of

NET = Net("small", 64, 64_000, (NetLayer("dense", 400_000, 0.04, 0.08),))
CLUSTER = Cluster(4, Link(1e8))
CURVE = EpochsCurve.of({64: 4, 128: 4.5, 256: 9})
FOUND = plan(NET, CLUSTER, CURVE, [ModelParallel(2, 1.9)])


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """Return the bytes of a picture; the first one takes a second, for fonts."""
    pytest.importorskip("matplotlib", reason="the extra bench installs it")
    path = tmp_path_factory.mktemp("picture") / "plan.png"
    draw(FOUND, CURVE, str(path))
    return path.read_bytes()


def size_and_colours(content):
    """Return the width and height of a PNG, and how many different bytes its lines have.

    Read as the format says: a signature, then chunks, each with a length and a sum.
    """
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        [length] = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        [check] = struct.unpack(">I", content[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + length
    assert b"IEND" in chunks
    return struct.unpack(">II", chunks[b"IHDR"][:8]), len({*zlib.decompress(chunks[b"IDAT"])})


def test_the_picture_has_a_line_for_each_kind_of_worker():
    """Of each number of devices the best."""
    lines = lines_of(FOUND)
    assert [[devices for devices, _ in line] for line in lines.values()] == [[1, 2, 4], [2, 4]]
    assert min(seconds for line in lines.values() for _, seconds in line) == FOUND.best.total_s


def test_a_plan_is_drawn(picture):
    """A PNG of ten by four inches, with more than lines on white."""
    size, colours = size_and_colours(picture)
    assert size == (1200, 480)
    assert colours > 50
    assert len(picture) > 10_000


def test_the_command_draws_a_plan(tmp_path, picture):
    """The same picture, where it was asked for."""
    (tmp_path / "net.json").write_bytes(write_net(NET))
    (tmp_path / "cluster.toml").write_text(write_cluster(CLUSTER))
    (tmp_path / "curve.json").write_bytes(write_curve(CURVE))
    words = "--cluster cluster.toml --epochs-curve curve.json --picture plan.png net.json"
    given = [str(tmp_path / word) if "." in word else word for word in words.split()]
    out = io.StringIO()
    assert plan_command.run(["--model-parallel", "2:1.9", *given], out) == 0
    assert f"wrote {tmp_path / 'plan.png'}" in out.getvalue()
    assert (tmp_path / "plan.png").read_bytes() == picture


def test_what_cannot_be_drawn_is_named(tmp_path, monkeypatch, picture):
    """A folder that is not there, no matplotlib."""
    with pytest.raises(ConfigurationError, match=r"nowhere/plan\.png cannot be drawn: "):
        draw(FOUND, CURVE, str(tmp_path / "nowhere/plan.png"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"--picture needs matplotlib: pip install 'kvstore_mpi"):
        draw(FOUND, CURVE, str(tmp_path / "plan.png"))
