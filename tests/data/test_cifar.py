"""What the archive reader takes, and everything that it must refuse."""

import contextlib
import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_cnn_jax.data import cifar
from attn_cnn_jax.errors import UserError
from tests.support import cifar_archives

FOLDER = "cifar-10-batches-bin"


def test_images_labels_and_names_come_back_exactly(tmp_path):
    for name, kind in cifar_archives.FOLDERS:
        content = cifar.read(cifar_archives.write(tmp_path / "a.tar.gz", name, kind), name)
        for split, (images, labels) in cifar_archives.random_pictures(name).items():
            np.testing.assert_array_equal(content.images[split], images)
            np.testing.assert_array_equal(content.labels[split], labels)
        assert content.class_names == [tuple(names) for names in cifar_archives.CLASS_NAMES[name]]
        assert content.verdict == f"not the official archive ({kind} layout)"


def refusal(path, name="cifar10"):
    with pytest.raises(UserError) as caught:
        cifar.read(path, name)
    first, second = str(caught.value).splitlines()
    assert str(path) in first
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in second
    return first


def test_what_is_no_archive_of_the_set(tmp_path):
    path = tmp_path / "a.tar.gz"
    assert "No such file" in refusal(path)
    os.mkfifo(tmp_path / "fifo")
    assert "no plain file" in refusal(tmp_path / "fifo")  # to open it would wait for a writer
    assert "it holds 'cifar-100-binary'" in refusal(cifar_archives.write(path, "cifar100"), "cifar10")
    assert "it holds no files" in refusal(cifar_archives.write_tar(path, []))
    whole = cifar_archives.write(path, kind="python").read_bytes()
    cut = [whole[: int(len(whole) * fraction)] for fraction in (0.02, 0.5, 0.9, 0.9999)]
    places = np.linspace(20, len(whole) - 1, 20, dtype=int)
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in places]
    for data in (b"", b"not an archive", b"PK\x03\x04 a zip", b"\x1f\x8b\x08\x00", *cut, *flipped):
        path.write_bytes(data)
        refusal(path)


def columns(**changes):
    """The test batch of the python layout with other values, None for none."""
    images, labels = cifar_archives.random_pictures("cifar10")["test"]
    content = cifar_archives.python_batch("cifar10", images.reshape(7, -1), labels)
    content |= {key.encode(): value for key, value in changes.items()}
    return cifar_archives.old_pickle({key: value for key, value in content.items() if value is not None})


PIXELS = np.zeros((7, 3072), np.uint8)
# What a file has instead, None where it is missing, and what is said of it.
CONTENTS = [
    *((name, None, f"{name} is missing") for name in ("data_batch_3.bin", "batches.meta.txt")),
    ("data_batch_2.bin", bytes(3074), "data_batch_2.bin is not of the official form"),
    *(("batches.meta.txt", text, "its list of classes") for text in (b"", b"cat\n" * 10, b"a b c d e f g h i \x1b[2J")),
    ("test_batch", columns(data=None), "KeyError: 'data'"),
    ("test_batch", columns(data=b"text"), "test_batch is not of the official form"),
    ("test_batch", columns(data=PIXELS[:, :-1]), "test_batch is not of the official form"),
    ("test_batch", columns(data=PIXELS.astype(np.float32)), "no bytes"),
    ("test_batch", columns(data=np.array([[{}]])), "no bytes"),
    ("test_batch", columns(labels=None), "KeyError: 'labels'"),
    ("test_batch", columns(labels=[0] * 6), "test_batch is not of the official form"),
    *(("test_batch", columns(labels=[bad] * 7), "official form") for bad in (-1, b"cat", 2**70, [0, 1])),
]


def test_a_file_inside_that_is_wrong(tmp_path):
    for file, data, message in CONTENTS:
        change = lambda files: files.pop(file) if data is None else files.update({file: data})  # noqa: B023, E731
        kind = "binary" if "." in file else "python"
        assert message in refusal(cifar_archives.write(tmp_path / "a.tar.gz", "cifar10", kind, change=change))


def test_members_beside_the_folder_that_are_no_plain_files_and_bombs(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "a.tar.gz"
    files = cifar_archives.files("cifar10", "binary", cifar_archives.random_pictures("cifar10"))
    members = [*((f"{FOLDER}/{file}", data) for file, data in files.items()), ("../x", b"x"), (f"{FOLDER}/../y", b"y")]
    cifar.read(cifar_archives.write_tar(path, members), "cifar10")
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")] == ["deep", "deep/a.tar.gz"]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        info = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
        info.type, info.linkname = kind, "/etc/passwd"
        assert "no plain file" in refusal(cifar_archives.write_tar(path, [(info, b"")]))
    info = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
    info.size = 2**40
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))  # by claim
    assert "no plain file of the size that it claims" in refusal(path)
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**20)
    path = cifar_archives.write(path)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(2**21)))  # behind the last member
    assert "unpacks to more than 1 MiB" in refusal(path)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33  # as a long name
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2**10)))
    refusal(path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path):
    for protocol in range(6):
        bait = pickle.dumps({"data": Malicious(tmp_path / "run")}, protocol)
        pickle.loads(bait)
        (tmp_path / "run").rmdir()  # the bait works on pickle itself
        change = lambda files: files.update({"data_batch_1": bait})  # noqa: B023, E731
        message = refusal(cifar_archives.write(tmp_path / "a.tar.gz", kind="python", change=change))
        assert "data_batch_1 is not of the official form (UnpicklingError: it asks to import" in message
        assert not (tmp_path / "run").exists()
    for data in (b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.", b"\x80\x02cbuiltins\neval\n."):
        with pytest.raises(pickle.UnpicklingError, match="it asks to import"):
            cifar.unpickled(data)
    with pytest.raises(pickle.UnpicklingError, match="it asks to import"):
        cifar.unpickled(b"\x80\x04\x8c\x05numpy\x8c\x12_core.os.path.join\x93.")


def test_a_column_major_array_is_read_right_and_a_memo_index_costs_no_memory():
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    np.testing.assert_array_equal(cifar.unpickled(cifar_archives.old_pickle({b"data": array}))["data"].array(), array)
    # The pickle module in C would reserve 32 GiB for this index.
    assert cifar.unpickled(b"\x80\x02}r\xff\xff\xff\x7fU\x01aK\x01s.") == {"a": 1}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_change_of_a_pickle_gives_rows_or_an_error(data):
    whole = cifar_archives.old_pickle({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2], b"l": [b"x"]})
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):  # NumPy's own array may crash here
        assert cifar.rows_of("file", bytes(damaged), cifar.KEYS["cifar10"]).dtype == np.uint8
