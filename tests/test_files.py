"""Files and folders are written whole or not at all."""

import os

import pytest

from attn_cnn_jax.files import new_folder, replacing, write_atomically


def test_a_file_is_replaced_at_once_or_stays_and_an_error_names_it(tmp_path):
    """A link is replaced, and what it points to stays."""
    path, link = tmp_path / "file", tmp_path / "link"
    write_atomically(path, "old é")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:  # noqa: PT012
        file.write(b"half of the new")
        raise ZeroDivisionError
    assert path.read_text(encoding="utf-8") == "old é"
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert (path.read_text(encoding="utf-8"), link.read_bytes()) == ("old é", b"new")
    assert {*os.listdir(tmp_path)} == {"file", "link"}
    with pytest.raises(OSError) as error:  # noqa: PT011
        write_atomically(tmp_path / "no/file", "")
    assert str(error.value.filename) == str(tmp_path / "no/file")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "a/b") as folder:  # noqa: PT012
        (folder / "x").write_text("x")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "a/b") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "a/b").exists()
    assert os.listdir(tmp_path / "a") == ["b"]
    with pytest.raises(OSError), new_folder(tmp_path / "a/b"):  # noqa: PT011
        pass
    assert (tmp_path / "a/b/x").read_text() == "x"
