"""Image files: one function reads them for `prepare`, `predict`, the page and figures.

It gives 8 bits of grey or RGB, upright, on white where the image is transparent; what it does with each mode, depth,
palette, orientation and frame stands in docs/own_images.md.
"""

import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from attn_cnn_jax.errors import UserError, shortened

FORMATS = ("PNG", "JPEG", "WEBP")  # an MPO of phones and cameras is a JPEG with more images behind it
SUFFIXES = (".png", ".apng", ".webp", ".jpg", ".jpeg", ".jpe", ".jif", ".jfif", ".jfi", ".pjpeg", ".pjp", ".mpo")
# Read from a file that is named, and refused in a folder of class folders.
OTHER_SUFFIXES = (".gif", ".bmp", ".dib", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm", ".jp2", ".tga", ".ico")
UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".jxl", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")
LEFT_BEHIND = (".ds_store", "__macosx", "thumbs.db", ".ipynb_checkpoints", "@eadir")  # by systems, in any folder

GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
SIXTEEN_BITS_OF_GREY_AND_ALPHA = "LA;16B"  # which Pillow gives as RGBA
MOST_REDUCED = 4  # times the limit of Pillow that a JPEG may have which is reduced while it is decoded

DRAWINGS = Path(__file__).parent / "drawings"  # of CIFAR-10's classes, made by this project

FULL_RANGE = (0, 65535)  # of values in files of 16 bits

File = str | Path | io.BytesIO


class Unreadable(UserError):
    """A file that cannot be read as one image; the message is one line that begins with its name."""


def is_left_behind(name: str) -> bool:
    """Whether a file or folder is what every tool passes over in silence."""
    return name.startswith("._") or name.lower() in LEFT_BEHIND


def open_image(
    file: File,
    channels: int = 0,
    formats: Any = FORMATS,
    *,
    size: tuple[int, int] = (0, 0),
    value_range: tuple[int, int] = FULL_RANGE,
    name: str = "",
) -> Image.Image:
    """An image upright, in mode "L" (one channel) or "RGB" (three); Unreadable for what is none, damaged or too large.

    Args:
      file: a path, or an open file, which messages call `name`.
      channels: 1 or 3, of the result; 0 for 1 where the image is grey, else 3.
      formats: those of Pillow that are allowed, without animation; None for all, of animated ones the first frame.
      size: `(H, W)` to which it will be fitted: with it, a JPEG of too many pixels is reduced while it is decoded.
      value_range: the values in files of 16 bits of grey that become 0 and 255; what is beyond is cut.

    Its `info` has `stored`, the kind of file in words, and `range`, the smallest and largest value in it.
    """
    what = f"{name or file} cannot be read as an image"
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # its check comes before a JPEG can be reduced
    try:
        with Image.open(file, formats=formats) as image:
            frames = getattr(image, "n_frames", 1) if formats and image.format != "MPO" else 1
            if frames > 1:
                raise Unreadable(f"{what}: it is animated, {frames} frames")
            if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
                raise Unreadable(f"{what}: it has 32 bits per pixel and channel, allowed are 8 and 16")
            if limit:
                check_pixels(image, size, limit, what)
            return decoded(image, channels, file, value_range)
    except UnidentifiedImageError:
        allowed = "no PNG, JPEG or WEBP file" if formats else "in no format that Pillow knows"
        raise Unreadable(f"{what}: it is {allowed}") from None
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # the readers of Pillow raise many types on damaged files
        raise Unreadable(f"{what}: {getattr(error, 'strerror', None) or shortened(error)}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def check_pixels(image: Any, size: tuple[int, int], limit: int, what: str) -> None:
    """Sets a JPEG of too many pixels to be decoded to 1/2, 1/4 or 1/8; raises Unreadable for what stays too large."""
    count = math.prod(image.size)
    if any(size) and limit < count <= MOST_REDUCED * limit:
        image.draft(None, (2 * max(size), 2 * max(size)))
    if math.prod(image.size) > limit:
        can_reduce = image.format in ("JPEG", "MPO") and not any(size)
        advice = "; set config.dataset.image_size: then a JPEG is reduced while it is read" * can_reduce
        allowed = f"the most that are read are {limit}: make it smaller{advice}"
        raise Unreadable(f"{what}: it has {count} pixels, {allowed}")


def decoded(image: Any, channels: int, file: File, value_range: tuple[int, int]) -> Image.Image:
    """An open image in 8 bits per channel, on white where it is transparent; see `open_image`."""
    arguments, colour = image.tile[0].args if image.tile else "", image.info.get("transparency")
    samples_as = arguments if isinstance(arguments, str) else ""  # how samples are stored in the file, such as `L;4`
    is_grey = image.mode in (*GREY_MODES, "I") or samples_as == SIXTEEN_BITS_OF_GREY_AND_ALPHA
    bits = 16 if image.mode.startswith("I") or "16" in samples_as else 8
    stored = f"{bits} bits of {'grey' if is_grey else 'colour'}"
    if bits == 16 and not image.mode.startswith("I") and value_range != FULL_RANGE:
        raise Unreadable(
            f"{file} cannot be read with config.dataset.range, which is for grey without alpha: it has {stored}"
        )
    upright = ImageOps.exif_transpose(image)
    values = None
    of_one_colour = colour is not None and image.mode not in ("P", "PA")
    is_clear = has_colour(np.asarray(upright), colour, samples_as, file) if of_one_colour else None
    if upright.mode.startswith("I"):  # Pillow would cut all above 255 to white
        wide, (low, high) = np.asarray(upright).astype(np.int64), value_range
        values = int(wide.min()), int(wide.max())
        scaled = ((wide.clip(low, high) - low) * 255 + (high - low) // 2) // (high - low)
        upright = Image.fromarray(scaled.astype(np.uint8))
    if is_clear is not None:
        upright.info.pop("transparency", None)
        upright = upright.convert("RGB" if upright.mode == "RGB" else "L")
        upright.paste("white", mask=Image.fromarray(is_clear))
    elif upright.has_transparency_data:
        upright = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
    result = upright.convert("L" if channels == 1 or (is_grey and not channels) else "RGB")
    ends = np.reshape(result.getextrema(), (-1, 2))
    result.info = {"stored": stored, "range": values or (int(ends[:, 0].min()), int(ends[:, 1].max()))}
    return result


def has_colour(pixels: np.ndarray, colour: Any, samples_as: str, file: File) -> Bool[np.ndarray, "H W"]:
    """Which pixels of a PNG, `(H, W)` or `(H, W, 3)` upright, have its transparent colour, a number or three.

    Pillow gives the colour as the file has it, and the samples, stored as `samples_as`, in 8 bits.
    """
    if pixels.ndim == 3:
        equal = pixels == np.array(colour)
        if samples_as == "RGB;16B":  # Pillow keeps the upper byte of each sample; read the other way round, the lower
            if not isinstance(file, str | Path):
                file.seek(0)
            with Image.open(file) as again:
                again.tile = [tile._replace(args="RGB;16L") for tile in again.tile]
                lower = np.asarray(ImageOps.exif_transpose(again))
            equal = (pixels == np.array(colour) >> 8) & (lower == np.array(colour) & 255)
        return equal.all(axis=2)
    if pixels.dtype == bool:
        return pixels == bool(colour)
    scale = {"L;2": 85, "L;4": 17}.get(samples_as, 1)  # Pillow's 8 bits of a sample of fewer
    return pixels == (colour * scale if colour <= 255 // scale else colour)  # a Pillow that has scaled it already


def as_image(pixels: np.ndarray) -> Image.Image:
    """`(H, W, C)` uint8 in mode "L" (C = 1) or "RGB" (3)."""
    return Image.fromarray(pixels.squeeze(axis=2) if pixels.shape[2] == 1 else pixels)


def fit(image: Image.Image, size: tuple[int, int]) -> UInt8[np.ndarray, "H W C"]:
    """The largest middle part of an "L" or "RGB" image that has the shape of `size`, resized to it."""
    height, width = size
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


class LabelledImage(NamedTuple):
    """pixels: uint8 (H, W, C); name: what the visitor calls it; label: its class, "" if not known."""

    pixels: np.ndarray
    name: str
    label: str = ""
    resized: bool = False  # from a file of another size


def from_file(
    path: str | Path, shape: tuple[int, int, int], value_range: tuple[int, int] = FULL_RANGE
) -> LabelledImage:
    """An image file in any format that Pillow reads, cropped and resized to `shape`, (H, W, C); see `open_image`."""
    height, width, channels = shape
    if not Path(path).exists():
        raise UserError(f"there is no file {path}")
    upright = open_image(path, channels, None, size=(height, width), value_range=value_range)
    return LabelledImage(fit(upright, (height, width)), Path(path).name, resized=upright.size != (width, height))


def drawings(class_names: tuple[str, ...], shape: tuple[int, int, int]) -> list[LabelledImage]:
    """The drawings whose classes a network knows, to look at it without its data set."""
    paths = [path for path in sorted(DRAWINGS.glob("*.png")) if path.stem in class_names]
    return [from_file(path, shape)._replace(name="our drawing", label=path.stem) for path in paths]
