"""Writes files and folders whole or not at all."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a new binary file that takes the place of `path` once the block has ended without an error.

    A kill leaves the old content or the new, never a part. Permissions stay. A link at `path` is replaced, what it
    points to stays. A pipe or a device is written into, and so is what stands in /dev, where links lead to a process's
    own files. OSError about `path` if it cannot be written.
    """
    path = Path(path)
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        with path.open("wb") as file:
            yield file
        return
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """Gives an empty folder that becomes `path` once the block has ended without an error; else nothing is left of it.

    OSError if it cannot be written, or a file or a folder with content is there.
    """
    path = Path(path)
    new = [parent for parent in path.parents if not os.path.lexists(parent)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            folder = Path(beside) / "content"
            folder.mkdir()
            yield folder
            os.rename(folder, path)
    except BaseException:
        for parent in new:  # inner first
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def cache_folder() -> Path | None:
    """Returns this package's folder among the user's caches, which need not exist; None where there is no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn_cnn_jax"
    except RuntimeError:
        return None


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Replaces a file's content, see `replacing`; text is written as UTF-8."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
