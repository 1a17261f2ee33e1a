"""Pictures of the user's own: the same data whichever way it comes, its split, its statistics, prepared anew."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders.collection import split_note
from attn_cnn_jax.data.builders.own import Own
from attn_cnn_jax.data.pictures import fit, read_header, read_picture
from attn_cnn_jax.data.preparation import store
from attn_cnn_jax.errors import UserError
from tests.support.own_pictures import random_picture, write_digits, write_folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits"))


def equal(one, two):
    for split in ("train", "test"):
        np.testing.assert_array_equal(getattr(one, split).images, getattr(two, split).images)
        np.testing.assert_array_equal(getattr(one, split).labels, getattr(two, split).labels)


def test_digits_are_the_same_as_data_set_folder_and_file(digits, data_dir, tmp_path):
    built_in = sources.load("digits", data_dir)
    for name, path in zip(("folder", "npz"), digits, strict=True):
        own = sources.load(Own(name, str(path)), tmp_path)
        equal(own, built_in)
        spec = own.spec
        assert (spec.image_shape, spec.num_classes) == ((8, 8, 1), 10)
        assert (spec.mean, spec.std) == (built_in.spec.mean, built_in.spec.std)
        assert own.class_names == spec.class_names == tuple("0123456789")
        equal(sources.load(Own(name, str(path)), tmp_path), built_in)  # from the cache


def test_mean_and_deviation_are_those_of_the_training_pictures(tmp_path):
    write_folder(tmp_path / "own", splits=("train", "test"), size=(5, 7))
    data = sources.load(Own("folder", str(tmp_path / "own")), tmp_path)
    scaled = data.train.images.astype(np.float64) / 255
    assert data.train.images.shape == (8, 5, 7, 3)
    np.testing.assert_allclose(data.spec.mean, scaled.mean(axis=(0, 1, 2)), atol=5.1e-5)
    np.testing.assert_allclose(data.spec.std, scaled.std(axis=(0, 1, 2)), atol=5.1e-5)


def test_a_channel_of_one_value_is_not_divided_by_zero(tmp_path):
    images = np.zeros((4, 2, 2, 3), np.uint8)
    images[..., 0] = [[[0]], [[255]], [[0]], [[255]]]
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 0, 1, 1], test_images=images, test_labels=[0, 0, 1, 1])
    spec = sources.load(Own("npz", str(tmp_path / "a.npz")), tmp_path).spec
    assert (spec.mean, spec.std) == ((0.5, 0.0, 0.0), (0.5, 1.0, 1.0))


def names_of(path, **options):
    from attn_cnn_jax.data.builders.folder import collect

    splits = collect(path, options.get("fraction", 0.25), options.get("seed", 0)).splits
    return {split: {os.path.relpath(entry.key, path) for entry in entries} for split, entries in splits.items()}


def test_the_test_split_is_stated_and_seeded_and_a_picture_that_is_added_moves_at_most_one(tmp_path):
    write_folder(tmp_path / "own", count=8)
    before = names_of(tmp_path / "own")
    assert before == names_of(tmp_path / "own")
    assert before["test"] != names_of(tmp_path / "own", seed=1)["test"]
    for name in ("cat", "dog"):
        assert sum(path.startswith(name) for path in before["test"]) == 2  # a quarter of each class
    assert not before["train"] & before["test"]
    moved = []
    for n in range(20):
        added = tmp_path / "own" / "cat" / f"more_{n}.png"
        random_picture(99).save(added)
        changed = names_of(tmp_path / "own")["test"] ^ before["test"]
        moved.append(changed - {f"cat/{added.name}"})
        added.unlink()
    assert max(map(len, moved)) == 1  # two of nine cats, too: one that is added may take the place of another
    assert all(path.startswith("cat/") for paths in moved for path in paths)
    recipe = Own("folder", str(tmp_path / "own"), test_fraction=0.25)
    sources.load(recipe, tmp_path)
    assert (
        "25% of each class are the test split, chosen by seed 0" in recipe.describe(store.folder(recipe, tmp_path))[1]
    )


@pytest.mark.parametrize(("fraction", "percent"), [(0.29, "29%"), (0.125, "12.5%"), (0.001, "0.1%")])
def test_the_share_of_the_test_split_is_said_as_it_is(fraction, percent):
    assert split_note(fraction, 3) == f"{percent} of each class are the test split, chosen by seed 3"


def test_a_validation_split_of_its_own(tmp_path):
    write_folder(tmp_path / "own", splits=("train", "validation", "test"))
    data = sources.load(Own("folder", str(tmp_path / "own")), tmp_path)
    assert data.spec.has_validation
    first = Image.open(tmp_path / "own" / "validation" / "cat" / "cat_0.png")
    np.testing.assert_array_equal(data.validation.images[0], np.asarray(first))


def test_data_is_prepared_anew_when_a_file_changes_and_kept_when_all_are_gone(tmp_path):
    own = write_folder(tmp_path / "own", splits=("train", "test"))
    recipe = Own("folder", str(own))
    first = sources.load(recipe, tmp_path)
    assert store.is_prepared(recipe, tmp_path)
    random_picture(77).save(own / "train" / "cat" / "cat_0.png")
    assert not store.is_prepared(recipe, tmp_path)
    second = sources.load(recipe, tmp_path)
    changed = (first.train.images != second.train.images).any(axis=(1, 2, 3))
    assert np.flatnonzero(changed).tolist() == [0]
    shutil.rmtree(own)
    equal(sources.load(recipe, tmp_path), second)


def test_other_sizes_and_splits_of_the_same_folder_stand_beside_each_other(tmp_path):
    own = str(write_folder(tmp_path / "own"))
    recipes = [Own("folder", own), Own("folder", own, image_size=(4, 6)), Own("folder", own, split_seed=1)]
    shapes = [sources.load(recipe, tmp_path).train.images.shape for recipe in recipes]
    assert shapes == [(6, 8, 8, 3), (6, 4, 6, 3), (6, 8, 8, 3)]
    assert all(store.is_prepared(recipe, tmp_path) for recipe in recipes)


def test_unreadable_pictures_are_skipped_counted_and_named_only_if_asked_for(tmp_path):
    own = write_folder(tmp_path / "own", splits=("train", "test"))
    bad = own / "train" / "dog" / "bad.png"
    bad.write_bytes((own / "train" / "dog" / "dog_0.png").read_bytes()[:150])
    (own / "train" / "dog" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"bad.png cannot be read as a picture: .*\n.*skip_unreadable=True"):
        sources.load(Own("folder", str(own)), tmp_path)
    recipe = Own("folder", str(own), skip_unreadable=True)
    assert len(sources.load(recipe, tmp_path).train.labels) == 8
    _, skipped, ignored = recipe.describe(store.folder(recipe, tmp_path))
    assert f"skipped 1 that cannot be read: {bad}" in skipped
    assert "1 files are no pictures" in ignored
    assert "notes.txt" in ignored
    with pytest.raises(UserError, match=r"bad.png cannot be read"):  # what was left out once is not forgotten
        sources.load(Own("folder", str(own)), tmp_path)


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path):
    Image.fromarray(np.array([[0, 257, 32896], [128, 129, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert np.asarray(read_picture(tmp_path / "a.png", 1)).tolist() == [[0, 1, 128], [0, 1, 255]]


def test_what_is_transparent_becomes_white(tmp_path):
    pixels = np.array([[[200, 100, 0, 255], [200, 100, 0, 0]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.asarray(read_picture(tmp_path / "a.png", 3)).tolist() == [[[200, 100, 0], [255, 255, 255]]]
    assert np.asarray(read_picture(tmp_path / "a.png", 1))[0, 1] == 255


def test_a_picture_on_its_side_is_turned_upright(tmp_path):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    image.save(tmp_path / "a.png", exif=exif)
    assert read_header(tmp_path / "a.png") == (3, 2, 1)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", 1), np.rot90(np.asarray(image), -1))


OF_FORMAT = {"png": ("L", "LA", "RGB", "RGBA"), "jpg": ("L", "RGB", "CMYK"), "webp": ("RGB", "RGBA")}
MODES = [(mode, suffix) for suffix, modes in OF_FORMAT.items() for mode in modes]


@pytest.mark.parametrize(("mode", "suffix"), MODES)
def test_modes_and_formats(tmp_path, mode, suffix):
    path = tmp_path / f"a.{suffix}"
    random_picture(0, (6, 4), mode).save(path)
    height, width, channels = read_header(path)
    assert (height, width, channels) == (6, 4, 1 if mode in ("L", "LA") else 3)
    assert fit(read_picture(path, channels), (6, 4)).shape == (6, 4, channels)


def test_the_middle_is_cropped_and_resized():
    pixels = np.zeros((4, 12), np.uint8)
    pixels[:, 4:8] = 200
    assert fit(Image.fromarray(pixels), (4, 4)).tolist() == [[[200]] * 4] * 4
    pixels[:] = 200
    assert fit(Image.fromarray(pixels), (2, 2)).tolist() == [[[200], [200]], [[200], [200]]]
