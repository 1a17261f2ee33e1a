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


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_another_kind_of_file_and_a_truncated_one(tmp_path, kind):
    path = cifar_archives.write(tmp_path / "a.tar.gz", kind=kind)
    whole = path.read_bytes()
    cut = [whole[: int(len(whole) * fraction)] for fraction in (0.02, 0.5, 0.9, 0.9999)]
    for data in (b"", b"not an archive", b"PK\x03\x04 a zip", b"\x1f\x8b\x08\x00", *cut):
        path.write_bytes(data)
        assert "truncated, damaged or no .tar.gz" in refusal(path)


def test_an_archive_of_something_else(tmp_path):
    path = tmp_path / "a.tar.gz"
    assert "it holds 'cifar-100-binary'" in refusal(cifar_archives.write(path, "cifar100"), "cifar10")
    assert "it holds 'x'" in refusal(cifar_archives.write_tar(path, [("x/y", b"z")]))
    assert "it holds no files" in refusal(cifar_archives.write_tar(path, []))
    assert "more than 100 members" in refusal(cifar_archives.write_tar(path, [(f"x/{i}", b"") for i in range(101)]))


ROWS = np.zeros((10_001, 3073), np.uint8).tobytes()
# What a file of the binary layout has instead, None where it is missing, and what is said of it.
CONTENTS = [
    *((name, None, f"{name} is missing") for name in ("data_batch_3.bin", "test_batch.bin", "batches.meta.txt")),
    *(("data_batch_2.bin", data, "not a multiple of 3,073") for data in (ROWS[:3072], b"", ROWS[:3074])),
    ("test_batch.bin", ROWS, "10,001 test images; cifar10 has 10,000"),
    *(("batches.meta.txt", text, "class names") for text in (b"", b"cat\n" * 10, b"\xff\xfe" * 10, b"a b c")),
    *(("batches.meta.txt", b"a b c d e f g h i " + last, "class names") for last in (b"j k", b"\x1b[2J")),
]


@pytest.mark.parametrize(("file", "data", "message"), CONTENTS, ids=range(len(CONTENTS)))
def test_a_file_inside_that_is_wrong(tmp_path, file, data, message):
    change = lambda files: files.pop(file) if data is None else files.update({file: data})  # noqa: E731
    assert message in changed(tmp_path, change)


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    path = cifar_archives.write(tmp_path / "a.tar.gz")
    data = bytearray(path.read_bytes())
    for place in np.linspace(20, len(data) - 1, 25, dtype=int):
        data[place] ^= 1
        path.write_bytes(data)
        refusal(path)
        data[place] ^= 1


@pytest.mark.parametrize(("name", "place", "limit"), [("cifar10", 0, 10), ("cifar100", 0, 20), ("cifar100", 1, 100)])
def test_a_label_out_of_range(tmp_path, name, place, limit):
    file = "test_batch.bin" if name == "cifar10" else "test.bin"

    def change(files):
        data = bytearray(files[file])
        data[place] = limit
        files[file] = bytes(data)

    assert f"the label {limit}; {name} has 0 to {limit - 1}" in changed(tmp_path, change, name)


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


def test_bombs_are_stopped_at_the_limit(tmp_path, monkeypatch):
    path, info = tmp_path / "a.tar.gz", tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
    info.size = 2**40
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))  # by claim
    assert "claims 1,099,511,627,776 bytes" in refusal(path)
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**20)
    assert "unpacks to more than 1 MiB" in refusal(cifar_archives.write_huge(path, 2**20))  # in fact
    path = cifar_archives.write(path)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(2**21)))  # behind the last member
    assert "unpacks to more than 1 MiB" in refusal(path)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33  # as a long name
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2**21)))
    assert "unpacks to more than 1 MiB" in refusal(path)


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
    np.testing.assert_array_equal(cifar.pixels_of(found["data"]), array)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_change_of_a_pickle_gives_content_or_a_fault(data):
    whole = cifar_archives.old_pickle({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2], b"l": [b"x"]})
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(cifar.Fault):
        content = cifar.unpickled("file", bytes(damaged))
        assert isinstance(cifar.pixels_of(content.get("data")), np.ndarray | None)  # NumPy's own array may crash here
