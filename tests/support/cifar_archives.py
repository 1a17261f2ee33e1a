"""Tiny archives in the official layouts of CIFAR, made from random pictures."""

import io
import pickle
import tarfile
from typing import ClassVar

import numpy as np

from attn_cnn_jax.data import cifar, sources
from attn_cnn_jax.data.sets import Source

FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}
CLASS_NAMES = {
    "cifar10": (["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],),
    "cifar100": ([f"coarse_{i}" for i in range(20)], [f"fine_{i}" for i in range(100)]),
}
LABELS = {"cifar10": [b"labels"], "cifar100": [b"coarse_labels", b"fine_labels"]}


def random_pictures(name, seed=0):
    """uint8 images (N, 32, 32, 3) and labels (N, 1 or 2) a split: 25 to train, 7 to test."""
    rng = np.random.default_rng(seed)
    splits = {}
    for split, count in {"train": 25, "test": 7}.items():
        images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = np.stack([rng.integers(0, len(names), count, np.uint8) for names in CLASS_NAMES[name]], 1)
        splits[split] = images, labels
    return splits


def files(name, kind, splits):
    """The files of an archive by their names, as bytes; CIFAR-10's training pictures in five unequal batches."""
    batches = {"train": np.arange(25), "test": np.arange(7)}
    if name == "cifar10":
        batches = {f"data_batch_{i + 1}": rows for i, rows in enumerate(np.split(np.arange(25), (4, 9, 15, 20)))}
        batches["test_batch"] = np.arange(7)
    result = {}
    for batch, rows in batches.items():
        images, labels = (part[rows] for part in splits["test" if "test" in batch else "train"])
        pixels = images.transpose(0, 3, 1, 2).reshape(len(rows), -1)
        if kind == "binary":
            result[f"{batch}.bin"] = np.concatenate([labels, pixels], 1).tobytes()
        else:
            result[batch] = old_pickle(python_batch(name, pixels, labels))
    texts = ["batches.meta"] if name == "cifar10" else ["coarse_label_names", "fine_label_names"]
    if kind == "binary":
        named = zip(texts, CLASS_NAMES[name], strict=True)
        return result | {f"{text}.txt": ("\n".join(names) + "\n\n").encode() for text, names in named}
    keys = [key.replace(b"labels", b"label_names") for key in LABELS[name]]
    meta = {key: [n.encode() for n in names] for key, names in zip(keys, CLASS_NAMES[name], strict=True)}
    return result | {"batches.meta" if name == "cifar10" else "meta": old_pickle(meta | {b"num_vis": 3072})}


def python_batch(name, pixels, labels):
    content = {b"data": pixels, b"filenames": [b"x.png"] * len(pixels)}
    return content | {key: column.tolist() for key, column in zip(LABELS[name], labels.T, strict=True)}


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


def prepare(root, name="cifar10", kind="binary", seed=0, **options):
    """Prepare the data set of `random_pictures(name, seed)` in a folder."""
    path = root / f"{name}_{kind}_{seed}.tar.gz"
    if not path.exists():
        write(path, name, kind, seed)
    return sources.prepare(Source(name), root, archive=cifar.read(path, name), **options)
