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


@pytest.mark.parametrize(("name", "kind"), cifar_archives.FOLDERS)
def test_images_labels_and_names_come_back_exactly(tmp_path, name, kind):
    content = cifar.read(cifar_archives.write(tmp_path / "a.tar.gz", name, kind), name)
    for split, (images, labels) in cifar_archives.random_pictures(name).items():
        np.testing.assert_array_equal(content.images[split], images)
        np.testing.assert_array_equal(content.labels[split], labels)
    assert content.class_names == tuple(map(tuple, cifar_archives.class_names(name)))
    assert content.origin["layout"] == kind
    assert not content.origin["official"]


def refusal(path, name="cifar10"):
    with pytest.raises(UserError) as caught:
        cifar.read(path, name)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert str(path) in lines[0]
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in lines[1]
    return lines[0]


def changed(tmp_path, change, name="cifar10", kind="binary"):
    return refusal(cifar_archives.write(tmp_path / "a.tar.gz", name, kind, change=change), name)


def test_a_path_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "No such file" in refusal(tmp_path / "absent.tar.gz")
    assert "no plain file" in refusal(tmp_path)
    assert "no plain file" in refusal(tmp_path / "fifo")  # to open it would wait for a writer


@pytest.mark.parametrize("data", [b"", b"not an archive", b"PK\x03\x04 a zip", b"\x1f\x8b\x08\x00"])
def test_another_kind_of_file(tmp_path, data):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(data)
    assert "no .tar.gz" in refusal(path)


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_a_truncated_file(tmp_path, fraction, kind):
    path = cifar_archives.write(tmp_path / "a.tar.gz", kind=kind)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    assert "truncated" in refusal(path)


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    path = cifar_archives.write(tmp_path / "a.tar.gz")
    data = bytearray(path.read_bytes())
    for place in np.linspace(20, len(data) - 1, 25, dtype=int):
        data[place] ^= 1
        path.write_bytes(data)
        refusal(path)
        data[place] ^= 1


def test_the_archive_of_the_other_data_set(tmp_path):
    assert "it holds 'cifar-100-binary'" in refusal(cifar_archives.write(tmp_path / "a.tar.gz", "cifar100"), "cifar10")


def test_an_archive_of_something_else(tmp_path):
    assert "it holds 'x'" in refusal(cifar_archives.write_tar(tmp_path / "a.tar.gz", [("x/y", b"z")]))
    assert "it holds no files" in refusal(cifar_archives.write_tar(tmp_path / "a.tar.gz", []))


@pytest.mark.parametrize("missing", ["data_batch_3.bin", "test_batch.bin", "batches.meta.txt"])
def test_a_missing_file(tmp_path, missing):
    assert f"{FOLDER}/{missing} is missing" in changed(tmp_path, lambda files: files.pop(missing))


@pytest.mark.parametrize("cut", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"x"])
def test_a_file_that_is_not_whole_records(tmp_path, cut):
    change = lambda files: files.update({"data_batch_2.bin": cut(files["data_batch_2.bin"])})  # noqa: E731
    assert "data_batch_2.bin has" in changed(tmp_path, change)
    assert "not a multiple of 3,073" in changed(tmp_path, change)


@pytest.mark.parametrize(("name", "place", "limit"), [("cifar10", 0, 10), ("cifar100", 0, 20), ("cifar100", 1, 100)])
def test_a_label_out_of_range(tmp_path, name, place, limit):
    file = "test_batch.bin" if name == "cifar10" else "test.bin"

    def change(files):
        data = bytearray(files[file])
        data[place] = limit
        files[file] = bytes(data)

    assert f"the label {limit}; {name} has 0 to {limit - 1}" in changed(tmp_path, change, name)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"cat\n" * 10,
        b"\xff\xfe" * 10,
        b"a b c d e f g h i",
        b"a b c d e f g h i j k",
        b"a b c d e f g h i \x1b[2J",
    ],
)
def test_wrong_class_names(tmp_path, text):
    assert "class names" in changed(tmp_path, lambda files: files.update({"batches.meta.txt": text}))


def test_more_images_than_official(tmp_path):
    rows = np.zeros((10_001, 3073), np.uint8).tobytes()
    message = changed(tmp_path, lambda files: files.update({"test_batch.bin": rows}))
    assert "10,001 test images; cifar10 has 10,000" in message


def test_members_beside_the_folder_are_left_alone_and_nothing_is_unpacked(tmp_path):
    files = cifar_archives.files("cifar10", "binary", cifar_archives.random_pictures("cifar10"))
    members = [*((f"{FOLDER}/{file}", data) for file, data in files.items()), ("../x", b"x"), (f"{FOLDER}/../y", b"y")]
    (tmp_path / "deep").mkdir()
    cifar.read(cifar_archives.write_tar(tmp_path / "deep" / "a.tar.gz", members), "cifar10")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["deep", "deep/a.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_member_that_is_no_plain_file(tmp_path, kind):
    info = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
    info.type, info.linkname = kind, "/etc/passwd"
    assert "no plain file" in refusal(cifar_archives.write_tar(tmp_path / "a.tar.gz", [(info, b"")]))


def test_a_bomb_by_claim(tmp_path):
    info = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
    info.size = 2**40
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
    assert "claims 1,099,511,627,776 bytes" in refusal(path)


def test_a_bomb_in_fact_is_stopped_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**22)
    path = cifar_archives.write_huge(tmp_path / "a.tar.gz", 2**22)
    assert path.stat().st_size < 2**16
    assert "unpacks to more than 4 MiB" in refusal(path)


