"""A copy of the tree in which a mutant can be planted; the working tree is never touched."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mutants.table import Mutant

ROOT = Path(__file__).resolve().parents[2]

INSTALLED_AS = {"launcher": "mpilaunch"}
"""Folders of the repository that are packages of another name once installed (``setup.py``)."""


class Tree:
    """One copy of what git knows, and of what it would add."""

    def __init__(self, folder: Path) -> None:
        """Copy the tree to an empty folder."""
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        for name, installed in INSTALLED_AS.items():
            (folder / installed).symlink_to(name, target_is_directory=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """What Python needs in its environment to import the copy, also in processes of a job."""
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Plant a mutant for as long as the context lasts.

        Raises:
            LookupError: It is stale.
        """
        path = self.folder / mutant.path
        source = path.read_text(encoding="utf-8")
        self._write(path, mutant.planted(source))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        """Write a module; what was compiled of it is dropped, for it may be of the same second and size."""
        path.write_text(source, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
