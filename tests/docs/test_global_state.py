"""State of a module is one for all of its users; where that is so on purpose, the reason is here."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

REASONS = {
    "kvstore_mpi/adapters/mxnet/bridge/engine.py": "MXNet has one engine, whose callbacks know a number",
    "kvstore_mpi/adapters/mxnet/bridge/rows_behind.py": "MXNet hands its operators a number alone",
    "kvstore_mpi/adapters/mxnet/exchange/lifecycle.py": "what the exit of the interpreter and forks find",
    "kvstore_mpi/node.py": "MPI and the job see a process once, however many stores it has",
    "kvstore_mpi/tracing/annotation.py": "scripts mark what they do without knowing a store",
}

OWNED = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MADE = {"list", "dict", "set", "deque", "defaultdict", "Counter", "count", "Lock", "RLock", "Condition"}


def is_state(node):
    """Return whether a statement of a module makes something that functions go on to change."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    names = node.targets if isinstance(node, ast.Assign) else [node.target]
    # Constants are in capitals, and nobody changes them; ``__all__`` is one, too.
    if all(not isinstance(each, ast.Name) or each.id.isupper() or each.id[:2] == "__" for each in names):
        return False
    made = node.value.func if isinstance(node.value, ast.Call) else None
    name = getattr(made, "id", getattr(made, "attr", ""))
    return isinstance(node.value, OWNED) or name in MADE


def has_state(path):
    """Return whether a module has state, or functions that give its names another value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(map(is_state, tree.body)) or any(isinstance(node, ast.Global) for node in ast.walk(tree))


def test_modules_with_state_have_a_reason():
    """All others keep theirs in objects; a reason of a module that has none any more goes."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("kvstore_mpi", "launcher")
        for path in (ROOT / folder).rglob("*.py")
        if has_state(path)
    }
    assert sorted(found) == sorted(REASONS)
