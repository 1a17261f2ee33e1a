"""The user's own images: the same data whichever way it comes, its layout, its split, prepared anew."""

import os
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.data import own, sources
from attn_cnn_jax.data.image_files import as_image
from attn_cnn_jax.data.sets import Source
from attn_cnn_jax.errors import UserError
from tests.support.own_pictures import random_picture, write_folder


def folder(path, **options):
    return Source("folder", str(path), **options)


def npz(path, **arrays):
    np.savez_compressed(path, **arrays)
    return Source("npz", str(path))


def equal(one, two):
    for split in ("train", "test"):
        np.testing.assert_array_equal(one.splits[split].images, two.splits[split].images)
        np.testing.assert_array_equal(one.splits[split].labels, two.splits[split].labels)


def test_digits_are_the_same_as_data_set_folder_and_file(tmp_path):
    built_in, arrays = sources.load("digits"), {}
    for split, prefix in (("train", ""), ("test", "test_")):
        images, labels = built_in.splits[split]
        arrays |= {f"{prefix}images": images[..., 0], f"{prefix}labels": labels}
        for n, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = tmp_path / "own" / split / str(label)
            place.mkdir(parents=True, exist_ok=True)
            as_image(image).save(place / f"{n:05d}.png", compress_level=0)
    for source in (folder(tmp_path / "own"), npz(tmp_path / "own.npz", **arrays)):
        found = sources.load(source, tmp_path)
        equal(found, built_in)
        assert (found.spec.image_shape, found.spec.mean, found.spec.std) == ((8, 8, 1), (0.3052,), (0.3760,))
        assert found.spec.class_names == tuple("0123456789")


def test_one_channel_where_all_training_images_are_grey_else_three(tmp_path):
    path = write_folder(tmp_path / "own", splits=("train", "test"), mode="L")
    grey, colour = np.asarray(Image.open(path / "train" / "dog" / "dog_0.png")), random_picture(5)
    colour.save(path / "test" / "dog" / "dog_0.png")
    data = sources.load(folder(path), tmp_path)
    np.testing.assert_array_equal(data.train.images[4], grey[..., None])
    np.testing.assert_array_equal(data.test.images[4, ..., 0], colour.convert("L"))
    colour.save(path / "train" / "dog" / "dog_3.png")  # the last one
    data = sources.load(folder(path), tmp_path)
    np.testing.assert_array_equal(data.train.images[4], np.repeat(grey[..., None], 3, axis=2))
    np.testing.assert_array_equal(data.test.images[4], colour)


def test_a_channel_of_one_value_is_not_divided_by_zero():
    images = np.zeros((4, 2, 2, 3), np.uint8)
    images[[1, 3], ..., 0] = 255
    assert sources.moments(images) == ([0.5, 0.0, 0.0], [0.5, 1.0, 1.0])


def names_of(path):
    source = folder(path, test_fraction=0.25)
    return {
        os.path.relpath(entry.key, path)
        for entry in own.with_test_split(own.collect_folder(path, source), source).splits["test"]
    }


def test_the_test_split_is_that_of_version_0_2_and_an_image_that_is_added_moves_at_most_one(tmp_path):
    write_folder(tmp_path / "own", count=8)
    before = names_of(tmp_path / "own")
    assert before == {"cat/cat_1.png", "cat/cat_7.png", "dog/dog_3.png", "dog/dog_5.png"}
    moved = []
    for n in range(20):
        added = tmp_path / "own" / "cat" / f"more_{n}.png"
        random_picture(99).save(added)
        moved.append((names_of(tmp_path / "own") ^ before) - {f"cat/{added.name}"})
        added.unlink()
    assert max(map(len, moved)) == 1  # two of nine cats, too: one that is added may take the place of another
    assert all(path.startswith("cat/") for paths in moved for path in paths)
    images = np.arange(20, dtype=np.uint8).reshape(20, 1, 1)
    data = sources.load(npz(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2), tmp_path)
    assert data.test.images.reshape(-1).tolist() == [2, 3, 11, 18]


def test_data_is_prepared_anew_when_a_file_changes_and_kept_when_all_are_gone(tmp_path):
    path = write_folder(tmp_path / "own", splits=("train", "test"))
    first = sources.load(folder(path), tmp_path)
    assert sources.load(folder(path, image_size=(4, 6)), tmp_path).train.images.shape == (8, 4, 6, 3)
    assert not sources.prepare(folder(path), tmp_path)  # other sizes of the same folder stand beside each other
    random_picture(77).save(path / "train" / "cat" / "cat_0.png")
    second = sources.load(folder(path), tmp_path)
    changed = (first.train.images != second.train.images).any(axis=(1, 2, 3))  # the first one's files are still mapped
    assert np.flatnonzero(changed).tolist() == [0]
    shutil.rmtree(path)
    equal(sources.load(folder(path), tmp_path), second)


