"""Writes files and folders whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a new binary file that takes the place of `path` once the block has ended without an error.

    A kill leaves the old content or the new, never a part. The new file has a name that nobody can guess, and links
    are not followed: a link at `path` is replaced, what it points to stays. Permissions are those of a new file.

    Raises:
      OSError: about `path`, if it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # "x": fails where something has this name already, a link included
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """Gives an empty folder that becomes `path` once the block has ended without an error; else nothing is left of it.

    Raises:
      OSError: if it cannot be written, or a file or a folder with content is there.
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


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Replaces a file's content, see `replacing`; text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as file:
        file.write(data)


def read(path: Path | str) -> bytes:
    """Returns the content of a file; OSError for what is none, such as a pipe, which might never be written to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(descriptor, "rb") as file:
        return file.read()


def append(path: Path | str, data: bytes) -> None:
    """Adds to a file that is there, in a single write where the system allows; follows no link.

    Raises:
      OSError: about `path`, if it cannot be written.
    """
    with named(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            while data:  # a write that a full disk cuts short is followed by one that says why
                data = data[os.write(file, data) :]
        finally:
            os.close(file)


def flush(path: Path | str) -> None:
    """Waits until the content of a file is on the disk, if there is such a file; OSError if it cannot get there."""
    with named(path), contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


@contextlib.contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Gives the path to an OSError that comes without, as those of writing do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_folder(path: Path | str) -> bool:
    """Returns whether there is a folder; OSError where the system cannot say, which `Path.is_dir` takes for no."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
