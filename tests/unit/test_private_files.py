"""Files that only their user can read, where somebody else may have put something first."""

import os
import stat

import pytest

from kvstore_mpi import private_files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server0.snapshot"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def of_another(monkeypatch):
    """Run as another user than the one who made the files."""
    user = os.geteuid() + 1
    monkeypatch.setattr(private_files.os, "geteuid", lambda: user)
    monkeypatch.setattr(private_files, "ROOT", user)


def replace(path, content, disk=""):
    with private_files.replacing(path) as file:
        if disk:
            other = os.open(disk, os.O_WRONLY)
            os.dup2(other, file.fileno())
            os.close(other)
        file.write(content)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_file_and_a_folder_are_private_whatever_the_mask(tmp_path, mask):
    """And new folders above it are as the user's others."""
    old = os.umask(mask)
    try:
        private_files.make_folder(tmp_path / "new" / "folder")
        replace(tmp_path / "new" / "folder" / "file", b"x")
    finally:
        os.umask(old)
    assert mode(tmp_path / "new" / "folder") == 0o700
    assert mode(tmp_path / "new" / "folder" / "file") == 0o600


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    """Its user may have shared it."""
    tmp_path.chmod(0o750)
    private_files.make_folder(tmp_path)
    assert mode(tmp_path) == 0o750


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    """He could replace what is in it."""
    of_another(monkeypatch)
    with pytest.raises(PermissionError, match=f"belongs to user {tmp_path.stat().st_uid}"):
        private_files.make_folder(tmp_path)


def test_a_link_of_the_own_user_to_a_folder_is_followed(tmp_path):
    """As to a larger disk."""
    (tmp_path / "link").symlink_to(tmp_path)
    private_files.make_folder(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_of_another_user_is_not_followed(tmp_path):
    """It leads to a folder of the own user's, where nothing was to be written."""
    (tmp_path / "link").symlink_to(tmp_path)
    os.chown(tmp_path / "link", 65534, -1, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to user 65534, and not to user 0"):
        private_files.make_folder(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_that_was_given_away_is_refused(tmp_path):
    """The same with the kernel's word."""
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to user 65534, and not to user 0"):
        private_files.make_folder(tmp_path)


def test_a_link_in_the_place_is_not_followed(tmp_path, path):
    """Neither one to a file of the user's nor one to nowhere."""
    for target in ("precious", "nowhere"):
        link = tmp_path / target / "link"
        link.parent.mkdir()
        if target == "precious":
            (tmp_path / "file").write_bytes(b"precious")
        link.symlink_to(tmp_path / "file")
        with pytest.raises(FileExistsError):
            private_files.create(link)
        with pytest.raises(OSError, match="it is a symbolic link"):
            private_files.open_to_read(link)
        replace(link, b"new")
        assert link.read_bytes() == b"new"
        assert not link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_drafts_cannot_be_guessed(path, monkeypatch):
    """Two writers of one file do not meet in one."""
    names = []
    create = private_files.create
    monkeypatch.setattr(private_files, "create", lambda draft: names.append(draft) or create(draft))
    for _ in range(2):
        replace(path, b"x")
    assert len({*names}) == 2
    assert all(len(name.name) >= len(path.name) + 16 for name in names)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(path, tmp_path):
    """And what was there is as it was."""
    replace(path, b"old")
    with pytest.raises(OSError, match="No space left"):
        replace(path, b"half", disk="/dev/full")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


def test_drafts_of_the_dead_are_removed(path, tmp_path):
    """Of this file, and no other."""
    for name in ("server0.snapshot.1.draft", "server0.snapshot.2.draft", "server1.snapshot.1.draft"):
        (tmp_path / name).touch()
    private_files.remove_drafts(path)
    assert [each.name for each in tmp_path.iterdir()] == ["server1.snapshot.1.draft"]


def test_only_an_ordinary_file_of_ones_own_is_read(path, tmp_path, monkeypatch):
    """To open a named pipe would wait for who writes to it."""
    os.mkfifo(path)
    for other in (path, tmp_path):
        with pytest.raises(OSError, match="it is not an ordinary file"):
            private_files.open_to_read(other)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        private_files.open_to_read(path)
    replace(path, b"x")
    with private_files.open_to_read(path) as found:
        assert found.read() == b"x"
    of_another(monkeypatch)
    with pytest.raises(PermissionError, match="belongs to user"):
        private_files.open_to_read(path)
