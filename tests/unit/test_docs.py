"""The documents name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMING = [ROOT / f"docs/{name}.md" for name in ("how-a-gradient-travels", "p3", "collectives", "elastic")]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _named_places() -> list[tuple[str, str]]:
    """Return (file, name) for each `file`: `name`, `name` in the documents."""
    text = " ".join(path.read_text(encoding="utf-8") for path in NAMING).replace("\n", " ")
    places = []
    for match in re.finditer(r"`([\w/]+\.py)`:((?:\s*`[\w.]+`,?)+)", text):
        places += [(match[1], name) for name in re.findall(r"`([\w.]+)`", match[2])]
    return places


def test_the_documents_name_many_places() -> None:
    """The pattern that reads them finds what it is meant to find."""
    assert len(_named_places()) >= 40


@pytest.mark.parametrize(("file", "name"), _named_places())
def test_each_station_exists(file: str, name: str) -> None:
    """Each file exists and defines each class, method or function that is named with it."""
    source = (ROOT / file).read_text(encoding="utf-8")
    *owners, function = name.split(".")
    for owner in owners:
        assert re.search(rf"^class {owner}\b", source, re.MULTILINE), f"{file} has no class {owner}"
    indent = r"    " if owners else r"(?:    )?"
    assert re.search(rf"^{indent}(?:def|class) {function}\b", source, re.MULTILINE), f"{file}: no {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links and images of a document point at files of the repository."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_to_headings(document: Path) -> None:
    """By the names that GitHub gives them and by those of the site, which has no dash after another."""
    text = document.read_text(encoding="utf-8")
    for target, name in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)", text):
        other = document.parent / target if target else document
        heads = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
        words = [re.sub(r"[^\w\s-]", "", each.lower()).strip() for each in heads]
        assert name in {each.replace(" ", "-") for each in words}, (target, name)
        assert name in {re.sub(r"[-\s]+", "-", each) for each in words}, (target, name)


def test_the_pythons_that_readme_names_are_those_that_are_checked() -> None:
    """``.ci/claims`` installs and tests the package on each."""
    readme, claims = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", ".ci/claims"))
    [(first, last)] = re.findall(r"on Python 3\.(\d+) to 3\.(\d+)", readme)
    [checked] = re.findall(r"^CORE=\((.*)\)$", claims, re.MULTILINE)
    assert [int(minor) for minor in checked.split()] == [*range(int(first), int(last) + 1)]
