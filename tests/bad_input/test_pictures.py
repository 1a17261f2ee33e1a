"""Images of the user's own that cannot be trained on: a line or two that name the file; fast, nothing is trained."""

import io
import shutil
import zlib

import numpy as np
import pytest

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Source
from attn_cnn_jax.errors import UserError
from tests.support.own_pictures import png, png_chunk, random_picture, write_folder


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


def encoded(kind):
    """An image of 40x40 pixels as the bytes of a file."""
    file = io.BytesIO()
    random_picture(0, (40, 40)).save(file, kind)
    return file.getvalue()


PNG = encoded("PNG")
# A file cat/bad.png or so beside good ones, and what is said of it.
FILES = {
    "text": ("bad.png", b"Dear reader", "no PNG, JPEG or WEBP file"),
    "half a PNG": ("bad.png", PNG[:800], "cannot be read as an image"),
    "half a JPEG": ("bad.jpg", encoded("JPEG")[:900], "truncated"),
    "a flipped byte": ("bad.png", PNG[:60] + bytes([PNG[60] ^ 0xFF]) + PNG[61:], "cannot be read as an image"),
    "a bomb": ("bad.png", png((50_000, 50_000), b""), "2500000000 pixels"),
    "a bomb of text": (  # a comment that unpacks to 100 MB
        "bad.png",
        PNG[:33] + png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20), 9)) + PNG[33:],
        "cannot be read as an image",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is(tmp_path, name):
    file, data, message = FILES[name]
    own = write_folder(tmp_path / "own", count=12, size=(40, 40))
    (own / "cat" / file).write_bytes(data)
    refused(own, message, own / "cat" / file, "config.dataset.skip_unreadable=True")
    data = sources.load(Source("folder", str(own), skip_unreadable=True), tmp_path / "data")
    assert len(data.train.labels) + len(data.test.labels) == 24


def save(path, animated=False):
    """An image of 9x8 pixels, or an animation of two."""
    frames = [random_picture(n, (9, 8)) for n in range(2)]
    frames[0].save(path, save_all=animated, append_images=frames[1:] if animated else [])


def nothing(own):
    """Leaves a folder as it is."""


def leave_one(own):
    for n in (1, 2, 3):
        (own / f"cat/cat_{n}.png").unlink()


def move_into_train(own):
    for path in own.glob("*/*.png"):
        (path.parent / "train").mkdir(exist_ok=True)
        path.rename(path.parent / "train" / path.name)


