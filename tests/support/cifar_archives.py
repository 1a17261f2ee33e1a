"""Tiny archives in the official layouts, made from random pictures, for the tests of this folder."""

import gzip
import io
import pickle
import tarfile
from typing import ClassVar

import numpy as np

from attn_cnn_jax.data import cifar, sources
from attn_cnn_jax.data.sets import Source

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}
NUM_CLASSES = {"cifar10": (10,), "cifar100": (20, 100)}


def random_pictures(name, seed=0):
    """uint8 images (N, 32, 32, 3) and labels (N, 1 or 2) a split: 25 to train, 7 to test."""
    rng = np.random.default_rng(seed)
    splits = {}
    for split, count in {"train": 25, "test": 7}.items():
        images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = np.stack([rng.integers(0, limit, count, np.uint8) for limit in NUM_CLASSES[name]], 1)
        splits[split] = images, labels
    return splits


def class_names(name):
    if name == "cifar10":
        return (CIFAR10_NAMES,)
    return [f"coarse_{i}" for i in range(20)], [f"fine_{i}" for i in range(100)]


def files(name, kind, splits):
    """The files of an archive by their names, as bytes; CIFAR-10's training pictures in five unequal batches."""
    if name == "cifar10":
        batches = {f"data_batch_{i + 1}": rows for i, rows in enumerate(np.split(np.arange(25), (4, 9, 15, 20)))}
        batches |= {"test_batch": np.arange(7)}
    else:
        batches = {"train": np.arange(25), "test": np.arange(7)}
    result = {}
    for batch, rows in batches.items():
        images, labels = (part[rows] for part in splits["test" if "test" in batch else "train"])
        pixels = images.transpose(0, 3, 1, 2).reshape(len(rows), -1)
        if kind == "binary":
            result[f"{batch}.bin"] = np.concatenate([labels, pixels], 1).tobytes()
        else:
            result[batch] = old_pickle(python_batch(name, batch, pixels, labels))
    names = class_names(name)
    if kind == "binary":
        texts = ["batches.meta.txt"] if name == "cifar10" else ["coarse_label_names.txt", "fine_label_names.txt"]
        result |= {text: ("\n".join(n) + "\n\n").encode() for text, n in zip(texts, names, strict=True)}
    elif name == "cifar10":
        meta = {
            b"num_cases_per_batch": 10000,
            b"label_names": [n.encode() for n in names[0]],
            b"num_vis": 3072,
        }
        result["batches.meta"] = old_pickle(meta)
    else:
        keys = (b"coarse_label_names", b"fine_label_names")
        result["meta"] = old_pickle({k: [n.encode() for n in ns] for k, ns in zip(keys, names, strict=True)})
    return result


def python_batch(name, batch, pixels, labels):
    keys = (b"labels",) if name == "cifar10" else (b"coarse_labels", b"fine_labels")
    content = {b"batch_label": batch.encode(), b"data": pixels, b"filenames": [b"x.png"] * len(pixels)}
    return content | {key: column.tolist() for key, column in zip(keys, labels.T, strict=True)}


class _OldPickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, which is what the official files have."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, data):
        if len(data) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        else:
            self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(data)

    dispatch[bytes] = save_bytes


def old_pickle(content):
    """Pickle as Python 2 with an old NumPy did: protocol 2, byte strings, `numpy.core`."""
    file = io.BytesIO()
    _OldPickler(file, protocol=2).dump(content)
    data = file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    return data.replace(b"X\x02\x00\x00\x00u1", b"U\x02u1").replace(b"X\x01\x00\x00\x00|", b"U\x01|")


def write_tar(path, members):
    """Write a .tar.gz of (name or TarInfo, bytes) pairs."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return path


def write(path, name="cifar10", kind="binary", seed=0, change=None):
    """Write an archive of random pictures; `change` edits the dict of its files first."""
    content = files(name, kind, random_pictures(name, seed))
    if change:
        change(content)
    folder = FOLDERS[name, kind]
    return write_tar(path, [(f"{folder}/{file}", data) for file, data in content.items()])


def write_huge(path, size):
    """Write a .tar.gz whose one member really unpacks to `size` zero bytes."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = size
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(2**20))
    return path


def prepare(root, name="cifar10", kind="binary", seed=0, **options):
    """Prepare the data set of `random_pictures(name, seed)` in a folder."""
    path = root / f"{name}_{kind}_{seed}.tar.gz"
    if not path.exists():
        write(path, name, kind, seed)
    return sources.prepare(Source(name), root, archive=cifar.read(path, name), **options)
