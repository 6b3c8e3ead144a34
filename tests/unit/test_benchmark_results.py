"""What all benchmarks share: when they refuse to measure, and how a doubtful result says that it is one."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness import machine, results  # noqa: E402  after the path

COMPUTED = ("planner_model", "sparse_routes")
"""Compares or draws what cost models predict, and measures nothing itself."""

PROGRAMS = sorted(
    path
    for path in BENCHMARKS.glob("*.py")
    if not path.stem.endswith("_worker") and path.stem not in COMPUTED
)
CLEAN = machine.Tree("abc", ())
DIRTY = machine.Tree("abc", ("kvstore_mpi/node.py",))


class Quiet:
    """A meter that has seen others keep this many cores busy."""

    foreign_cores = 0.0

    def read(self):
        """Return itself."""
        return self


@pytest.fixture(autouse=True)
def _handler_of_sigterm():
    """Take back what a benchmark does at its beginning: processes forked by later tests would inherit it.

    With a handler in Python it cannot be ended while it waits in C, which MXNet's DataLoader relies on.
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """Return what begins a benchmark in this tree beside these others."""

    def call(*options, tree=CLEAN, foreign=0.0):
        monkeypatch.setattr(results, "tree", lambda: tree)
        monkeypatch.setattr(results, "PROBE_S", 0.0)
        monkeypatch.setattr(results, "Meter", Quiet)
        monkeypatch.setattr(Quiet, "foreign_cores", foreign)
        monkeypatch.setattr(results.signal, "signal", lambda *_: None)
        parser = results.make_parser("any", "", repeats="1")
        return results.begin("any", parser.parse_args([*options, "--json", str(tmp_path / "out.json")]))

    return call


