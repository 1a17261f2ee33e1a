"""Pictures with classes as their owner has them, before any is decoded."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attn_cnn_jax.errors import UserError

SPLITS = ("train", "validation", "test")
MOST_CLASSES = 100_000


class Entry(NamedTuple):
    """One picture: how messages name it, where it is found, and its class number."""

    name: str
    key: Any
    label: int


class Collection(NamedTuple):
    """Pictures by split, in an order of their own that does not depend on how they are stored.

    Attributes:
      class_names: by label.
      splits: `train` and `test`, also `validation` where there is one.
      header: returns height, width and channels (1 or 3) of an entry; may raise Unreadable.
      read: returns an entry as a picture of mode "L" or "RGB", given the number of channels; may raise Unreadable.
      note: how the test split came about, "" where the owner made it.
      ignored: names of files that are no pictures and were passed over.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[Entry]]
    header: Callable[[Entry], tuple[int, int, int]]
    read: Callable[[Entry, int], Image.Image]
    note: str = ""
    ignored: tuple[str, ...] = ()


def split_note(fraction: float, seed: int) -> str:
    """Returns in words how a test split was chosen."""
    return f"{100 * fraction:g}% of each class are the test split, chosen by seed {seed}"


def split_off(
    entries: list[Entry], ranks: Sequence, names: tuple[str, ...], where: str, fraction: float
) -> tuple[list[Entry], list[Entry]]:
    """Returns (train, test), both in their old order.

    Args:
      entries: pictures of all classes.
      ranks: one per entry, all different; of each class the pictures of lowest rank are for the test.
      names: of the classes.
      where: the pictures lie, for messages.
      fraction: part of each class that is for the test, 0 to 1; but at least one picture, and not all.
    """
    by_class: dict[int, list] = {label: [] for label in range(len(names))}
    for n, (entry, rank) in enumerate(zip(entries, ranks, strict=True)):
        by_class[entry.label].append((rank, n))
    test = set()
    for label, ranked in by_class.items():
        if len(ranked) < 2:
            raise UserError(
                f"{where} has {'one picture' if ranked else 'no picture'} of the class {names[label]!r}: "
                "without a test split every class needs two, one to train and one to test"
            )
        count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
        test |= {n for _, n in sorted(ranked)[:count]}
    train = [entry for n, entry in enumerate(entries) if n not in test]
    return train, [entry for n, entry in enumerate(entries) if n in test]


def random_ranks(count: int, seed: int) -> list[int]:
    """Returns numbers by which to choose at random, the same for ever for a seed."""
    # NumPy keeps the raw output of a bit generator for ever.
    return np.random.PCG64(seed).random_raw(count).tolist()


def check_class_names(names: tuple[str, ...], where: str) -> None:
    """Raises UserError unless there are at least two names, all different, printable and without outer blanks."""
    if len(names) < 2:
        found = f"one class, {names[0]!r}" if names else "no class"
        raise UserError(f"{where} has {found}: a classifier needs at least two")
    if len(names) > MOST_CLASSES:
        raise UserError(f"{where} has {len(names):,} classes: allowed are {MOST_CLASSES:,}")
    for name in names:
        if not name or name != name.strip() or not name.isprintable():
            raise UserError(
                f"{where}: the class name {name!a} begins or ends with a blank, is empty or cannot be printed; "
                "rename it"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{where} names two classes {twice!r}: rename one")
