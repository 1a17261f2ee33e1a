"""Which token of a layer is which place of the image: found by experiment, never guessed.

All attention is replaced by that of every token to itself, so that a change of some pixels stays where it is. Then
blocks of pixels are changed, and the values of every layer say which tokens lie there. The blocks of a grid are rows
and columns, each found by two numbers, `i // n` and `i % n`: all rows with the same number change at once, which takes
about 4 sqrt(rows) images rather than a pass per block. Tokens that no block or that all blocks reach alike are none of
the grid's: class and register tokens.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.instrument.adapters import LOCAL, Call, Seen
from attn_cnn_jax.instrument.network import Network

CANDIDATES = 4  # grids that are tried for a number of tokens
AT_ONCE = 16  # perturbed images per pass
SAME = 1e-3  # relative difference between two calls with one image, from rounding
SHARP = 1.2  # how much more a token has to respond to its own block than to the mean of all


class Enough(Exception):
    """Ends a run after the last layer that is needed."""


class Layout(NamedTuple):
    """Places of the tokens of one layer, whose attention is of `windows` times as many images.

    Attributes:
      grid: rows and columns of a window, the whole image where there is one.
      tokens: of every window, by place in it, row by row.
      places: of these tokens in the whole image, row by row.
      others: class and register tokens, one window alone has them.
      region: by window and place a number: cyclic shifts put parts of the image into one window that do not touch.
      image: rows and columns of the whole image.
      heads: merged with images in the first axis, or 1.
    """

    grid: Grid
    tokens: Int[np.ndarray, "w p"]
    places: Int[np.ndarray, "w p"]
    others: Int[np.ndarray, " e"]
    region: Int[np.ndarray, "w p"]
    image: Grid
    heads: int = 1

    @property
    def windows(self) -> int:
        return len(self.tokens)


class Site(NamedTuple):
    """A softmax of the network: where it is, and what becomes of it."""

    number: int  # among all softmaxes, from 0
    call: int | None  # among all products with values, from 0; None where none was seen
    kind: str
    shape: tuple[int, ...]  # for one image: windows, heads, queries, keys
    layout: Layout | None = None
    why: str = ""  # it is not measured

    def __str__(self) -> str:
        what = f"layer {self.number + 1}, {self.kind} of shape {self.shape}: "
        if self.layout is None:
            return what + f"left out, {self.why}"
        windows = f"{self.layout.windows} windows of " if self.layout.windows > 1 else ""
        others = f" and {len(self.layout.others)} other tokens" if len(self.layout.others) else ""
        return what + f"{windows}{self.layout.grid[0]}x{self.layout.grid[1]} patches{others}"


def survey(network: Network) -> tuple[list[Site], Seen]:
    """Returns all softmaxes that a network computes, and the output for the first image."""
    calls = list[tuple[str, tuple[int, ...]]]()
    seen = network.run(lambda call: calls.append((call.kind, call.shape)), network.images[:1])
    sites = list[Site]()
    for n in range(len(calls) + 1):
        for softmax in seen.unseen:
            if softmax.before == n:
                why = "no product of it with values was seen"
                sites.append(Site(len(sites), None, "softmax", softmax.shape, why=why))
        if n < len(calls):
            sites.append(Site(len(sites), n, *calls[n]))
    return sites, seen


def prove(
    network: Network, sites: list[Site], grid: Grid | None, tokens: Any, layers: Sequence[int] | None
) -> list[Site]:
    """Returns the softmaxes with their layouts; UserError where one cannot be proven.

    `grid` is that of all layers, where the user gives it, `tokens` its patches in the order of rows, which then are
    taken as they are; `layers` are the numbers of those to measure.
    """
    if not sites:
        raise UserError(f"no attention was found in {network.name}: it calls no softmax over three or more axes")
    if network.images.ndim not in (3, 4):
        raise UserError(f"images of shape {tuple(network.images.shape)}: allowed are (b, H, W, C) and (b, C, H, W)")
    asked = set(range(len(sites)) if layers is None else layers)
    if not asked <= set(range(len(sites))):
        raise UserError(f"layers={list(layers or [])}: allowed are numbers from 0 to {len(sites) - 1}")
    done, groups = dict[int, Site](), dict[tuple[int, int], list[Site]]()
    for site in sites:
        queries, keys = site.shape[-2:]
        if site.number not in asked:
            done[site.number] = site._replace(why=site.why or "not among layers=")
        elif site.call is None:
            if queries == keys:
                refuse(sites, site, done)
            done[site.number] = site
        elif queries != keys:
            what = "it pools tokens or reads a class token" if queries < keys else "its keys are fewer than its tokens"
            done[site.number] = site._replace(why=f"{queries} queries of {keys} keys: {what}")
        elif queries == 1:
            done[site.number] = site._replace(why="one token")
        elif grid is not None and tokens is not None and site.shape[0] == 1:
            done[site.number] = site._replace(layout=given(grid, tokens, queries))
        else:
            groups.setdefault((site.shape[0], queries), []).append(site)
    for (windows, count), group in groups.items():
        done |= {site.number: site for site in of_group(network, group, windows, count, grid, sites, done)}
    result = [done[n] for n in sorted(done)]
    if not any(site.layout for site in result):
        raise UserError(f"no attention over a grid of patches: {listed([str(site) for site in result], 2)}")
    return result


def given(grid: Grid, tokens: Any, count: int) -> Layout:
    """The layout that a user states."""
    tokens = np.asarray(tokens, int).ravel()
    if len(tokens) != math.prod(grid) or len({*tokens.tolist()} & {*range(count)}) != len(tokens):
        raise UserError(f"{len(tokens)} tokens= of {count}: allowed are {math.prod(grid)} different ones, {grid=}")
    others = np.setdiff1d(np.arange(count), tokens)
    return Layout(grid, tokens[None], np.arange(len(tokens))[None], others, np.zeros_like(tokens[None]), grid)


def refuse(sites: list[Site], site: Site, done: dict[int, Site], why: str = "") -> None:
    """Says what was seen, and what to give."""
    square = [s.number for s in sites if s.call is not None and s.shape[-1] == s.shape[-2] and s != site]
    rest = [n for n, other in done.items() if other.layout] or [n for n in square if n not in done]
    give = f"layers={rest} measures others" if rest else "grid=(rows, columns) and tokens= state where patches are"
    raise UserError(
        f"layer {site.number + 1} of {len(sites)}, {site.kind} of shape {site.shape} for one image: "
        f"{why or site.why or 'its tokens could not be mapped to places of the image'}; {give}"
    )


def of_group(
    network: Network, group: list[Site], windows: int, count: int, grid: Grid | None, sites: list[Site], done: dict
) -> list[Site]:
    """Returns the layers of one number of tokens with their layouts."""
    no_places = "its tokens are no places of the image, but perhaps channels"
    found, layout, spread, blocks = list[Site](), None, False, None
    for candidate in candidates(network, windows, count, grid):
        blocks = Blocks(candidate, network)
        (response,) = respond(network, blocks.masks(), group[:1])
        layout, spread = decode(response, blocks)
        if layout is not None or spread:
            break
    if blocks is None or (layout is None and not spread):
        refuse(sites, group[0], done)
        return []
    if layout is None:
        return [site._replace(why=no_places) for site in group]
    found.append(group[0]._replace(layout=layout))
    # Layers after the first: a random half of all blocks changes, and the tokens that follow must be those of before.
    cells = np.random.default_rng(1).random((2, math.prod(blocks.grid))) < 0.5
    answers = respond(network, blocks.expanded(cells.reshape(2, *blocks.grid)), group[1:], twice=False)
    for site, answer in zip(group[1:], answers, strict=True):
        moved = np.take_along_axis(answer, layout.tokens[None], axis=2)
        expected = np.broadcast_to(cells[:, layout.places], moved.shape)
        own, spread = layout, False
        if not all(row[cell].min() > 2 * row[~cell].max() for row, cell in zip(moved, expected, strict=True)):
            (response,) = respond(network, blocks.masks(), [site])
            own, spread = decode(response, blocks)
        if own is None and not spread:
            refuse(sites, site, done)
        found.append(site._replace(layout=own, why=no_places if own is None else ""))
    return found


def candidates(network: Network, windows: int, count: int, grid: Grid | None) -> list[tuple[Grid, Grid]]:
    """Returns grids that so many tokens may have, and the pixels of a patch: those that leave the fewest tokens first.

    Patches are square and as many as fit into the image, or also cut at its border, unless the grid is given.
    """
    size, total = network.size, windows * count
    if size is None:  # tokens: a grid that the user gives, or a square
        number = network.images.shape[1]
        side = math.isqrt(number)
        if grid is None and side**2 != number:
            raise UserError(f"{number} tokens are no square: give grid=(rows, columns)")
        return [(grid or (side, side), (1, 1))]
    found = dict[Grid, Grid]()
    if grid is not None:
        found[grid] = (max(1, size[0] // grid[0]), max(1, size[1] // grid[1]))
    else:
        for patch in range(1, max(size) + 1):
            fitting = size[0] // patch, size[1] // patch
            cut = -(-size[0] // patch), -(-size[1] // patch)
            for rows, columns in (fitting, cut, (fitting[0] - 1, fitting[1] - 1)):  # the last: of twice the stride
                exact = size[0] % patch == size[1] % patch == 0 and (rows, columns) == fitting
                if min(rows, columns) > 0 and (exact or (rows, columns) not in found):
                    found[rows, columns] = (patch, patch)
    counts = {total, *range(count + 1)}  # those of one window are whole images: heads in the axis of images
    ordered = sorted((grid for grid in found if math.prod(grid) in counts and math.prod(grid) > 1), key=math.prod)
    return [(grid, found[grid]) for grid in ordered[::-1][:CANDIDATES]]


class Blocks:
    """The blocks of an image of which each should be a token, and the numbers by which they are told apart."""

    def __init__(self, candidate: tuple[Grid, Grid], network: Network):
        self.grid, self.patch = candidate
        self.size = network.size
        # By axis: how many numbers there are of each kind, and those of every row or column.
        self.codes = [[(size, np.arange(size))] if size < 5 else self.pair(size) for size in self.grid]

    @staticmethod
    def pair(size: int) -> list[tuple[int, Int[np.ndarray, " n"]]]:
        """`i // n` and `i % n` of all rows or columns."""
        n = math.isqrt(size - 1) + 1
        return [(-(-size // n), np.arange(size) // n), (n, np.arange(size) % n)]

    def masks(self) -> Bool[np.ndarray, "k ..."]:
        """Pixels that change, image by image."""
        cells = []
        for axis, codes in enumerate(self.codes):
            for count, numbers in codes:
                for n in range(count):
                    cell = np.zeros(self.grid, bool)
                    np.moveaxis(cell, axis, 0)[numbers == n] = True
                    cells.append(cell)
        return self.expanded(np.stack(cells))

    def expanded(self, cells: Bool[np.ndarray, "k r c"]) -> Bool[np.ndarray, "k ..."]:
        """Blocks as pixels, in the middle of the image; what is left at the border belongs to the outermost ones."""
        if self.size is None:
            return cells.reshape(len(cells), -1)
        rows, columns = (
            np.clip((np.arange(size) - max(0, size - count * patch) // 2) // patch, 0, count - 1)
            for size, patch, count in zip(self.size, self.patch, self.grid, strict=True)
        )
        return cells[:, rows][:, :, columns]


def respond(
    network: Network, masks: np.ndarray, sites: list[Site], twice: bool = True
) -> list[Float[np.ndarray, "k w t"]]:
    """Returns by layer how much the values of every token change with each mask; ends after the last layer.

    UserError where one image, `twice` in a batch, does not give the same values.
    """
    wanted = {site.call: n for n, site in enumerate(sites) if site.call is not None}
    parts: list[list[np.ndarray]] = [[] for _ in sites]
    for first in range(0, len(masks) if sites else 0, AT_ONCE):
        count = len(masks[first : first + AT_ONCE])
        images = network.perturbed(masks[first : first + AT_ONCE])[: count + 1 + twice]
        number = -1

        def visit(call: Call, images: Any = images, count: int = count) -> str:
            nonlocal number
            number += 1
            if number in wanted:
                values = call.values()
                values = values.reshape(len(images), -1, *values.shape[1:])  # image, window, head, token, channel
                changes = np.sqrt(np.square(values - values[:1]).sum(axis=(2, 4)))
                scale = np.sqrt(np.square(values[0]).sum(axis=(1, 3)).mean())
                if twice and changes[-1].max() > (SAME if call.exact else 30 * SAME) * max(scale, 1e-30):
                    raise UserError(
                        f"{network.name} gives one image other values when it is called again: patches that are "
                        "masked, shuffled or dropped at random cannot be mapped to places"
                    )
                parts[wanted[number]].append(changes[1 : count + 1] / max(scale, 1e-30))
            if number == max(wanted):
                raise Enough
            return LOCAL

        with contextlib.suppress(Enough):
            network.run(visit, images)
    return [np.concatenate(part) for part in parts]


def decode(response: Float[np.ndarray, "k w t"], blocks: Blocks) -> tuple[Layout | None, bool]:
    """Returns the layout that responses to `blocks.masks()` prove, or None; and whether all tokens respond to all.

    Each place needs one token that responds most to its row and its column.
    """
    _, windows, count = response.shape
    heads = windows if windows > 1 and count >= math.prod(blocks.grid) else 1
    whole = response.reshape(len(response), -1)
    places, sharp, first = [], np.full(whole.shape[1], np.inf), 0
    for size, codes in zip(blocks.grid, blocks.codes, strict=True):
        best = []
        for n, _ in codes:
            part = whole[first : first + n]
            first += n
            best.append(part.argmax(axis=0))
            if n > 1:
                sharp = np.minimum(sharp, part.max(axis=0) / np.maximum(part.mean(axis=0), 1e-6))
        places.append(best[0] if len(codes) == 1 else best[0] * codes[1][0] + best[1])
        places[-1] = np.where(places[-1] < size, places[-1], -1)
    reached = whole.max(axis=0) > 1e-4
    spread = bool(reached.mean() > 0.5 and np.median(sharp[reached]) < SHARP)
    place = np.where((places[0] < 0) | (places[1] < 0), -1, places[0] * blocks.grid[1] + places[1])
    patches = math.prod(blocks.grid)
    chosen = np.argsort(-np.where(reached, sharp, 0), kind="stable")[: heads * patches]
    chosen = chosen[sharp[chosen] >= SHARP]
    expected = np.repeat(np.arange(patches), heads)
    if len(chosen) != len(expected) or (np.sort(place[chosen]) != expected).any():
        return None, spread
    if windows == 1 or heads > 1:
        orders = chosen[np.argsort(place[chosen], kind="stable")].reshape(patches, heads)
        orders = np.sort(orders, axis=1) - count * np.arange(heads)  # merged heads have the tokens of the first
        if (orders != orders[:, :1]).any():
            return None, spread
        order = orders[None, :, 0]
        others = np.setdiff1d(np.arange(count), order)
        own = blocks.grid, order, np.arange(patches)[None], others, np.zeros_like(order), blocks.grid
        return Layout(*own, heads), False
    return arranged(place.reshape(windows, count), blocks.grid), False


def arranged(places: Int[np.ndarray, "w t"], image: Grid) -> Layout | None:
    """Returns the layout of windows whose tokens are row by row a lattice of places, or None.

    A window that a cyclic shift made of several parts of the image has a number for each of them.
    """
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
    tokens = np.broadcast_to(np.arange(places.shape[1]), places.shape)
    return Layout((rows.shape[1], width), tokens, places, np.arange(0), regions, image)
