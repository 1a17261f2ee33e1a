"""Arrays beside the prepared data set: to decode 60,000 PNGs takes seconds, to read what came of it less than one.

FILE holds the decoded pictures; INDEX, of a set that is streamed, where each lies, see data/stored.py. A file names
what it was made from by a stamp of everything else in the folder. One that cannot be read or that was made from
something else is no cache: the data set is then decoded again.
"""

import contextlib
import hashlib
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

FILE, INDEX = "arrays.npz", "index.npz"


def stamp(folder: Path) -> str:
    """Returns a hash of the names, sizes and modification times of a prepared data set's files.

    Raises:
      OSError: the folder cannot be read.
    """
    files = sorted(path for path in folder.iterdir() if not path.name.startswith((FILE, INDEX)))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def read(folder: Path, made_from: str, name: str = FILE) -> dict[str, np.ndarray] | None:
    """Returns the arrays by name, or None where no readable cache was made from the files of that stamp."""
    try:
        with (folder / name).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if str(file["fingerprint"]) == made_from:
                return {key: file[key] for key in file.files if key != "fingerprint"}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        pass
    return None


def write(folder: Path, arrays: dict[str, np.ndarray], made_from: str, name: str = FILE) -> None:
    """Writes the arrays, unless the folder is read-only, the disk full, or the files changed.

    Args:
      folder: of the prepared data set; its lock must be held.
      arrays: by name, such as `train_images`.
      made_from: the stamp from before the arrays were read.
      name: FILE or INDEX.
    """
    temporary = folder / f"{name}.incomplete"
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        try:
            if stamp(folder) == made_from:
                with temporary.open("xb") as file:  # x follows no link
                    np.savez(file, fingerprint=np.array(made_from), **arrays)  # pyright: ignore[reportArgumentType]
                os.replace(temporary, folder / name)
        finally:
            temporary.unlink(missing_ok=True)
