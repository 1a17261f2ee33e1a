"""Writes the pages of the shipped networks that the front page of the site shows: `python docs/live_pages.py DIR`.

Images come without a download: digits from scikit-learn, and for CIFAR-10 the drawings of the package. Below the
latter, beside the site's own pages, is what heads of DINOv2 make of a photograph.
"""

import base64
import io
import sys
from pathlib import Path

from PIL import Image

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data.image_files import DRAWINGS

RUNS = {"page.html": "digits", "cifar10.html": "cifar10"}
BEFORE = '<section id="theorem"'  # of the page
ELSEWHERE = """<section id="elsewhere" class="below" aria-labelledby="elsewhere-title">
  <h2 id="elsewhere-title">Networks that nobody asked for it learn such heads</h2>
  <p>DINOv2 was trained on photographs, without labels and without a convolution beyond its patches. Four of its heads
    move an image by one patch, one for each direction: <a href="dinov2.html">how convolutional is DINOv2?</a></p>
  <img src="data:image/webp;base64,{}" width="100%"
    alt="A photograph, and the same as four heads hand it on: moved by a patch down, right, left and up">
</section>
"""


def write_pages(folder: Path) -> list[Path]:
    """Writes both pages into a folder and returns their files."""
    for name, run in RUNS.items():
        options = ["--image", *map(str, sorted(DRAWINGS.glob("*.png")))] if run == "cifar10" else []
        if main(["page", f"pretrained:{run}", f"--out={folder / name}", *options]) != 0:
            raise SystemExit(f"the page of {run} could not be written")
    file, page = io.BytesIO(), folder / "cifar10.html"
    Image.open(Path(__file__).parent / "dinov2_shifts.png").convert("RGB").save(file, "WEBP", quality=75)
    section = ELSEWHERE.format(base64.b64encode(file.getvalue()).decode("ascii"))
    page.write_text(page.read_text("utf-8").replace(BEFORE, section + BEFORE, 1), "utf-8")
    return [folder / name for name in RUNS]


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
