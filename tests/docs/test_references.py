"""What docstrings refer to is there: a name of a module, in double backticks, moves when that moves."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kvstore_mpi", "launcher")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def parts_of(path):
    """Return the dotted name of a module, in parts; a package is its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def names_in(tree, is_package):
    """Return all that a module defines or assigns, in its classes, too; of a package what it imports."""
    for node in ast.walk(tree):
        if is_package and isinstance(node, ast.alias):
            yield node.name
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def stale(texts, names):
    """Return the references of some texts to modules that have no such name.

    Args:
        texts: By where they stand.
        names: What there is, by the ends of modules' dotted names: ``wire.messages``, ``messages``.
    """
    return [
        f"{where}: {reference}"
        for where, text in texts
        for reference in re.findall(r"``(\w+(?:\.\w+)+)(?:\(.*?\))?``", text)
        for first, *rest in [reference.removesuffix(".py").split(".")]
        if (first,) in names and not is_there([first, *rest], names)
    ]


def is_there(parts, names):
    """Tell whether a reference is a module, or a name, or a name of a name, in one."""
    return tuple(parts) in names or any(
        parts[end] in names.get(tuple(parts[:end]), ()) for end in range(1, len(parts))
    )


def test_what_docstrings_refer_to_is_there():
    """Of modules of these packages; what is an attribute of something else is not looked up."""
    names, texts = defaultdict(set), []
    for path in FILES:
        tree, parts = ast.parse(path.read_text(encoding="utf-8")), parts_of(path)
        for begin in range(len(parts)):
            names[parts[begin:]].update(names_in(tree, path.name == "__init__.py"))
        texts += [
            (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or "")
            for node in ast.walk(tree)
            if isinstance(node, DOCUMENTED)
        ]
    assert stale(texts, names) == []


def test_a_reference_that_is_stale_is_found():
    """Also to a method, and by a longer name of the module."""
    names = {("records",): {"Key", "num_bytes"}, ("wire", "records"): {"Key"}, ("wire",): set()}
    text = "``records.Key`` ``records.Key.num_bytes`` ``wire.records.Key`` ``wire.records``"
    text += " ``records.py`` ``other.Key``"
    assert stale([("a", text)], names) == []
    assert stale([("a", "see ``records.Write`` and ``wire.records.Write()``")], names) == [
        "a: records.Write",
        "a: wire.records.Write",
    ]
