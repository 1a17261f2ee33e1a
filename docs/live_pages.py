"""Writes the pages of the shipped networks that the front page of the site shows: `python docs/live_pages.py DIR`.

Pictures come without a download: digits from scikit-learn, and for CIFAR-10 four drawings, made here.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from attn_cnn_jax.cli.main import main

SIZE = 256  # pixels of a drawing, which the page makes smaller
DARK, LIGHT, RED = (25, 25, 25), (235, 235, 235), (195, 35, 35)


def background(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    """Returns a sky between two colours."""
    share = np.linspace(0, 1, SIZE)[:, None, None]
    return Image.fromarray(np.broadcast_to(top + share * np.subtract(bottom, top), (SIZE, SIZE, 3)).astype(np.uint8))


def airplane() -> Image.Image:
    image = background((110, 160, 215), (190, 215, 240))
    draw = ImageDraw.Draw(image)
    draw.ellipse((30, 112, 222, 146), LIGHT)
    draw.polygon([(120, 128), (60, 200), (88, 200), (160, 130)], (200, 206, 214))
    draw.polygon([(120, 120), (80, 70), (100, 70), (155, 122)], (180, 188, 198))
    draw.polygon([(40, 125), (18, 80), (38, 80), (70, 122)], RED)
    return image


def ship() -> Image.Image:
    image = background((150, 195, 230), (215, 230, 240))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 170, SIZE, SIZE), (35, 80, 130))
    draw.polygon([(25, 150), (235, 150), (205, 190), (50, 190)], (60, 65, 75))
    draw.rectangle((25, 150, 235, 158), RED)
    draw.rectangle((80, 112, 190, 150), LIGHT)
    draw.rectangle((110, 85, 170, 112), LIGHT)
    draw.rectangle((128, 60, 150, 85), RED)
    return image


def automobile() -> Image.Image:
    image = background((190, 205, 220), (215, 220, 225))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 180, SIZE, SIZE), (120, 120, 122))
    draw.rounded_rectangle((15, 125, 240, 188), 20, RED)
    draw.polygon([(65, 128), (95, 85), (165, 85), (200, 128)], RED)
    for window in ([(80, 125), (102, 93), (125, 93), (125, 125)], [(132, 125), (132, 93), (160, 93), (185, 125)]):
        draw.polygon(window, (50, 60, 75))
    for x in (65, 190):
        wheel(draw, x, 184, 24)
    return image


def truck() -> Image.Image:
    image = background((175, 200, 225), (205, 215, 225))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 190, SIZE, SIZE), (110, 110, 112))
    draw.rectangle((20, 80, 165, 185), LIGHT)
    draw.polygon([(170, 110), (215, 110), (238, 145), (238, 185), (170, 185)], RED)
    draw.polygon([(180, 118), (210, 118), (226, 145), (180, 145)], (60, 80, 100))
    for x in (60, 130, 205):
        wheel(draw, x, 190, 20)
    return image


def wheel(draw: ImageDraw.ImageDraw, x: int, y: int, radius: int) -> None:
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), DARK)
    draw.ellipse((x - radius // 2, y - radius // 2, x + radius // 2, y + radius // 2), (165, 165, 165))


DRAWINGS = (airplane, ship, automobile, truck)


def write_pages(folder: Path) -> list[Path]:
    """Writes both pages into a folder and returns their files."""
    pages = [folder / "page.html", folder / "cifar10.html"]
    with tempfile.TemporaryDirectory() as drawn:
        files = [Path(drawn) / f"{draw.__name__}.png" for draw in DRAWINGS]
        for draw, file in zip(DRAWINGS, files, strict=True):
            draw().filter(ImageFilter.GaussianBlur(2)).save(file)
        commands = [["pretrained:digits"], ["pretrained:cifar10", "--image", *map(str, files)]]
        for page, (run, *options) in zip(pages, commands, strict=True):
            if main(["page", run, f"--out={page}", *options]) != 0:
                raise SystemExit(f"the page of {run} could not be written")
    return pages


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