def test_what_is_left_out_is_counted_and_named_and_what_systems_leave_is_not(tmp_path):
    path = write_folder(tmp_path / "own", classes=(".NET", "java"))
    (path / "java" / "java_0.png").rename(path / "java" / ".5mm.png")
    (path / "java" / "java_2.png").rename(path / "java" / "photo.JFIF")
    left_out = (".NET/more", ".hidden", "java/report.pdf", "notes.txt", ".git/config")
    for name in left_out:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    folders = ("__MACOSX/x.png", ".ipynb_checkpoints/x.png", "@eaDir/x.png")
    for name in ("._java_1.png", ".DS_Store", "Thumbs.db", *folders):
        for place in (path / name, path / "java" / name):
            place.parent.mkdir(exist_ok=True)
            place.write_text("x")
    (path / "java" / "bad.png").write_text("Dear reader")
    data = sources.load(folder(path, test_fraction=0.125, skip_unreadable=True), tmp_path)
    assert data.spec.class_names == (".NET", "java")
    counts, split, *_, skipped, ignored = data.notes
    assert skipped.startswith(f"skipped 1 that cannot be read: {path}/java/bad.png cannot be read as an image: ")
    assert counts.startswith("6 train, 2 test images of 2 classes, 8x8x3, mean 0.")
    assert "12.5% of each class are the test split" in split
    names = sorted(str(path / name.removesuffix("/config")) for name in left_out)
    assert ignored == f"passed over 5 that are no images: {', '.join(names)}"
    with pytest.raises(UserError, match=r"bad.png cannot be read as an image: .*\n.*skip_unreadable=True"):
        sources.load(folder(path, test_fraction=0.125), tmp_path)  # which does not take over what skipped it


NAMES = {
    "train": ("Training", "TRAIN", "train_set", "train2017", "01_train_images"),
    "test": ("Testing", "TEST", "test-set", "testing_data", "02_tests"),
    "validation": ("Validation", "VAL", "dev set", "valid", "development"),
}


def test_splits_are_known_by_any_name_that_people_give_them(tmp_path):
    assert all(own.split_named(name) == split for split, names in NAMES.items() for name in names)
    path = write_folder(tmp_path / "own", splits=[names[0] for names in NAMES.values()])
    data = sources.load(folder(path), tmp_path)
    assert data.spec.class_names == ("cat", "dog")
    for split, names in NAMES.items():
        np.testing.assert_array_equal(data.splits[split].images[0], Image.open(path / names[0] / "cat" / "cat_0.png"))
    data = sources.load(folder(write_folder(tmp_path / "classes", classes=("bus", "car", "train"))), tmp_path)
    assert data.spec.class_names == ("bus", "car", "train")
    assert "train is taken for a class" in data.notes[1]


def test_names_that_differ_only_in_how_letters_are_composed_are_one_class(tmp_path):
    for form, split in (("NFC", "train"), ("NFD", "test")):
        write_folder(tmp_path / "own", classes=(unicodedata.normalize(form, "café"), "thé"), splits=(split,))
    data = sources.load(folder(tmp_path / "own"), tmp_path)
    assert data.spec.class_names == ("café", unicodedata.normalize("NFC", "thé"))
    write_folder(tmp_path / "own", classes=(unicodedata.normalize("NFD", "café"),), count=2, splits=("train",))
    assert len(sources.load(folder(tmp_path / "own"), tmp_path).train.labels) == 10


def test_arrays_need_not_fit_into_memory(tmp_path):
    """Of an array that is not in C order, too; the arrays are unpacked beside the data set and removed."""
    images = np.asfortranarray(np.random.default_rng(0).integers(0, 256, (30, 5, 4, 3), dtype=np.uint8))
    source = npz(tmp_path / "a.npz", images=images, labels=np.arange(30) % 2, class_names=["a", "b"])
    data = sources.load(source, tmp_path)
    found = {image.tobytes() for split in data.splits.values() for image in split.images}
    assert found == {image.tobytes() for image in images}
    assert len(list(sources.folder_of(source, tmp_path).iterdir())) == 5  # arrays of two splits, and about.json
    assert isinstance(data.train.images.base, np.memmap)
