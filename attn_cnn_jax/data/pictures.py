"""Picture files: opened, turned upright, brought to 8 bits of grey or RGB, and fitted to a size."""

import contextlib
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from attn_cnn_jax.errors import UserError, shortened

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
WIDE_MODES = ("I", "F")  # 32 bits per pixel: what is black and what is white, nobody says
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values for pictures that lie on their side


class Unreadable(UserError):
    """A file that cannot be read as one picture; the message is one line that begins with its path."""


@contextlib.contextmanager
def opened(path: str | Path, formats: tuple[str, ...] | None = FORMATS) -> Iterator[Any]:
    """Opens a picture file; its header is read, its pixels are not.

    Args:
      path: the file.
      formats: those of Pillow that are allowed, without animation; None for all, of animated ones the first frame.

    Raises:
      Unreadable: it is no picture, is animated, or unpacks to more pixels than Pillow takes for harmless; here, or in
        the block for whatever Pillow raises there.
    """
    what = f"{path} cannot be read as a picture"
    try:
        status = Path(path).stat()
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode):
            raise Unreadable(f"{what}: it is no file")  # to open it would wait for ever
        if status.st_size == 0:
            raise Unreadable(f"{what}: it is empty, 0 bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                frames = getattr(image, "n_frames", 1)
                if formats and frames > 1:
                    raise Unreadable(f"{what}: it is animated, {frames} frames")
                if image.mode in WIDE_MODES:
                    raise Unreadable(f"{what}: it has 32 bits per pixel and channel, allowed are 8 and 16")
                yield image
    except (Unreadable, MemoryError):
        raise
    except UnidentifiedImageError:
        allowed = f"no {', '.join(formats[:-1])} or {formats[-1]} file" if formats else "in no format that Pillow knows"
        raise Unreadable(f"{what}: it is {allowed}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unreadable(f"{what}: {shortened(error)}") from None
    except OSError as error:
        raise Unreadable(f"{what}: {error.strerror or shortened(error)}") from error
    except Exception as error:  # the readers of Pillow raise many types on damaged files
        raise Unreadable(f"{what}: {shortened(error)}") from error


def read_header(path: str | Path) -> tuple[int, int, int]:
    """Returns height and width of a picture as it stands upright, and its channels: 1 if it is grey, else 3."""
    with opened(path) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return height, width, 1 if image.mode in GREY_MODES else 3


def read_picture(path: str | Path, channels: int, formats: tuple[str, ...] | None = FORMATS) -> Image.Image:
    """Returns a picture upright, in mode "L" (`channels` 1) or "RGB" (3); raises Unreadable.

    16 bits are scaled to 8. Transparent parts become white. CMYK is converted as Pillow does, without a colour profile.
    """
    with opened(path, formats) as image:
        image.load()
        return to_channels(ImageOps.exif_transpose(image), channels)


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Returns a picture in mode "L" (`channels` 1) or "RGB" (3), on white where it is transparent."""
    if image.mode.startswith("I;16"):  # Pillow would cut all above 255 to white
        sixteen = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((sixteen * 255 + 32767) // 65535).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("L" if channels == 1 else "RGB")


def fit(image: Image.Image, size: tuple[int, int]) -> UInt8[np.ndarray, "H W C"]:
    """Returns the largest middle part of a picture that has the shape of `size`, resized to it.

    Args:
      image: of mode "L" or "RGB".
      size: `(H, W)` in pixels.
    """
    height, width = size
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
