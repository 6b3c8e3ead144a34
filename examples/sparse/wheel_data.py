"""Real data that comes within Python packages, unpacked into a cache folder when an example needs it.

Only the wheel is downloaded, by pip and thus from the index and through the proxy that pip is set to; the
package is not installed. GroupLens does not allow MovieLens to be passed on: no repository may have it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

Wheel = tuple[str, str]
"""A package and its version: another one may have other data, and then the figures differ."""

MOVIELENS = ("recbole", "1.2.1")
TEXTS = ("gensim", "4.4.0")
GRAPHS = ("pykeen", "1.11.1")


def folder_of(wheel: Wheel) -> Path:
    """Return where the files of a wheel are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvstore_mpi-examples" / "-".join(wheel)


def unpack(wheel: Wheel, *names: str) -> list[Path]:
    """Return the paths of some files of a wheel, which is downloaded if one of them is not there yet.

    The workers of a job call this at the same time: one of them downloads, the others wait for it.

    Raises:
        SystemExit: pip cannot get the wheel, or it has no such file.
    """
    folder = folder_of(wheel)
    paths = [folder / name for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(path.exists() for path in paths):
            _download(wheel, names, folder)
    return paths


def _download(wheel: Wheel, names: tuple[str, ...], folder: Path) -> None:
    requirement = "==".join(wheel)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary", ":all:", "--dest", place, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own words
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise SystemExit(
                f"no data: pip cannot download {requirement}: {reason}. Where there is a network, run 'pip"
                f" download --no-deps {requirement}'; unpack {', '.join(names)} from it into {folder}"
            )
        [archive] = Path(place).iterdir()
        with zipfile.ZipFile(archive) as opened:
            missing = {*names} - {*opened.namelist()}
            if missing:
                raise SystemExit(f"no data: {archive.name} has no file {', '.join(sorted(missing))}")
            for name in names:
                _extract(opened, name, Path(place), folder)


def _extract(opened: zipfile.ZipFile, name: str, place: Path, folder: Path) -> None:
    """Put a file where it belongs by one renaming: a file that is there is complete."""
    opened.extract(name, place)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).replace(folder / name)
