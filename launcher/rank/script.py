"""Runs the script or module of a rank as a plain ``python`` does: arguments, import path, and ``__main__``.

``runpy.run_path`` takes the script's ``__main__`` away when it returns. Exit handlers that pickle what the
script defines would not find it, nor would threads that go on.
"""

from __future__ import annotations

import builtins
import io
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]  # noqa: SLF001  python -m calls it


def set_arguments(command: Sequence[str]) -> None:
    """Set the arguments and the import path that a plain python would have."""
    if command[0] == "-m":
        sys.argv, first = list(command[1:]), Path.cwd()
    else:
        script = Path(command[0]).resolve()
        sys.argv, first = list(command), script if _has_modules(command[0]) else script.parent
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # of this module
    sys.path.insert(0, str(first))


def run(command: Sequence[str]) -> None:
    """Run a script or a module as ``__main__``, which it is until the process ends."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if command[0] == "-m":
        _run_module(command[1])
    elif _has_modules(command[0]):
        _run_module("__main__", alter_argv=False)
    else:
        file = str(Path(command[0]).absolute())
        loader = SourceFileLoader("__main__", file)
        vars(main).update(__file__=file, __cached__=None, __loader__=loader, __builtins__=builtins)
        exec(_code_of(file), vars(main))  # noqa: S102  the user's own script


def _has_modules(path: str) -> bool:
    """Tell whether it is a folder or an archive, of which ``__main__.py`` is run."""
    return pkgutil.get_importer(path) is not None


def _code_of(path: str) -> CodeType:
    """Return the code of a script, which may have been compiled before."""
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
    if isinstance(code, CodeType):
        return code
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)
