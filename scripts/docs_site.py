"""A hook of MkDocs (``mkdocs.yml``): pages that are made of the sources, and links that leave ``docs/``.

What is said in the code is not written down a second time: exit codes, the API, and which tests follow
which part of a paper. Links to files of the repository become their names, after a look whether they exist.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from kvstore_mpi import errors
from mpilaunch.outcome.exit_codes import MEANINGS, REMEDIES
from mpilaunch.outcome.root_cause import describe_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages that are files elsewhere in the repository."""

API = (
    ("In a training script", ("kvstore_mpi", "kvstore_mpi.mxnet")),
    ("Starting jobs", ("mpilaunch.library", "mpilaunch.outcome.result", "mpilaunch.outcome.root_cause")),
    ("For adapters of other frameworks", ("kvstore_mpi.interfaces", "kvstore_mpi.rows_interface")),
    ("Errors", ("kvstore_mpi.errors",)),
)
"""Modules whose public names are the interface of the package."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in ``docs/``."""
    made = {name: (ROOT / source).read_text(encoding="utf-8") for name, source in PAGES.items()}
    made |= {
        "api.md": _api(),
        "adr/index.md": _decisions(),
        "papers-tests.md": _papers(),
        **dict(_errors()),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  as MkDocs calls it
    """Let links lead to pages, or name the files that are none."""
    name = page.file.src_uri
    source = Path(PAGES.get(name, f"docs/{name}"))
    pages = {path: page for page, path in PAGES.items()}

    def lead(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(source.parent / target))
        inside = pages.get(str(path)) or (str(path)[5:] if path.parts[0] == "docs" else "")
        if (ROOT / path).is_dir() and inside:
            inside += "/index.md"
        if files.get_file_from_path(inside) is not None:
            return f"[{text}]({os.path.relpath(inside, Path(name).parent)}{anchor})"
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        return f"{text} (`{path}`)" if str(path) not in text else text

    return _images(_LINK.sub(lead, markdown), name)


def _images(markdown: str, name: str) -> str:
    """README is a page of ``docs/`` here, and its images are a folder nearer."""
    return markdown.replace("](docs/images/", "](images/") if name in PAGES else markdown


def _api() -> str:
    parts = ["# API", "Of the docstrings. Names that begin with `_` may change at any time."]
    for title, modules in API:
        parts += [f"## {title}", *(f"::: {module}" for module in modules)]
    return "\n\n".join(parts)


def _decisions() -> str:
    pages = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    titles = {page.name: page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for page in pages}
    return "\n".join(["# Decisions", "", *(f"- [{title}]({name})" for name, title in titles.items())])


def _errors() -> Iterator[tuple[str, str]]:
    """Yield a page for each exit code of ours, for each that has a remedy, and one that lists them."""
    codes = sorted({*MEANINGS, *REMEDIES} - {0})
    rows = [f"| [{code}]({code}.md) | {_title(code)} |" for code in codes]
    about = "A job ends with the exit code of the process that failed first; 128 + n is signal n."
    yield "errors/index.md", "\n".join(["# Exit codes", "", about, "", "| code | |", "|---|---|", *rows])
    for code in codes:
        classes = [each for each in vars(errors).values() if isinstance(each, type) and _has(each, code)]
        lines = [f"# {code}: {_title(code)}", f"**What to do:** {REMEDIES.get(code, 'see the message')}."]
        lines += ["Errors that end so:"] if classes else []
        lines += [f"- `{each.__name__}`: {(each.__doc__ or '').splitlines()[0]}" for each in classes]
        yield f"errors/{code}.md", "\n\n".join(lines)


def _title(code: int) -> str:
    return MEANINGS.get(code, describe_code(code).partition(" (")[0])


def _has(each: type, code: int) -> bool:
    return issubclass(each, errors.KVStoreError) and each.exit_code == code


def _papers() -> str:
    """Return which tests follow which part of a paper, as their markers say."""
    rows: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for part, test in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            rows.setdefault(part, []).append(f"`{path.relative_to(ROOT)}`{f': {test}' if test else ''}")
    lines = [f"| {part} | {'<br>'.join(tests)} |" for part, tests in sorted(rows.items())]
    return "\n".join(["# Tests by paper", "", "| part | tests |", "|---|---|", *lines])


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the part of a paper and what a test says of itself; nothing where the whole file is marked."""
    for node in ast.walk(module):
        marks: list[Any] = []
        if isinstance(node, ast.FunctionDef):
            marks = node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        for mark in marks:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.paper":
                said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else ""
                yield ast.literal_eval(mark.args[0]), (said or "").split("\n")[0]
