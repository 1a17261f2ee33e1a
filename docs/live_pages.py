"""Writes the pages of the shipped networks that the front page of the site shows: `python docs/live_pages.py DIR`.

Images come without a download: digits from scikit-learn, and for CIFAR-10 the drawings of the package.
"""

import sys
from pathlib import Path

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data.image_files import DRAWINGS

RUNS = {"page.html": "digits", "cifar10.html": "cifar10"}


def write_pages(folder: Path) -> list[Path]:
    """Writes both pages into a folder and returns their files."""
    for name, run in RUNS.items():
        options = ["--image", *map(str, sorted(DRAWINGS.glob("*.png")))] if run == "cifar10" else []
        if main(["page", f"pretrained:{run}", f"--out={folder / name}", *options]) != 0:
            raise SystemExit(f"the page of {run} could not be written")
    return [folder / name for name in RUNS]


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