SPLITS = ("train", "test")
# What makes a folder of cat and dog, four images of 8x8 pixels each, otherwise; what is said of it and of which path.
FOLDERS = {
    "an empty class": ({}, lambda own: (own / "emu").mkdir(), "holds no images", "emu"),
    "one class": ({"classes": ["dog"]}, nothing, "one class, 'dog'", ""),
    "no classes": ({"classes": ["dog"]}, lambda own: shutil.rmtree(own / "dog"), "holds no folders", ""),
    "an image beside the classes": ({}, lambda own: save(own / "x.png"), "lies in no class folder", "x.png"),
    "a folder in a class": ({}, lambda own: (own / "cat/a").mkdir(), "the classes are the folders in", "cat/a"),
    "one image in a class": ({}, leave_one, "one image of the class 'cat'", ""),
    "a dead link": ({}, lambda own: (own / "cat/x.png").symlink_to("x.png"), "leads nowhere", "cat/x.png"),
    "a link that leads up": ({}, lambda own: (own / "emu").symlink_to(own), "is a folder in a class", "emu/"),
    "a GIF": ({}, lambda own: save(own / "cat/x.gif"), ".gif is not", "cat/x.gif"),
    "an animation": ({}, lambda own: save(own / "cat/x.png", animated=True), "animated, 2 frames", "cat/x.png"),
    "two sizes": ({}, lambda own: save(own / "cat/x.png"), "images of several sizes", "cat/x.png"),
    "a line break": ({}, lambda own: (own / "cat").rename(own / "c\nat"), "be printed", "'c\\nat'"),
    "a class that is not UTF-8": ({}, lambda own: (own / "cat").rename(own / "c\udcff"), "be printed", "c\\udcff"),
    "test without train": ({"splits": ["Test", "val"]}, nothing, "needed is one train", ""),
    "one split twice": ({"splits": ["train", "Training"]}, nothing, "needed is one train", ""),
    "a split beside what is none": ({"splits": ["train", "more"]}, nothing, "which may be splits", "more"),
    "classes called train and test": ({"classes": [*SPLITS, "emu"]}, nothing, "which may be splits", "emu"),
    "one folder too many": ({"splits": ["images"]}, nothing, "holds one folder, images, with 2", "images"),
    "splits of other classes": (
        {"splits": SPLITS},
        lambda own: shutil.rmtree(own / "test/dog"),
        "other classes than train: 'dog'",
        "test",
    ),
    "classes that look alike": (
        {"splits": SPLITS, "classes": ["Cat", "dog"]},
        lambda own: (own / "test/Cat").rename(own / "test/cat"),
        "'Cat', 'cat'",
        "test",
    ),
    "splits below classes": ({}, move_into_train, "DIR/train/CLASS", "cat/train"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with(tmp_path, name):
    otherwise, change, message, place = FOLDERS[name]
    own = write_folder(tmp_path / "own", **otherwise)
    change(own)
    refused(own, message, place if "\\" in place else own / place)


def test_paths_that_are_none_and_a_class_of_which_nothing_can_be_read(tmp_path):
    refused(tmp_path / "nowhere", "there is no folder", tmp_path / "nowhere")
    (tmp_path / "a.zip").write_bytes(b"PK")
    refused(tmp_path / "a.zip", "is a file; unpack it", tmp_path / "a.zip")
    refused(tmp_path / "nowhere.npz", "there is no file", tmp_path / "nowhere.npz", kind="npz")
    refused(tmp_path, "is a folder", tmp_path, kind="npz")
    own = write_folder(tmp_path / "own", size=(300, 20))
    refused(own, "300x20 pixels: set config.dataset.image_size=64", own)
    for file in (own / "cat").iterdir():
        file.write_text("x")
    refused(own, "image of the class 'cat' can be read", own, skip_unreadable=True, image_size=(8, 8))


IMAGES, LABELS = np.zeros((6, 4, 4, 3), np.uint8), np.array([0, 1, 2, 0, 1, 2])
OWN = {"images": IMAGES, "labels": LABELS}
# What differs from these arrays in a .npz file and what is said of it.
ARRAYS = {
    "floats": ({"images": IMAGES / 255}, "images is float64 (6, 4, 4, 3): allowed is uint8"),
    "channels first": ({"images": IMAGES.transpose(0, 3, 1, 2)}, "images is uint8 (6, 3, 4, 4)"),
    "no pictures": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images is uint8 (0, 4, 4, 3)"),
    "objects": ({"images": np.array([{}] * 6, object)}, "is no .npz file of plain arrays"),
    "too few labels": ({"labels": LABELS[:5]}, "6 images and"),
    "two labels an image": ({"labels": np.eye(3)[LABELS] + 1}, "labels of shape (6, 3) are not one-hot"),
    "negative labels": ({"labels": LABELS - 1}, "labels are no class, the first -1 at 0"),
    "a gap in the labels": ({"labels": 2 * LABELS}, "the first 4 at 2: allowed are integers from 0 to 2"),
    "a huge label": ({"labels": LABELS + 10**15}, "the first 1e+15 at 0"),
    "too few names": ({"class_names": ["a", "b"]}, "there are 2 classes"),
    "names twice": ({"class_names": ["a", "b", "a"]}, "two classes 'a'"),
    "test of other channels": ({"test_images": IMAGES[..., 0], "test_labels": LABELS}, "have other channels"),
    "test without labels": ({"test_images": IMAGES}, "both test_images and test_labels"),
    "test without a class": ({"test_images": IMAGES[:2], "test_labels": LABELS[:2]}, "is of the class 2"),
}


def test_files_without_arrays_or_with_others(tmp_path):
    path = tmp_path / "own.npz"
    for arrays, message in ARRAYS.values():
        np.savez(path, **OWN | arrays)
        refused(path, message, path, kind="npz")
    np.save(tmp_path / "own.npy", IMAGES)
    for data in (b"", b"PK\x03\x04" + bytes(50), (tmp_path / "own.npy").read_bytes()):
        path.write_bytes(data)
        refused(path, "is no .npz file", path, kind="npz")
    np.savez(path, images=IMAGES)
    refused(path, "needs both images and labels; it holds images", kind="npz")
