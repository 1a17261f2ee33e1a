"""A run directory in pieces that fit through a door of 16 MiB, and back: to bring a run home, or to another machine.

    python -m benchmarks.pieces pack RUN DIR
    python -m benchmarks.pieces unpack DIR RUN

All files of the run travel, byte for byte: training continues from the unpacked run as from the one packed.
"""

import argparse
import hashlib
import io
import sys
import tarfile
from pathlib import Path

from attn_cnn_jax.errors import UserError, exits_with_messages
from attn_cnn_jax.files import new_folder

PIECE = 15_000_000  # bytes


def pack(run: Path, folder: Path, piece: int = PIECE) -> list[Path]:
    """Writes a run as `piece_000` and so on into a new folder, with their checksums in SHA256SUMS."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz", preset=1) as tar:
        tar.add(run, ".", filter=lambda member: None if member.name.endswith("/.lock") else member)
    data = archive.getvalue()
    pieces = {f"piece_{n:03}": data[at : at + piece] for n, at in enumerate(range(0, len(data), piece))}
    with new_folder(folder) as new:
        for name, part in pieces.items():
            (new / name).write_bytes(part)
        lines = [f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in pieces.items()]
        (new / "SHA256SUMS").write_text("".join(lines))
    return [folder / name for name in pieces]


def unpack(folder: Path, run: Path) -> None:
    """Writes the run that `pack` took into a new folder; UserError where a piece is missing or another."""
    parts = []
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        parts.append((folder / name).read_bytes())
        if hashlib.sha256(parts[-1]).hexdigest() != digest:
            raise UserError(f"{folder / name} is not the piece that was packed: bring it again")
    with new_folder(run) as new, tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as tar:
        tar.extractall(new, filter="data")


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(argv)
    {"pack": pack, "unpack": unpack}[options.what](options.source, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
