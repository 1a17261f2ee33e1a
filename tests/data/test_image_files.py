"""How an image file is read: every mode, depth, palette, transparency, orientation and frame, against its samples."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.data.image_files import Unreadable, fit, open_image
from tests.support import own_pictures
from tests.support.own_pictures import png_chunk, random_picture


def png(depth, kind, row, clear=b"", palette=b""):
    """A PNG of one row, of samples that Pillow does not write."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    extra = b"".join(png_chunk(name, data) for name, data in ((b"PLTE", palette), (b"tRNS", clear)) if data)
    return own_pictures.png((len(row) * 8 // depth // channels, 1), b"\0" + row, depth, kind, extra)


def scaled(samples, clear, top):
    return [255 if sample == clear else round(sample * 255 / top) for sample in samples]


def shorts(*values):
    return struct.pack(f">{len(values)}H", *values)


DEEP = [0, 1000, 40000, 65535]
COLOURS = [(40000, 1000, 300), (40001, 1000, 300), (0, 0, 0), (65535, 0, 0)]
UPPER = [x // 257 for colour in COLOURS[1:] for x in colour]
WHITE = [255, 255, 255]
NINE = bytes([9, 8, 7, 1, 2, 3])
# The file, its channels, the values that are right to one.
PNGS = {
    "1 bit": (png(1, 0, b"\x0f", shorts(1)), 1, [0] * 4 + [255] * 4),
    "1 bit, black is clear": (png(1, 0, b"\x0f", shorts(0)), 1, [255] * 8),
    "2 bits": (png(2, 0, b"\x1b", shorts(1)), 1, scaled([0, 1, 2, 3], 1, 3)),
    "2 bits, opaque": (png(2, 0, b"\x1b"), 1, scaled([0, 1, 2, 3], None, 3)),
    "4 bits": (png(4, 0, b"\x05\xaf", shorts(5)), 1, scaled([0, 5, 10, 15], 5, 15)),
    "4 bits, black is clear": (png(4, 0, b"\x05\xaf", shorts(0)), 1, scaled([0, 5, 10, 15], 0, 15)),
    "8 bits": (png(8, 0, bytes([0, 5, 170, 255]), shorts(5)), 1, scaled([0, 5, 170, 255], 5, 255)),
    "16 bits": (png(16, 0, shorts(*DEEP), shorts(1000)), 1, scaled(DEEP, 1000, 65535)),
    "16 bits, as RGB": (png(16, 0, shorts(*DEEP), shorts(1000)), 3, np.repeat(scaled(DEEP, 1000, 65535), 3)),
    "RGB": (png(8, 2, bytes([9, 8, 7, 9, 8, 6]), shorts(9, 8, 7)), 3, [*WHITE, 9, 8, 6]),
    "RGB of 16 bits": (png(16, 2, shorts(*np.ravel(COLOURS)), shorts(*COLOURS[0])), 3, [*WHITE, *UPPER]),
    "palette with a clear entry": (png(8, 3, b"\0\1", b"\xff\0", NINE), 3, [9, 8, 7, *WHITE]),
    "palette half clear": (png(8, 3, b"\0\1", b"\x80\xff", bytes(3) + NINE[3:]), 3, [127, 127, 127, 1, 2, 3]),
    "grey and alpha of 16 bits": (png(16, 4, shorts(25700, 65535, 25700, 0)), 1, [100, 255]),
    "RGBA of 16 bits": (png(16, 6, shorts(25700, 0, 65535, 65535, 1, 2, 3, 0)), 3, [100, 0, 255, *WHITE]),
}


def of_format(kind, image, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


WIDE = np.array([[0, 257, 32896], [128, 129, 65535]], np.uint16)
# Formats that are read from a file that is named.
OTHERS = {
    "P5 of 16 bits": (of_format("PPM", Image.fromarray(WIDE)), 1, [0, 1, 128, 0, 1, 255]),
    "P5 of 10 bits": (b"P5\n2 1\n1023\n" + shorts(0, 1023), 1, [0, 255]),
    "P2 of 16 bits": (b"P2\n3 1\n65535\n0 25700 65535\n", 1, [0, 100, 255]),
    "P6 of 16 bits": (b"P6\n1 1\n65535\n" + shorts(0, 25700, 65535), 3, [0, 100, 255]),
    "P4": (b"P4\n8 1\n\x0f", 1, [255] * 4 + [0] * 4),
    "TIFF of 16 bits": (of_format("TIFF", Image.fromarray(WIDE)), 1, [0, 1, 128, 0, 1, 255]),
}


@pytest.mark.parametrize("name", PNGS | OTHERS)
def test_a_file_of(tmp_path, name):
    data, channels, expected = (PNGS | OTHERS)[name]
    (tmp_path / "a").write_bytes(data)
    for file in (tmp_path / "a", io.BytesIO(data)):
        found = np.asarray(open_image(file, channels, None)).reshape(-1)
        assert np.abs(found.astype(int) - expected).max() <= 1
    if name in PNGS:
        assert (open_image(tmp_path / "a").mode == "L") == (channels == 1 or name.endswith("as RGB"))


def test_modes_and_formats(tmp_path):
    for suffix, modes in {"png": ("L", "LA", "RGB", "RGBA"), "jpg": ("L", "RGB", "CMYK"), "webp": ("RGB",)}.items():
        for mode in modes:
            random_picture(0, (6, 4), mode).save(tmp_path / f"a.{suffix}")
            found = open_image(tmp_path / f"a.{suffix}")
            assert (found.size, found.mode) == ((4, 6), "L" if mode in ("L", "LA") else "RGB")
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(Unreadable, match=r"a.tif cannot be read as an image: it has 32 bits"):
        open_image(tmp_path / "a.tif", 1, None)


def test_an_image_is_turned_upright(tmp_path):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    upright = [pixels, pixels[:, ::-1], pixels[::-1, ::-1], pixels[::-1]]
    sideways = [pixels.T, np.rot90(pixels, -1), pixels[::-1, ::-1].T, np.rot90(pixels)]
    exif = Image.Exif()
    for orientation, turned in enumerate(upright + sideways, start=1):
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        np.testing.assert_array_equal(open_image(tmp_path / "a.png"), turned)


def test_of_a_photograph_with_a_second_image_the_first_is_read(tmp_path):
    first = random_picture(0, (8, 8))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[random_picture(1, (4, 4))])
    first.save(tmp_path / "b.jpg", format="JPEG")
    np.testing.assert_array_equal(open_image(tmp_path / "a.jpg"), open_image(tmp_path / "b.jpg"))


def test_a_photograph_beyond_the_limit_is_reduced_while_it_is_read_where_a_size_is_set(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    Image.new("L", (160, 120), 128).save(tmp_path / "a.jpg")
    Image.new("L", (160, 120), 128).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.jpg", 1, size=(16, 16)).size == (80, 60)
    for path, size, advice in (("a.jpg", (0, 0), "set config.dataset.image_size"), ("a.png", (16, 16), "smaller")):
        with pytest.raises(Unreadable, match=rf"19200 pixels, the most that are read are 10000: make.*{advice}"):
            open_image(tmp_path / path, 1, size=size)
    assert Image.MAX_IMAGE_PIXELS == 10_000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4_000)
    with pytest.raises(Unreadable, match="19200 pixels"):  # a bomb even for a JPEG
        open_image(tmp_path / "a.jpg", 1, size=(16, 16))


def test_the_middle_is_cropped_and_resized():
    pixels = np.zeros((4, 12), np.uint8)
    pixels[:, 4:8] = 200
    assert fit(Image.fromarray(pixels), (4, 4)).tolist() == [[[200]] * 4] * 4
    pixels[:] = 200
    assert fit(Image.fromarray(pixels), (2, 2)).tolist() == [[[200], [200]], [[200], [200]]]