def git(root, *words):
    """Run git in a checkout as somebody."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with one commit."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


class TestTree:
    def test_a_committed_tree_is_its_commit(self, checkout):
        """Twelve digits, and nothing differs."""
        found = machine.tree(checkout)
        assert (len(found.commit), found.changed) == (12, ())

    @pytest.mark.parametrize("name", ["code.py", "new.py"])
    def test_a_file_that_differs_is_named(self, checkout, name):
        """Also one that git does not know yet."""
        (checkout / name).write_text("2")
        assert machine.tree(checkout).changed == (name,)

    @pytest.mark.parametrize("folder", ["benchmarks/results", "docs/images"])
    def test_what_benchmarks_write_does_not_keep_the_next_from_measuring(self, checkout, folder):
        """Results and pictures may differ."""
        (checkout / folder).mkdir(parents=True)
        (checkout / folder / "new").write_text("2")
        assert machine.tree(checkout).changed == ()

    def test_no_checkout_is_not_a_committed_tree(self, tmp_path):
        """Nobody could say what was measured."""
        assert machine.tree(tmp_path).changed


def test_a_result_tells_how_fast_python_is_here(begin):
    """In nanoseconds: more than ten on any processor, less than a hundred thousand."""
    assert 10 < begin().head["python_turn_ns"] < 1e5


class TestBegin:
    def test_a_tree_that_differs_from_its_commit_is_refused(self, begin):
        """The message names the files and the option."""
        with pytest.raises(SystemExit, match=r"kvstore_mpi/node.py.*--dirty"):
            begin(tree=DIRTY)

    def test_a_busy_machine_is_refused(self, begin):
        """The message names the option."""
        with pytest.raises(SystemExit, match="--allow-load"):
            begin(foreign=0.3)

    def test_options_overrule_and_mark(self, begin):
        """Both at once are two marks; options alone are none."""
        dirty, loaded = begin("--dirty", "--allow-load", tree=DIRTY, foreign=0.3).marks
        assert dirty.startswith("DIRTY tree: abc, but for kvstore_mpi/node.py")
        assert loaded.startswith("DOUBTFUL: others kept 0.30 cores busy")
        assert begin("--dirty", "--allow-load").marks == []

    def test_another_checkout_is_committed_too_and_named(self, monkeypatch, tmp_path):
        """A dirty tree beside a clean one is refused as well."""
        trees = {tmp_path: machine.Tree("def", ("x.py",))}
        monkeypatch.setattr(results, "tree", lambda root=None: trees.get(root, CLEAN))
        monkeypatch.setattr(results, "PROBE_S", 0.0)
        parser = results.make_parser("any", "", repeats="1")
        parser.set_defaults(beside=tmp_path, allow_load=True)
        with pytest.raises(SystemExit, match=r"x\.py"):
            results.begin("any", parser.parse_args([]))
        assert results.begin("any", parser.parse_args(["--dirty"])).head["beside"] == "def"


class TestMarks:
    def test_json_and_table_have_them(self, begin, capsys):
        """And what is loaded again."""
        measured = begin("--dirty", tree=DIRTY)
        measured.add({"foreign_cores": 0.0})
        measured.show("the table")
        written = json.loads(measured.path.read_text())
        assert written["marks"] == measured.marks
        assert (written["commit"], written["changed"]) == ("abc", list(DIRTY.changed))
        assert capsys.readouterr().out == f"!! {measured.marks[0]}\nthe table\n"
        assert results.load([measured.path]).marks == [f"out.json: {measured.marks[0]}"]

    def test_pictures_have_them(self, tmp_path):
        """The drawing with a mark is another one than that without."""
        plot = pytest.importorskip("harness.plot", reason="needs matplotlib")
        figure, axes = plot.plt.subplots(layout="constrained")
        axes.plot([1, 2], label="line")
        plot.finish(figure, [axes], tmp_path / "a.png", ["DIRTY tree"])
        assert figure.get_supxlabel() == "DIRTY tree"

    def test_a_run_beside_which_others_were_busy_is_one(self, begin):
        """Counted over the runs, with the most."""
        measured = begin()
        for foreign in (0.1, 0.9, 0.4):
            measured.add({"foreign_cores": foreign})
        said = "DOUBTFUL: others kept up to 0.90 cores busy during 2 of 3 runs"
        assert measured.marks == [said]
        assert results.load([measured.path]).marks == [said]

    def test_a_tree_that_changes_meanwhile_is_one(self, begin, monkeypatch, capsys):
        """Hours of measuring are not thrown away, but say so."""
        measured = begin()
        monkeypatch.setattr(results, "tree", lambda: DIRTY)
        measured.show("the table")
        said = "DIRTY tree: it was changed while it was measured"
        assert json.loads(measured.path.read_text())["marks"] == [said]
        assert capsys.readouterr().out == f"!! {said}\nthe table\n"


class TestRuns:
    def test_every_run_is_in_the_file_as_soon_as_it_is_made(self, begin):
        """In order, with those that failed."""
        measured = begin()
        for number in range(3):
            measured.add({"number": number})
            assert len(json.loads(measured.path.read_text())["runs"]) == number + 1
        measured.fail("the fourth")
        with pytest.raises(SystemExit, match="1 runs failed"):
            measured.close()
        assert [run["number"] for run in results.load([measured.path]).runs] == [0, 1, 2]
        assert json.loads(measured.path.read_text())["failures"] == ["the fourth"]

    def test_results_of_another_schema_are_refused(self, tmp_path):
        """The message says which tree reads them."""
        (tmp_path / "old.json").write_text('{"commit": "123"}')
        with pytest.raises(SystemExit, match="not of schema 2; the tree of its commit, 123"):
            results.load([tmp_path / "old.json"])

    def test_what_is_kept_can_be_shown(self):
        """Every kept file that says it is of the schema is."""
        files = results.BENCHMARKS.glob("results/*.json")
        kept = [file for file in files if '"schema"' in file.read_text()]
        assert len(results.load(kept).runs) > len(kept) > 0


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_every_benchmark_begins_and_writes_by_the_one_way(program):
    """None has a file or options of its own for that; ``prepare`` is ``begin`` with hosts."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert called & {"begin", "prepare"}
    assert called & {"make_parser", "make_p3_parser"}
    assert called & {"add", "attempt", "keep"}
    assert called >= {"show", "close", "load"}
    assert called.isdisjoint(
        {"ArgumentParser", "write_text"} if program.stem != "exchange" else {"ArgumentParser"}
    )


@pytest.mark.parametrize("option", ["dirty", "allow_load", "realtime"])
def test_what_overrules_is_off_unless_it_is_given(option):
    """Each of them marks the result."""
    assert not getattr(results.make_parser("any", "", repeats="1").parse_args([]), option)
