"""Small folders and files of pictures such as users have."""

import struct
import zlib

import numpy as np
from PIL import Image


def random_picture(seed=0, size=(8, 8), mode="RGB"):
    """A picture of random pixels; `size` is (height, width)."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,), "CMYK": (4,)}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (*size, *channels), dtype=np.uint8)
    return Image.fromarray(values, mode=None if mode != "CMYK" else "CMYK")


def write_folder(root, classes=("cat", "dog"), count=4, splits=("",), size=(8, 8), mode="RGB"):
    """A folder of class folders with `count` PNG files each; `splits` are folders above, "" for none."""
    for s, split in enumerate(splits):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                seed = 1000 * s + count * label + n
                random_picture(seed, size, mode).save(folder / f"{name}_{n}.png")
    return root


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(size, data, depth=8, kind=0, extra=b""):
    """A PNG of (width, height) pixels by its header, whatever its compressed `data` are; `extra` chunks before them."""
    header = struct.pack(">IIBBBBB", *size, depth, kind, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + chunks + png_chunk(b"IEND", b"")