def test_a_bomb_behind_the_last_member(tmp_path, monkeypatch):
    path = cifar_archives.write(tmp_path / "a.tar.gz")
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**20)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(2**21)))
    assert "unpacks to more than 1 MiB" in refusal(path)


def test_a_long_name_that_is_a_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**20)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2**21)))
    assert "unpacks to more than 1 MiB" in refusal(path)


def test_very_many_members(tmp_path):
    members = [(f"x/{i}", b"") for i in range(101)]
    assert "more than 100 members" in refusal(cifar_archives.write_tar(tmp_path / "a.tar.gz", members))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path, protocol):
    bait = pickle.dumps({"data": Malicious(tmp_path / "run")}, protocol)
    pickle.loads(bait)
    assert (tmp_path / "run").exists()  # the bait works on pickle itself
    (tmp_path / "run").rmdir()
    message = changed(tmp_path, lambda files: files.update({"data_batch_1": bait}), kind="python")
    assert "data_batch_1 is no pickle of the official form" in message
    assert "no need of" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "EOFError"),
        (b"\x80\x02}q\x01", "EOFError"),
        (b"\x80\x02]q\x01.", "no dict"),
        (b"cos\nsystem\n(S'true'\ntR.", "os system"),
        (b"(S'true'\nios\nsystem\n.", "os system"),
        (b"\x80\x02cnumpy\nndarray\n.", "no dict"),
        (b"\x80\x02cbuiltins\neval\n.", "builtins eval"),
        (b"\x80\x04\x8c\x05numpy\x8c\x12_core.os.path.join\x93.", "no need of"),
        (b"\x80\x02}(U\x01xu.", "official form"),
        (b"\x80\x02.", "official form"),
        (b"\x80\x02}h\x07.", "official form"),
        (b"\x80\x05}\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "official form"),  # a bytearray of 2^40
    ],
)
def test_damaged_and_hostile_pickles(data, reason):
    with pytest.raises(cifar.Fault, match=reason):
        cifar.unpickled("file", data)


def test_the_text_protocol_is_read_and_a_memo_index_costs_no_memory():
    text = b"(dp1\nS'a'\np2\nI10000\nsS'b'\np3\n(lp4\nS'c'\np5\nas."
    assert cifar.unpickled("file", text) == {"a": 10000, "b": ["c"]}
    # The pickle module in C would reserve 32 GiB for this index.
    assert cifar.unpickled("file", b"\x80\x02}r\xff\xff\xff\x7fU\x01aK\x01s.") == {"a": 1}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda c: c.pop(b"data"), "no 'data' of N x 3,072 bytes"),
        (lambda c: c.update({b"data": b"text"}), "no 'data'"),
        (lambda c: c.update({b"data": c[b"data"][:, :-1]}), "no 'data'"),
        (lambda c: c.update({b"data": c[b"data"].astype(np.float32)}), "no 'data'"),
        (lambda c: c.update({b"data": np.array([[{}]])}), "no 'data'"),
        (lambda c: c.pop(b"labels"), "no list 'labels'"),
        (lambda c: c[b"labels"].pop(), "no list 'labels'"),
        (lambda c: c[b"labels"].__setitem__(0, -1), "not class numbers"),
        (lambda c: c[b"labels"].__setitem__(0, True), "not class numbers"),
        (lambda c: c[b"labels"].__setitem__(0, b"cat"), "not class numbers"),
        (lambda c: c[b"labels"].__setitem__(0, 2**70), "not class numbers"),
        (lambda c: c[b"labels"].__setitem__(0, 10), "the label 10"),
    ],
)
def test_a_python_batch_with_wrong_content(tmp_path, edit, reason):
    def change(files):
        images, labels = cifar_archives.random_pictures("cifar10")["test"]
        content = cifar_archives.python_batch("cifar10", "test_batch", images.reshape(7, -1), labels)
        edit(content)
        files["test_batch"] = cifar_archives.old_pickle(content)

    message = changed(tmp_path, change, kind="python")
    assert "test" in message
    assert reason in message


def test_a_column_major_array_is_read_right():
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    found = cifar.unpickled("file", cifar_archives.old_pickle({b"data": array}))
    np.testing.assert_array_equal(found["data"], array)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_change_of_a_pickle_gives_content_or_a_fault(data):
    whole = cifar_archives.old_pickle({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2], b"l": [b"x"]})
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(cifar.Fault):
        assert isinstance(cifar.unpickled("file", bytes(damaged)), dict)
