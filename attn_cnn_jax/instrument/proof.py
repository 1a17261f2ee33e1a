"""Proves the layouts of a network: every softmax that it computes is measured, left out and named, or refused."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.instrument.adapters import Call
from attn_cnn_jax.instrument.experiment import (
    CHANNELS,
    NO_GRID,
    QUERIES,
    UNREACHED,
    decode,
    halves,
    pixels,
    respond,
    strips,
)
from attn_cnn_jax.instrument.layer import between
from attn_cnn_jax.instrument.layout import Layout, given
from attn_cnn_jax.instrument.network import Network

NAMED = CHANNELS, UNREACHED, QUERIES  # what layers are left out for that have no places
ROUNDING, STILL = 1e-12, 1e-8  # of squares: what is rounding, and what says too little of queries
SHARPLY = 4  # times the energy of tokens that ought not to change, of those that ought to
MORE = 1.5  # the same where places are blurred; asked for of so many, in the image or in each of its windows
PLACES, IN_WINDOWS = 64, 49
EXACT = 1e6  # the same where nothing but attention mixes places
DRAWS = 8  # of noise: a layout that one does not prove needs two halves of them to agree


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


def survey(network: Network) -> tuple[list[Site], Any]:
    """Returns all softmaxes that a network computes, and its output for the first image."""
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
    return sites, seen.output


def prove(network: Network, grid: Grid | None, tokens: Any, layers: Sequence[int] | None) -> tuple[list[Site], Any]:
    """Returns the softmaxes with their layouts, and the output for the first image; UserError where one is not proven.

    `grid` is that of all layers, where the user gives it, `tokens` its patches in the order of rows, which then are
    taken as they are; `layers` are the numbers of those to measure, from 0.
    """
    sites, output = survey(network)
    if not sites:
        raise UserError(
            f"no attention was found in {network.name}: it calls no softmax over three or more axes, or hides it"
        )
    if network.images.ndim not in (3, 4):
        raise UserError(f"images of shape {tuple(network.images.shape)}: allowed are (b, H, W, C) and (b, C, H, W)")
    asked = set(range(len(sites)) if layers is None else layers)
    if not asked <= set(range(len(sites))):
        raise UserError(f"layers={list(layers or [])}: allowed are numbers from 0 to {len(sites) - 1}")
    done, groups, refused = list[Site](), dict[tuple[int, ...], list[Site]](), list[Site]()
    for site in sites:
        queries, keys = site.shape[-2:]
        if site.number not in asked:
            done.append(site._replace(why=site.why or "not among layers="))
        elif site.call is None:
            (refused if queries == keys else done).append(site)
        elif queries != keys:
            done.append(site._replace(why=f"{queries} queries of {keys} keys: not one key for each query"))
        elif queries == 1:
            done.append(site._replace(why="one token"))
        elif grid is not None and tokens is not None and site.shape[0] == 1:
            done.append(site._replace(layout=given(grid, tokens, queries)))
        else:
            groups.setdefault(site.shape, []).append(site)
    mapped, known = list[Site](), -1
    while known < len(network.placeless):  # a layer after one whose queries are no places has none either
        known = len(network.placeless)
        mapped = [site for group in groups.values() for site in of_group(network, group, grid)]
        network.placeless.update(site.call for site in mapped if site.why == QUERIES and site.call is not None)
    for site in mapped:
        (done if site.layout or site.why in NAMED else refused).append(site)
    if refused:
        refuse(sites, refused, [site.number for site in done if site.layout])
    done.sort(key=lambda site: site.number)
    if not any(site.layout for site in done):
        raise UserError(f"no attention over a grid of patches: {listed([str(site) for site in done], 2)}")
    return done, output


def refuse(sites: list[Site], refused: list[Site], measured: list[int]) -> None:
    """Says what was seen, and what to give."""
    first, *more = sorted(refused, key=lambda site: site.number)
    give = "grid=(rows, columns) and tokens= state where patches are"
    if any(site.call is None for site in refused):
        give = "attention that you save can be inspected as an array"
    if measured:
        give = f"layers={sorted(measured)}, numbers from 0, measures the others"
    raise UserError(
        f"layer {first.number + 1} of {len(sites)}, {first.kind} of shape {first.shape} for one image: {first.why}"
        f"{f' (and {len(more)} layers more)' if more else ''}; {give}"
    )


def of_group(network: Network, group: list[Site], grid: Grid | None) -> list[Site]:
    """Returns layers of one shape with their layouts, or why they have none.

    Strips map the first one. Then random halves of all places change, with other noise: layers whose tokens follow them
    sharply have theirs where the first one has. Those for which one of the two fails are mapped by more strips.
    """
    (windows, _, _, count), calls = group[0].shape, [site.call or 0 for site in group]
    of, found = strips(network, grid, windows * count), dict[int, Layout | str]()
    (energy,) = respond(network, of.masks, calls[:1], twice=True)
    layout = decode(energy, of, grid)
    if isinstance(layout, Layout):
        checked = by_halves(network, layout, calls, of.size)
        found |= {call: layout if there else QUERIES for call, (sharp, there) in checked.items() if sharp}
    elif layout in NAMED:
        found[calls[0]] = layout
    found |= by_more_strips(network, group[0].shape, [call for call in calls if call not in found], grid)
    why = NO_GRID if grid is None else f"{NO_GRID} as {grid[0]}x{grid[1]} patches"
    layouts = [found.get(call, why) for call in calls]
    return [
        site._replace(layout=x) if isinstance(x, Layout) else site._replace(why=x)
        for site, x in zip(group, layouts, strict=True)
    ]


def by_more_strips(
    network: Network, shape: tuple[int, ...], calls: list[int], grid: Grid | None
) -> dict[int, Layout | str]:
    """Returns by call the layout, or why there is none, in which two halves of several draws of noise agree.

    The second time strips are finer, in case the axis of heads is one of windows. Then random halves of all places are
    tried again; where patches overlap, the halves of windows have to say that queries are where keys are.
    """
    (windows, heads, _, count), size = shape, pixels(network, grid)
    found = dict[int, Layout | str]()
    for finer, draws in ((1, 2), (heads, DRAWS)):
        of, energies = strips(network, grid, windows * finer * count), dict[int, list[np.ndarray]]()
        for draw in range(draws):
            if not (left := [call for call in calls if call not in found]):
                break
            for call, energy in zip(left, respond(network, of.masks, left, draw), strict=True):
                energies.setdefault(call, []).append(energy)
                if draw % 2:
                    one, other = (decode(np.sum(energies[call][n::2], axis=0), of, grid) for n in range(2))
                    if same(one, other) and one != NO_GRID:
                        found[call] = one
    rough = {call: x for call, x in found.items() if isinstance(x, Layout)}
    while rough:
        layout = next(iter(rough.values()))
        alike = [call for call in rough if same(rough[call], layout)]
        rough = {call: x for call, x in rough.items() if call not in alike}
        for x in (*layout.near(size), layout._replace(centres=None)):  # without, patches overlap
            checked = by_halves(network, x, alike, size) if alike else {}
            alike = [call for call, (sharp, _) in checked.items() if not sharp and x.centres is not None]
            found |= {call: x if there else QUERIES for call, (_, there) in checked.items() if call not in alike}
    return found


def by_halves(network: Network, layout: Layout, calls: list[int], size: Grid) -> dict[int, tuple[bool, bool]]:
    """Returns by call whether the values of its tokens follow halves of all places sharply, and whether queries do.

    Queries have to do so sharply where values do exactly. Where convolutions blur both, a little is enough, and of few
    places, of which a half may move more by chance, nothing is asked.
    """
    cells, masks = halves(layout, size)
    queries = dict[int, float]()
    energies = respond(
        network, masks, calls, 1, look=lambda call: queries.update({call.number: attends(call, layout, cells)})
    )
    blurred = MORE if layout.places.shape[1] >= (PLACES if layout.windows == 1 else IN_WINDOWS) else 0
    values = {call: follows(energy, layout, cells) for call, energy in zip(calls, energies, strict=True)}
    return {call: (x > SHARPLY, queries[call] > (SHARPLY if x > EXACT else blurred)) for call, x in values.items()}


def same(one: Layout | str, other: Layout | str) -> bool:
    """Whether two experiments found the same."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    arrays = zip((one.tokens, one.places, one.others), (other.tokens, other.places, other.others), strict=True)
    return one.image == other.image and all(np.array_equal(a, b) for a, b in arrays)


