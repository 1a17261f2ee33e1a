"""Files are written whole or not at all, and never through a link that somebody has put in the way."""

import errno
import os

import pytest

from attn_cnn_jax.files import append, flush, new_folder, replacing, write_atomically


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    with pytest.raises(UnicodeEncodeError), replacing(path) as file:
        file.write(b"half" + "\ud800".encode())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_new_content_is_not_there_before_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_links_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "file"
    path.symlink_to(victim)
    write_atomically(path, "new")
    assert not path.is_symlink()
    assert (path.read_text(), victim.read_text()) == ("new", "mine")


def test_the_name_on_the_way_cannot_be_guessed_and_a_file_of_that_name_is_not_touched(tmp_path, monkeypatch):
    names = []
    for _ in range(2):
        with replacing(tmp_path / "file"):
            names += [name for name in os.listdir(tmp_path) if name != "file"]
    assert len(set(names)) == 2
    monkeypatch.setattr("secrets.token_hex", lambda count: "guessed")
    victim = tmp_path / "victim"
    (tmp_path / ".guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", "new")
    assert not victim.exists()


def test_permissions_are_those_of_a_new_file(tmp_path):
    (tmp_path / "usual").write_text("")
    write_atomically(tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    for path in (tmp_path / "nowhere/file", tmp_path):
        with pytest.raises(OSError, match=r"file|.") as error:
            write_atomically(path, "")
        assert error.value.filename == str(path)


def test_an_appended_line_follows_what_is_there_and_no_link(tmp_path):
    path, victim = tmp_path / "file", tmp_path / "victim"
    path.write_bytes(b"one\n")
    append(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    victim.write_bytes(b"mine")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        append(tmp_path / "link", b"two\n")
    assert victim.read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "none", b"")


def test_a_full_disk_is_said_with_the_path(tmp_path, monkeypatch):
    """After what fits is written; the system's own error has no path."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    write, answers = os.write, [2]

    def full(file, data):
        if not answers:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: answers.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        append(path, b"line\n")
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"li"

    def fail(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    for call in (lambda: flush(path), lambda: write_atomically(path, "new")):
        with pytest.raises(OSError, match="Input/output error") as error:
            call()
        assert error.value.filename == str(path)
    assert path.read_bytes() == b"li"
    flush(tmp_path / "none")


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    place = tmp_path / "deep/folder"
    with new_folder(place) as folder:
        (folder / "file").write_text("all of it")
        assert not place.exists()
    assert (place / "file").read_text() == "all of it"
    with pytest.raises(OSError, match="not empty"), new_folder(place) as folder:
        (folder / "file").write_text("another")
    assert (place / "file").read_text() == "all of it"
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "new" / "newer" / "other") as folder:
        (folder / "file").write_text(str(1 // 0))
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in place.parent.iterdir()] == ["folder"]
