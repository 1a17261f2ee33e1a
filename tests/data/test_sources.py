"""Loading: damaged data sets, the cache, the validation split."""

import shutil
import stat

import numpy as np
import pytest

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import recipe
from attn_cnn_jax.data.fingerprint import fingerprint
from attn_cnn_jax.data.preparation import cache
from attn_cnn_jax.errors import UserError, command_line
from tests.support import cifar_archives


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    cifar_archives.prepare(root)
    return root


@pytest.fixture
def root(prepared, tmp_path):
    """A copy to be damaged, without the cache."""
    shutil.copytree(prepared / "cifar10", tmp_path / "cifar10", ignore=shutil.ignore_patterns("arrays.npz"))
    return tmp_path


def shard(root):
    return next((root / "cifar10" / "3.0.2").glob("cifar10-train.array_record*"))


def assert_damaged(root):
    with pytest.raises(UserError) as caught:
        sources.load("cifar10", root, download=False)
    first, second = str(caught.value).splitlines()
    assert f"{root}/cifar10/3.0.2 is damaged" in first
    assert f"`{command_line('prepare', 'cifar10', '--replace', '--data-dir', root)}`" in second


def test_a_missing_shard(root):
    shard(root).unlink()
    assert_damaged(root)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.9, 0.9999])
def test_a_cut_shard(root, fraction):
    data = shard(root).read_bytes()
    shard(root).write_bytes(data[: int(len(data) * fraction)])
    assert_damaged(root)


def test_a_flipped_shard_is_found_even_when_a_cache_is_there(root):
    sources.load("cifar10", root)
    assert (root / "cifar10" / "3.0.2" / "arrays.npz").exists()
    data = bytearray(shard(root).read_bytes())
    data[len(data) // 10] ^= 0xFF
    shard(root).write_bytes(data)
    assert_damaged(root)


def test_a_flipped_byte_anywhere_is_found_or_changes_nothing(root):
    first = sources.load("cifar10", root)
    whole = shard(root).read_bytes()
    found = 0
    for place in range(0, len(whole), len(whole) // 40):
        data = bytearray(whole)
        data[place] ^= 0xFF
        shard(root).write_bytes(data)
        try:
            again = sources.load("cifar10", root)
        except UserError:
            found += 1
        else:  # ArrayRecord fills its blocks up with bytes that mean nothing
            np.testing.assert_array_equal(again.train.images, first.train.images)
            np.testing.assert_array_equal(again.train.labels, first.train.labels)
    assert found > 10


def test_the_shard_of_another_split(root):
    test = next((root / "cifar10" / "3.0.2").glob("cifar10-test.array_record*"))
    shutil.copy(test, shard(root))
    assert_damaged(root)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}'])
def test_a_damaged_description(root, text):
    (root / "cifar10" / "3.0.2" / "dataset_info.json").write_text(text)
    assert_damaged(root)


def test_a_missing_description_counts_as_not_prepared(root):
    (root / "cifar10" / "3.0.2" / "dataset_info.json").unlink()
    with pytest.raises(UserError, match=r"is not in .*\nRun again with network access"):
        sources.load("cifar10", root, download=False)


def test_the_cache_gives_the_same_and_is_really_used(root, monkeypatch):
    first = sources.load("cifar10", root)
    monkeypatch.setattr(sources, "decode", None)
    second = sources.load("cifar10", root)
    for one, two in zip((*first.train, *first.test), (*second.train, *second.test), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    assert first.class_names == second.class_names


@pytest.mark.parametrize("place", [0.001, 0.3, 0.8, 0.999])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_cache_is_no_cache(root, place, damage):
    first = sources.load("cifar10", root)
    path = root / "cifar10" / "3.0.2" / "arrays.npz"
    data = bytearray(path.read_bytes())
    at = int(len(data) * place)
    data[at] ^= 0xFF
    path.write_bytes(data if damage == "flip" else data[:at])
    np.testing.assert_array_equal(sources.load("cifar10", root).train.images, first.train.images)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays["test_labels"].__setitem__(3, 255),
        lambda arrays: arrays["train_labels"].__setitem__(0, -1),
        lambda arrays: arrays.update(train_images=arrays["train_images"][:, :4, :4]),
        lambda arrays: arrays.update(train_images=arrays["train_images"] / 255),
        lambda arrays: arrays.update(train_images=arrays["train_images"][1:]),
        lambda arrays: arrays.update(test_labels=arrays["test_labels"].astype(np.float32)),
        lambda arrays: arrays.update(test_labels=arrays["test_labels"][:, None]),
        lambda arrays: arrays.update(test_images=arrays["test_images"][:0], test_labels=arrays["test_labels"][:0]),
        lambda arrays: arrays.pop("test_labels"),
    ],
)
def test_a_cache_of_impossible_arrays_is_made_again(root, change, caplog):
    first = sources.load("cifar10", root)
    folder = root / "cifar10" / "3.0.2"
    arrays = cache.read(folder, cache.stamp(folder))
    change(arrays)
    cache.write(folder, arrays, cache.stamp(folder))
    caplog.clear()
    assert fingerprint(sources.load("cifar10", root)) == fingerprint(first)
    assert [record for record in caplog.records if "reduced copy" not in record.getMessage()] == []
    assert sources.read_cached(recipe("cifar10"), root)  # the cache is whole again