def follows(energy: Float[np.ndarray, "n w h t"], layout: Layout, cells: Bool[np.ndarray, "n P"]) -> float:
    """Returns how many times as much all tokens that ought to change with a half of places do so as any other."""
    by_window = energy.sum(axis=1 if layout.swapped else 2)
    moved = np.take_along_axis(by_window, layout.tokens[None], axis=2)
    ought = np.broadcast_to(cells[:, layout.places], moved.shape).reshape(len(cells), -1)
    moved = moved.reshape(len(cells), -1)
    least = moved.min(axis=1, where=ought, initial=np.inf)
    return float((least / np.maximum(moved.max(axis=1, where=~ought, initial=0), 1e-30)).min())


def attends(call: Call, layout: Layout, cells: Bool[np.ndarray, "n P"]) -> float:
    """Returns how many times as much queries that ought to change with a half of places do so as others.

    As seen in their attention to keys that do not change. Infinite where images hardly change attention.
    """
    part, _ = between(layout.by_window(call.attention()), layout)
    own, *others = part.reshape(1 + len(cells), layout.windows, *part.shape[1:])
    sums = np.zeros(3)  # squares of what moves: queries that change, others, rounding
    for changed, ought in zip(others, cells[:, layout.places], strict=True):
        if np.square(changed - own).sum() > STILL * np.square(own).sum():
            first, second = (x * ~ought[:, None, None] for x in (own, changed))
            first, second = (x / np.maximum(x.sum(axis=-1, keepdims=True), 1e-30) for x in (first, second))
            moved, size = (np.square(x).sum(axis=(1, 3)) for x in (second - first, first))
            sums += moved[ought].mean(), moved[~ought].mean(), ROUNDING * size.mean()
    return np.inf if not sums[2] else float(sums[0] / sums[1:].sum())
