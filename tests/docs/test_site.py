"""The docs site's own pages, made of the sources; ``mkdocs build --strict`` checks the rest."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstore_mpi import errors
from mpilaunch.help_text import EPILOG
from mpilaunch.outcome.exit_codes import MEANINGS, REMEDIES

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="site", scope="module")
def _site():
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts/docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_exit_code_has_a_meaning_a_remedy_and_a_page(site):
    """Those of the exceptions above all; the help lists the same."""
    own = {
        each.exit_code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.KVStoreError)
    }
    assert own - {1} <= set(MEANINGS)
    assert set(MEANINGS) - {0} <= set(REMEDIES)
    pages = dict(site._errors())
    assert {f"errors/{code}.md" for code in own} <= set(pages)
    assert "`MismatchError`: Workers disagree about a shape" in pages["errors/76.md"]
    assert REMEDIES[76] in pages["errors/76.md"]
    assert all(f"{code} {meaning}" in EPILOG for code, meaning in MEANINGS.items())


def test_links_lead_to_pages_or_name_files(site):
    """One that leads nowhere ends the build."""
    pages = {"p3.md", "contributing.md", "adr/index.md"}
    files = SimpleNamespace(get_file_from_path=lambda name: name if name in pages else None)

    def shown(text, name="index.md"):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return site.on_page_markdown(text, page=page, config=None, files=files)

    assert shown("[P3](docs/p3.md#figures)") == "[P3](p3.md#figures)"
    assert shown("[how](CONTRIBUTING.md), [why](docs/adr)") == "[how](contributing.md), [why](adr/index.md)"
    assert shown("[test](../tests/conftest.py)", "p3.md") == "test (`tests/conftest.py`)"
    assert (
        shown("![x](docs/images/p3.png) [web](https://x.org)") == "![x](images/p3.png) [web](https://x.org)"
    )
    with pytest.raises(site.PluginError, match=r"links to nowhere\.md"):
        shown("[x](nowhere.md)")


def test_parts_of_papers_are_found(site):
    """As the markers of tests name them, on single tests and on files."""
    text = site._papers()
    assert "`tests/paper/test_p3_protocol.py`: By priority through worker, server and collectives" in text
    assert "| Parallax Table 3 | `tests/paper/test_parallax_table3.py`" in text
