"""Images of the user's own that cannot be trained on: a line or two that name the file; fast, nothing is trained."""

import io
import os
import struct
import zlib

import numpy as np
import pytest

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Source
from attn_cnn_jax.errors import UserError
from tests.support.own_pictures import random_picture, write_folder


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width, height):
    """The header of a PNG file that claims a size, with too little in it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"0" * 99)) + chunk(b"IEND", b"")


def encoded(kind, **options):
    file = io.BytesIO()
    random_picture(0, (40, 40)).save(file, kind, **options)
    return file.getvalue()


def animated(path, kind):
    frames = [random_picture(n) for n in range(3)]
    frames[0].save(path, kind, save_all=True, append_images=frames[1:])


def flipped(data, place):
    data = bytearray(data)
    data[place] ^= 0xFF
    return bytes(data)


def text_bomb():
    """A PNG whose comment unpacks to 100 MB."""
    whole = encoded("PNG")
    return whole[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20), 9)) + whole[33:]


# A file cat/bad.png or so beside good ones, and what is said of it.
FILES = {
    "text": ("bad.png", b"Dear reader", "no PNG, JPEG or WEBP file"),
    "empty": ("bad.png", b"", "no PNG, JPEG or WEBP file"),
    "GIF named png": ("bad.png", encoded("GIF"), "no PNG, JPEG or WEBP file"),
    "half a PNG": ("bad.png", encoded("PNG")[:800], "cannot be read as an image"),
    "half a JPEG": ("bad.jpg", encoded("JPEG")[:900], "truncated"),
    "only the signature": ("bad.png", encoded("PNG")[:8], "cannot be read as an image"),
    "a flipped byte": ("bad.png", flipped(encoded("PNG"), 60), "cannot be read as an image"),
    "a flipped size": ("bad.png", flipped(encoded("PNG"), 17), "cannot be read as an image"),
    "a bomb": ("bad.png", png_of_size(50_000, 50_000), "2500000000 pixels"),
    "a smaller bomb": ("bad.png", png_of_size(10_000, 10_000), "100000000 pixels"),
    "no pixels": ("bad.png", png_of_size(0, 8), "cannot be read as an image"),
    "a bomb of text": ("bad.png", text_bomb(), "cannot be read as an image"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is(tmp_path, name):
    file, data, message = FILES[name]
    own = write_folder(tmp_path / "own", count=12, size=(40, 40))
    (own / "cat" / file).write_bytes(data)
    refused(own, message, own / "cat" / file, "config.dataset.skip_unreadable=True")
    skipping = Source("folder", str(own), skip_unreadable=True)
    data = sources.load(skipping, tmp_path / "data")
    assert len(data.train.labels) + len(data.test.labels) == 24


def refused(path, message, *names, kind="folder", **options):
    """Loading says one or two lines, with the message and the names of files in them; nothing is left behind."""
    data_dir = path.parent / "data"
    with pytest.raises(UserError) as caught:
        sources.load(Source(kind, str(path), **options), data_dir)
    said = str(caught.value)
    assert message in said
    assert all(str(name) in said for name in names), said
    assert len(said.splitlines()) <= 2
    assert said.isprintable() or "\n" in said
    assert not [file for file in data_dir.rglob("*") if file.suffix != ".lock" and file.is_file()]


def remove(folder):
    for path in folder.iterdir():
        path.unlink()


def drop(folder):
    remove(folder)
    folder.rmdir()


def link_to_itself(path):
    path.symlink_to(path.name)


def move_all(own, name="cat", inner="train"):
    """The images of a class into a folder of the class."""
    files = list((own / name).glob("*.png"))
    (own / name / inner).mkdir()
    for file in files:
        file.rename(own / name / inner / file.name)


def put_into(own, name):
    """All folders into one."""
    inside = list(own.iterdir())
    (own / name).mkdir()
    for folder in inside:
        folder.rename(own / name / folder.name)


def make_splits(own, *names):
    """The classes become splits of both classes."""
    drop(own / "cat")
    drop(own / "dog")
    write_folder(own, splits=names)


def rename(own, *names):
    """Cat and dog get other names; more names are more classes."""
    write_folder(own, classes=names[2:])
    for old, new in zip(("cat", "dog"), names, strict=False):
        (own / old).rename(own / new)


def save(path, seed=0, size=(8, 8)):
    random_picture(seed, size).save(path)


def leave_one(folder):
    for path in list(folder.iterdir())[1:]:
        path.unlink()


# What is done to own/cat and own/dog, four pictures each, and what is said of which path.
FOLDERS = {
    "an empty class": (lambda own: remove(own / "cat"), "holds no images", "cat"),
    "one class": (lambda own: drop(own / "cat"), "one class, 'dog'", ""),
    "no classes": (lambda own: [drop(own / "cat"), drop(own / "dog")], "holds no folders", ""),
    "a picture beside the classes": (lambda own: save(own / "x.png"), "lies in no class folder", "x.png"),
    "a folder in a class": (lambda own: move_all(own, "cat", "inner"), "the classes are the folders in", "cat/inner"),
    "one picture in a class": (lambda own: leave_one(own / "cat"), "one image of the class 'cat'", ""),
    "a folder named as a picture": (lambda own: (own / "cat" / "x.png").mkdir(), "Is a directory", "cat/x.png"),
    "a link to itself": (lambda own: link_to_itself(own / "cat" / "x.png"), "symbolic links", "cat/x.png"),
    "a class that is a link to itself": (lambda own: link_to_itself(own / "emu"), "leads nowhere", "emu"),
    "a link to nothing": (lambda own: (own / "cat" / "x.png").symlink_to("gone.png"), "No such file", "cat/x.png"),
    "a class that leads up again": (lambda own: (own / "emu").symlink_to(own), "is a folder in a class", "emu/"),
    "a pipe": (lambda own: os.mkfifo(own / "cat" / "x.png"), "is no file", "cat/x.png"),
    "a GIF": (lambda own: save(own / "cat" / "x.gif"), ".gif is not", "cat/x.gif"),
    "an animated PNG": (lambda own: animated(own / "cat" / "x.png", "PNG"), "animated, 3 frames", "cat/x.png"),
    "an animated WebP": (lambda own: animated(own / "cat" / "x.webp", "WEBP"), "animated, 3 frames", "cat/x.webp"),
    "two sizes": (lambda own: save(own / "cat" / "x.png", 0, (9, 8)), "images of 2 sizes", "cat/x.png"),
    "a class with a blank": (lambda own: (own / "cat").rename(own / "cat "), "begins or ends with a blank", "'cat '"),
    "a class with a line break": (lambda own: (own / "cat").rename(own / "c\nat"), "be printed", "'c\\nat'"),
    "a name with a line break": (lambda own: save(own / "cat" / "\n.png"), "cannot be printed", "\\n.png"),
    "a class that is not UTF-8": (lambda own: (own / "cat").rename(own / "c\udcffat"), "be printed", "c\\udcffat"),
    "test without train": (lambda own: make_splits(own, "Test", "val"), "has no folder train", ""),
    "one split twice": (lambda own: make_splits(own, "train", "Training"), "of which two are the same split", ""),
    "a split beside what is none": (lambda own: make_splits(own, "train", "more"), "which is none", "more"),
    "no classes in splits": (lambda own: rename(own, "train", "test"), "lies in no class folder", "train/cat_0.png"),
    "a class called test": (lambda own: rename(own, "cat", "test"), "which may be splits", "cat"),
    "classes called train and test": (lambda own: rename(own, "train", "test", "emu"), "which may be splits", "emu"),
    "one folder too many": (lambda own: put_into(own, "images"), "holds one folder, images, with 2", "images"),
    "splits below classes": (lambda own: [*map(move_all, (own, own), ("cat", "dog"))], "DIR/train/CLASS", "cat/train"),
    "a HEIC": (lambda own: (own / "cat" / "x.heic").touch(), ".heic is not", "cat/x.heic"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with(tmp_path, name):
    change, message, place = FOLDERS[name]
    own = write_folder(tmp_path / "own")
    change(own)
    refused(own, message, place if "\\" in place or "'" in place else own / place)


SPLIT_FOLDERS = {
    "a class missing from test": (lambda own: drop(own / "test" / "cat"), "other classes than train: 'cat'", "test"),
    "a class missing from train": (lambda own: drop(own / "train" / "cat"), "other classes than train: 'cat'", "test"),
    "an empty class in test": (lambda own: remove(own / "test" / "dog"), "holds no images", "test/dog"),
    "pictures beside classes": (lambda own: save(own / "test" / "x.png"), "in no class folder", "test/x.png"),
}


@pytest.mark.parametrize("name", SPLIT_FOLDERS)
def test_splits_with(tmp_path, name):
    change, message, place = SPLIT_FOLDERS[name]
    own = write_folder(tmp_path / "own", classes=("cat", "dog", "emu"), splits=("train", "test"))
    change(own)
    refused(own, message, own / place)


def test_paths_that_are_none(tmp_path):
    refused(tmp_path / "nowhere", "there is no folder", tmp_path / "nowhere")
    (tmp_path / "a.zip").write_bytes(b"PK")
    refused(tmp_path / "a.zip", "is a file; unpack it", tmp_path / "a.zip")
    refused(tmp_path / "nowhere.npz", "there is no file", tmp_path / "nowhere.npz", kind="npz")
    refused(tmp_path, "is a folder", tmp_path, kind="npz")


def test_a_class_of_which_nothing_can_be_read(tmp_path):
    own = write_folder(tmp_path / "own")
    for file in (own / "cat").iterdir():
        file.write_text("x")
    refused(own, "image of the class 'cat' can be read", own, skip_unreadable=True)
    for file in (own / "dog").iterdir():
        file.write_text("x")
    refused(own, "no image can be read", own, skip_unreadable=True)


def test_large_pictures_need_a_size(tmp_path):
    own = write_folder(tmp_path / "own", count=2, size=(300, 20))
    refused(own, "300x20 pixels: set config.dataset.image_size=64", own)


IMAGES, LABELS = np.zeros((6, 4, 4, 3), np.uint8), np.array([0, 1, 2, 0, 1, 2])

TRAIN = {"images": IMAGES, "labels": LABELS}
# The arrays of a .npz file and what is said of it.
ARRAYS = {
    "no labels": ({"images": IMAGES}, "needs both images and labels; it holds images"),
    "nothing": ({}, "it holds nothing"),
    "floats": ({"images": IMAGES / 255, "labels": LABELS}, "images is float64 (6, 4, 4, 3): allowed is uint8"),
    "four channels": ({"images": IMAGES[..., [0, 0, 0, 0]], "labels": LABELS}, "images is uint8 (6, 4, 4, 4)"),
    "channels first": ({"images": IMAGES.transpose(0, 3, 1, 2), "labels": LABELS}, "images is uint8 (6, 3, 4, 4)"),
    "no pictures": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images is uint8 (0, 4, 4, 3)"),
    "objects": ({"images": np.array([{}] * 6, object), "labels": LABELS}, "is no .npz file of plain arrays"),
    "too few labels": ({"images": IMAGES, "labels": LABELS[:5]}, "labels is int64 (5,)"),
    "one-hot labels": ({"images": IMAGES, "labels": np.eye(3)[LABELS]}, "labels is float64 (6, 3)"),
    "negative labels": ({"images": IMAGES, "labels": LABELS - 1}, "labels has -1"),
    "a gap in the labels": ({"images": IMAGES, "labels": 2 * LABELS}, "is of the class 1, '1'"),
    "a huge label": ({"images": IMAGES, "labels": LABELS + 10**15}, "labels has 1000000000000000"),
    "one class": ({"images": IMAGES, "labels": 0 * LABELS}, "one class, '0'"),
    "too few names": ({"images": IMAGES, "labels": LABELS, "class_names": ["a", "b"]}, "there are 2 classes"),
    "names twice": ({"images": IMAGES, "labels": LABELS, "class_names": ["a", "b", "a"]}, "two classes 'a'"),
    "one image of a class": ({"images": IMAGES[:4], "labels": LABELS[:4]}, "one image of the class '1'"),
    "test of other channels": (TRAIN | {"test_images": IMAGES[..., 0], "test_labels": LABELS}, "have other channels"),
    "test without labels": (TRAIN | {"test_images": IMAGES}, "both test_images and test_labels"),
    "test without a class": (TRAIN | {"test_images": IMAGES[:2], "test_labels": LABELS[:2]}, "is of the class 2"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_with(tmp_path, name):
    arrays, message = ARRAYS[name]
    np.savez(tmp_path / "own.npz", **arrays)
    refused(tmp_path / "own.npz", message, tmp_path / "own.npz", kind="npz")


def test_a_file_that_holds_no_arrays(tmp_path):
    np.save(tmp_path / "own.npy", IMAGES)
    for data in (b"", b"x", b"PK\x03\x04" + bytes(50), (tmp_path / "own.npy").read_bytes()):
        (tmp_path / "own.npz").write_bytes(data)
        refused(tmp_path / "own.npz", "is no .npz file", tmp_path / "own.npz", kind="npz")


def test_names_that_look_alike_and_are_not_are_shown_as_they_are(tmp_path):
    for split, name in (("train", "Cat"), ("test", "cat")):
        write_folder(tmp_path / "own", classes=(name, "dog"), splits=(split,))
    refused(tmp_path / "own", "'Cat', 'cat'", tmp_path / "own" / "test")
