"""Writes files whole or not at all."""

import contextlib
import os
import secrets
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
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)
        raise


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Replaces a file's content, see `replacing`; text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as file:
        file.write(data)