def test_no_cache_is_made_of_data_that_changed_while_it_was_read(root):
    folder = root / "cifar10" / "3.0.2"
    arrays = {key: np.zeros(1) for key in ("train_images", "test_images")}
    cache.write(folder, arrays, "another stamp")
    assert not list(folder.glob("arrays*"))
    cache.write(folder, arrays, cache.stamp(folder))
    assert [path.name for path in folder.glob("arrays*")] == ["arrays.npz"]


def test_a_cache_of_data_that_changed_meanwhile_is_not_taken(root, monkeypatch):
    sources.load("cifar10", root)
    read = cache.read

    def read_while_another_process_replaces(folder, made_from):
        arrays = read(folder, made_from)
        shard(root).touch()
        return arrays

    monkeypatch.setattr(cache, "read", read_while_another_process_replaces)
    assert sources.read_cached(recipe("cifar10"), root) is None


def test_a_cache_that_cannot_be_written_is_left_out(root, monkeypatch):
    def full(file, **arrays):
        file.write(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(sources.load("cifar10", root).train.labels) == 25
    assert not list((root / "cifar10" / "3.0.2").glob("arrays*"))


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UserError, match=r"'cifar'.\nChoose one of cifar10, cifar100, digits"):
        sources.load("cifar")


def test_a_data_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write the data set digits to .*file/digits"):
        sources.load("digits", tmp_path / "file")


def test_the_default_directory_is_that_of_tfds(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    sources.load("digits")
    assert stat.S_ISDIR((tmp_path / "digits" / "1.0.0").stat().st_mode)


FIRST_CHOICE = [2, 3, 11, 13, 20]


def split_of(count):
    return sources.Split(np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1), np.arange(count, dtype=np.int32))


def test_validation_and_training_pictures_make_up_the_whole():
    train, validation = sources.split_validation(split_of(100), 20, seed=3)
    assert sorted([*train.labels, *validation.labels]) == list(range(100))
    assert len(validation.labels) == 20
    for part in (train, validation):
        assert (np.diff(part.labels) > 0).all()
        np.testing.assert_array_equal(part.images[:, 0, 0, 0], part.labels)


def test_the_validation_split_is_the_same_for_ever_and_another_for_another_seed():
    chosen = [sources.split_validation(split_of(30), 5, seed)[1].labels.tolist() for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] == FIRST_CHOICE
    assert chosen[2] != chosen[0]


def test_more_validation_pictures_only_add_some():
    few, more = (set(sources.split_validation(split_of(50), count, 0)[1].labels) for count in (5, 10))
    assert few < more


@pytest.mark.parametrize("count", [-1, 10, 11])
def test_an_impossible_validation_split(count):
    with pytest.raises(UserError, match=f"{count} validation pictures .* 10 .*\nChoose 0 to 9"):
        sources.split_validation(split_of(10), count, 0)


def test_no_validation_is_everything():
    train, validation = sources.split_validation(split_of(10), 0, 0)
    assert len(train.labels) == 10
    assert len(validation.labels) == 0
