"""Where the tokens of a layer lie in the image: layouts, and the lattice that centres of tokens have to make."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError

GAP = 0.25  # least distance of tokens in neighbouring rows, in mean steps from row to row
SPAN = 0.5  # least distance of the first row from the last one, as a share of that of rows that fill the image


class Layout(NamedTuple):
    """Places of the tokens of one layer, whose attention is of `windows` times as many images.

    Attributes:
      grid: rows and columns of a window, the whole image where there is one.
      tokens: of every window, by place in it, row by row.
      places: of these tokens in the whole image, row by row.
      others: class, register and padding tokens, one window alone has them.
      region: by window and place a number: cyclic shifts put parts of the image into one window that do not touch.
      image: rows and columns of the whole image.
      heads: merged with images in the first axis, or 1.
      swapped: heads merged with images in the first axis where windows are in the second one; else 0.
      centres: of rows and of columns in pixels, as far as the network sees; None where a user states the layout.
    """

    grid: Grid
    tokens: Int[np.ndarray, "w p"]
    places: Int[np.ndarray, "w p"]
    others: Int[np.ndarray, " e"]
    region: Int[np.ndarray, "w p"]
    image: Grid
    heads: int = 1
    swapped: int = 0
    centres: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def windows(self) -> int:
        return len(self.tokens)

    @property
    def per_image(self) -> int:
        """How many entries of the first axis of attention an image has."""
        return self.swapped or self.windows * self.heads

    def patch(self, size: Grid) -> Grid | None:
        """Rows and columns of pixels of a patch, in an image of this size that they fill from its corner on.

        They are those that fill it where steps from centre to centre are about as long, else these steps: images that
        networks pad have fewer pixels.
        """
        if self.centres is None:
            return None
        fill = [length // count for length, count in zip(size, self.image, strict=True)]
        own = [
            2 * of.mean() / count if count < 3 else float(np.median(np.diff(of)))
            for of, count in zip(self.centres, self.image, strict=True)
        ]
        rows, columns = (n if n - 1 < of < n + 0.5 else max(1, round(of)) for n, of in zip(fill, own, strict=True))
        return rows, columns

    def near(self, size: Grid) -> list["Layout"]:
        """The layout, and where patches need not fill the image those of patches up to two pixels larger or smaller.

        Strips of other heights than patches tell centres to a pixel or two.
        """
        patch = self.patch(size)
        if patch is None or tuple(n * count for n, count in zip(patch, self.image, strict=True)) == size:
            return [self]
        if abs(patch[0] - patch[1]) <= 2:  # as good as square
            patch = (round(sum(patch) / 2),) * 2
        sizes = [[n + more for n in patch] for more in (0, 1, -1, 2, -2) if min(patch) + more > 0]
        return [
            self._replace(centres=tuple(n * (np.arange(count) + 0.5) for n, count in zip(own, self.image, strict=True)))
            for own in sizes
        ]

    def by_window(self, array: np.ndarray) -> np.ndarray:
        """An array of attention or values with images times windows first, then heads, whatever order they came in."""
        if not self.swapped:
            return array.reshape(-1, self.heads * array.shape[1], *array.shape[2:])
        whole = array.reshape(-1, self.swapped, *array.shape[1:]).swapaxes(1, 2)
        return whole.reshape(-1, *whole.shape[2:])

    def as_it_was(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `by_window`."""
        if not self.swapped:
            return array.reshape(-1, array.shape[1] // self.heads, *array.shape[2:])
        whole = array.reshape(-1, self.windows, *array.shape[1:]).swapaxes(1, 2)
        return whole.reshape(-1, *whole.shape[2:])


def given(grid: Grid, tokens: Any, count: int) -> Layout:
    """The layout that a user states."""
    tokens = np.asarray(tokens, int).ravel()
    if len(tokens) != math.prod(grid) or len({*tokens.tolist()} & {*range(count)}) != len(tokens):
        raise UserError(f"{len(tokens)} tokens= of {count}: allowed are {math.prod(grid)} different ones, {grid=}")
    others = np.setdiff1d(np.arange(count), tokens)
    return Layout(grid, tokens[None], np.arange(len(tokens))[None], others, np.zeros_like(tokens[None]), grid)


class Lattice(NamedTuple):
    """A grid, the place of every token in it, row by row, and the centres of its rows and of its columns."""

    grid: Grid
    places: Int[np.ndarray, " n"]
    centres: tuple[np.ndarray, np.ndarray]


def lattice(centres: Float[np.ndarray, "2 n"], grid: Grid | None = None) -> Lattice | None:
    """Returns the one grid whose rows and columns lie apart and meet in one token each, or None.

    Sorted by height, tokens fall into rows: the lowest of one is above the highest of the next by `GAP` of a step.
    """
    count = centres.shape[1]
    if count < 2:
        return None
    for rows in (rows for rows in range(1, count + 1) if count % rows == 0):
        shape = rows, count // rows
        if grid not in (None, shape):
            continue
        lines, numbers = [], []
        for of, number in zip(centres, shape, strict=True):
            order = np.argsort(of, kind="stable")
            lines.append(of[order].reshape(number, -1))
            numbers.append(np.argsort(order, kind="stable") // (count // number))
        means = [of.mean(axis=1) for of in lines]
        steps = [(mean[-1] - mean[0]) / max(1, len(mean) - 1) for mean in means]
        apart = [
            (of[1:, 0] - of[:-1, -1]).min() > GAP * step if len(of) > 1 else np.ptp(of) < max(steps)
            for of, step in zip(lines, steps, strict=True)
        ]
        places = numbers[0] * shape[1] + numbers[1]
        if all(apart) and len(np.unique(places)) == count:
            return Lattice(shape, places, (means[0], means[1]))
    return None


def lattice_of_windows(centres: Float[np.ndarray, "2 w t"], size: Grid, grid: Grid | None = None) -> Lattice | None:
    """Returns the grid that the tokens of all windows make together, which has to fill the image, or None.

    Where a window makes a grid of its own, the mean of a row is the height of its tokens: windows may be interleaved.
    """
    sharper = np.array(centres)
    for n in range(centres.shape[1] if centres.shape[1] > 1 else 0):
        if (own := lattice(centres[:, n])) is not None:
            rows, columns = np.divmod(own.places, own.grid[1])
            sharper[:, n] = own.centres[0][rows], own.centres[1][columns]
    found = lattice(sharper.reshape(2, -1), grid)
    if found is None:
        return None
    filled = [
        mean[-1] - mean[0] >= SPAN * length * (1 - 1 / len(mean))
        for mean, length in zip(found.centres, size, strict=True)
    ]
    return found if all(filled) else None


def arranged(places: Int[np.ndarray, "w t"], image: Grid) -> Layout | None:
    """Returns the layout of windows whose tokens are a lattice of places, in one order in all of them, or None.

    A window that a cyclic shift made of several parts of the image has a number for each of them.
    """
    order = np.arange(places.shape[1])
    return in_order(places, image, order) or in_order(places, image, np.argsort(places[0]))


def in_order(places: Int[np.ndarray, "w t"], image: Grid, order: Int[np.ndarray, " t"]) -> Layout | None:
    """`arranged`, of tokens that are row by row in this order."""
    places = places[:, order]
    rows, columns = np.divmod(places, image[1])
    width = len(np.unique(columns[0]))
    if places.shape[1] % width or width == 1 or width == places.shape[1]:
        return None
    rows, columns = (x.reshape(len(places), -1, width) for x in (rows, columns))
    if (rows != rows[:, :, :1]).any() or (columns != columns[:, :1]).any():
        return None
    regions = np.zeros_like(places)
    for axis, lines, size in ((2, rows[:, :, 0], image[0]), (1, columns[:, 0], image[1])):
        steps = np.diff(lines, axis=1)
        if len(np.unique(steps % size)) != 1:
            return None
        part = np.concatenate([np.zeros((len(lines), 1), int), np.cumsum(steps < 0, axis=1)], axis=1)
        regions = 2 * regions + np.broadcast_to(np.expand_dims(part, axis), rows.shape).reshape(regions.shape)
    tokens = np.broadcast_to(order, places.shape)
    return Layout((rows.shape[1], width), tokens, places, np.arange(0), regions, image)
