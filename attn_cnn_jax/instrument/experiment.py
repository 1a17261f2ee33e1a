"""The experiment that finds which token of a layer is which place of the image.

All attention is replaced by that of every token to itself, so that a change of some pixels stays where it is; that of
queries which are no places by nothing, as what they average is at no place of theirs. Strips of
the image change, one at a time, rows and then columns, and the values of a layer say how much every token responds.
The centre of a token's responses is where it looks: tokens are proven to be places where their centres make a lattice,
whatever the patches are: beside each other, overlapping (a convolutional stem), or as many as fit into the image.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import LOCAL, NOTHING, Call
from attn_cnn_jax.instrument.layout import Lattice, Layout, arranged, lattice_of_windows
from attn_cnn_jax.instrument.network import Network

AT_ONCE = 16  # perturbed images per pass
MOST = 64  # strips of an axis
SAME = 1e-3  # relative difference between two calls with one image, from rounding
REACHED = 1e-8  # least energy of a response, of the mean energy of a token,
WEAK = 1e-4  # and of the strongest response
SHARP = 1.2  # how much more energy a place has in the strip it responds to most than in the mean one
ALIKE = 0.1  # of the image: standard deviation of centres; of patches it is 0.2 to 0.3
TOGETHER = 0.12  # most by which the tokens of a head may be displaced on the mean, in steps
SCATTER = 0.35  # and root mean square
CHANNELS = "its tokens respond to the whole image alike: perhaps channels, or places that convolutions before blur"
UNREACHED = (
    "no change of the image reaches it while attention is local: as after a layer of fewer queries than keys or of "
    "queries that are no places, or where random weights are too small"
)
PADDED = "some windows have tokens that are no patches (padding): try images that windows divide"
QUERIES = "its queries are no places, or not those of its keys, as in attention between two sequences"
NO_GRID = "its tokens could not be mapped to places of the image"


class Enough(Exception):
    """Ends a run after the last layer that is needed."""


class Strips(NamedTuple):
    """Strips of an image, rows and then columns, and where the middle of each is."""

    masks: Bool[np.ndarray, "k H W"]
    middles: tuple[np.ndarray, np.ndarray]
    size: Grid


def strips(network: Network, grid: Grid | None, tokens: int) -> Strips:
    """Returns strips about as high as a patch is, if so many square ones fill the image."""
    size = pixels(network, grid)
    height = max(1, round(size[0] / math.sqrt(tokens * size[0] / size[1])), -(-max(size) // MOST))
    masks, middles = [], []
    for axis, length in enumerate(size):
        strip = np.arange(length) // height
        within = strip == np.arange(strip[-1] + 1)[:, None]
        masks.append(np.broadcast_to(np.expand_dims(within, 2 - axis), (len(within), *size)))
        middles.append(within @ (np.arange(length) + 0.5) / within.sum(axis=1))
    return Strips(np.concatenate(masks), (middles[0], middles[1]), size)


def pixels(network: Network, grid: Grid | None) -> Grid:
    """Rows and columns of pixels; of images that are tokens already, their grid, which is a square if none is given."""
    if network.size is not None:
        return network.size
    number = network.images.shape[1]
    rows, columns = grid or (math.isqrt(number), math.isqrt(number))
    if rows * columns != number:
        shape = tuple(network.images.shape)
        raise UserError(
            f"images of shape {shape} are {number} tokens each, which are no square: give grid=(rows, columns), or "
            "images with an axis of channels"
        )
    return rows, columns


def halves(layout: Layout, size: Grid) -> tuple[Bool[np.ndarray, "n P"], Bool[np.ndarray, "n H W"]]:
    """Returns halves of all places, and their pixels.

    Random ones of patches that do not overlap: one, of up to 100 places two, of up to 16 so many that no two places are
    in the same ones. Of others the upper one and the left one of every window.
    """
    count, patch = math.prod(layout.image), layout.patch(size)
    if patch is None:
        sides = [n for n, length in enumerate(layout.grid) if length > 1]
        inside = np.indices(layout.grid).reshape(2, -1)[sides] < np.array(layout.grid)[sides, None] / 2
        cells = np.zeros((len(sides), count), bool)
        cells[:, layout.places] = inside[:, None]
    else:
        draws = 1 + (count <= 100) if count > 16 else math.ceil(math.log2(count))
        cells = (np.random.default_rng(1).permutation(count) >> np.arange(draws)[:, None] & 1).astype(bool)
    rows, columns = (
        np.arange(length) * most // length if patch is None else np.minimum(np.arange(length) // patch[axis], most - 1)
        for axis, (length, most) in enumerate(zip(size, layout.image, strict=True))
    )
    return cells, cells.reshape(-1, *layout.image)[:, rows][:, :, columns]


def in_place_of(call: Call, network: Network) -> str:
    """What an experiment puts in the place of attention."""
    return NOTHING if call.number in network.placeless else LOCAL


def values_of(network: Network, number: int) -> Float[np.ndarray, "n h p c"]:
    """The values of one call for the first image alone, with all attention before it local."""
    found = list[np.ndarray]()

    def visit(call: Call) -> str:
        if call.number == number:
            found.append(call.values())
            raise Enough
        return in_place_of(call, network)

    with contextlib.suppress(Enough):
        network.run(visit, network.images[:1])
    return found[0]


def respond(
    network: Network,
    masks: Bool[np.ndarray, "k H W"],
    calls: list[int],
    draw: int = 0,
    twice: bool = False,
    look: Callable[[Call], None] = lambda call: None,
) -> list[Float[np.ndarray, "k w h t"]]:
    """Returns by call the energy by which the values of every token change with each mask; ends after the last call.

    Relative to the mean energy of a token. UserError where one image, `twice` in a batch, does not give the same.
    `look` sees the calls too.
    """
    parts: dict[int, list[np.ndarray]] = {call: [] for call in calls}
    for first in range(0, len(masks), AT_ONCE):
        count = len(masks[first : first + AT_ONCE])
        images = network.perturbed(masks[first : first + AT_ONCE], draw)[: count + 1 + twice]

        def visit(call: Call, images: Any = images, count: int = count) -> str:
            if call.number in parts:
                look(call)
                values = call.values()
                if len(values) % len(images):
                    what = f"a layer of {network.name} has shape {call.shape} for {len(images)} images"
                    raise UserError(f"{what}: its first axis is not of images")
                values = values.reshape(len(images), -1, *values.shape[1:])  # image, window, head, token, channel
                energy = np.square(values - values[:1]).sum(axis=-1)
                scale = max(np.square(values[0]).sum(axis=-1).mean(), 1e-30)
                same = np.square(SAME if call.exact else 30 * SAME) * scale
                if twice and energy[-1].max() > same:
                    again = np.square(values_of(network, call.number) - values_of(network, call.number)).sum(axis=-1)
                    if again.max() > same:
                        raise UserError(
                            f"{network.name} gives one image other values when it is called again: patches that are "
                            "masked, shuffled or dropped at random cannot be mapped to places"
                        )
                    raise UserError(
                        f"a layer of {network.name} does not hold one image after another: its first axis is of "
                        "something else, or of that before images"
                    )
                parts[call.number].append(energy[1 : count + 1] / scale)
            if call.number == max(parts):
                raise Enough
            return in_place_of(call, network)

        with contextlib.suppress(Enough):
            network.run(visit, images)
    return [np.concatenate(part) for part in parts.values()]


def centres_of(energy: Float[np.ndarray, "k ..."], middles: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres of responses, rows and columns in pixels, and how sharp they are."""
    parts = np.split(energy, [len(middles[0])])
    centres = [
        np.tensordot(middle, part, 1) / np.maximum(part.sum(axis=0), 1e-30)
        for middle, part in zip(middles, parts, strict=True)
    ]
    sharp = [part.max(axis=0) / np.maximum(part.mean(axis=0), 1e-30) for part in parts if len(part) > 1]
    return np.stack(centres), np.min(sharp, axis=0)


def decode(energy: Float[np.ndarray, "k w h t"], of: Strips, grid: Grid | None) -> Layout | str:
    """Returns the layout that responses to strips prove, or why there is none.

    Of the two axes before tokens either may be windows, whose tokens make one lattice together, or heads, which have to
    agree on where each token is.
    """
    _, first, second, count = energy.shape
    axes = energy.transpose(1, 2, 0, 3)
    orders = [axes.swapaxes(0, 1), axes.reshape(first * second, 1, -1, count), axes]  # heads, windows, strip, token
    whole = energy.reshape(len(energy), -1)
    some, alone = reached(whole), centres_of(whole, of.middles)[0]
    if not some.any():
        return UNREACHED
    if some.mean() > 0.5 and (alone[:, some].std(axis=1) < ALIKE * np.array(of.size)).all():
        return CHANNELS
    why = NO_GRID
    for number, heads in enumerate(orders):
        windows = heads.shape[1]
        if number and windows == (first, first, 1)[number]:
            continue  # as before
        whole = heads.sum(axis=0).swapaxes(0, 1)
        centres, sharp = centres_of(whole, of.middles)
        patch = reached(whole) & (sharp >= SHARP)
        if windows > 1 and not patch.all():
            why = PADDED if first > 1 and len(np.unique(patch.sum(axis=1))) > 1 else why
            continue
        tokens = np.flatnonzero(patch[0])
        found = lattice_of_windows(centres[:, :, tokens], of.size, grid)
        if found is None or not together(heads[..., tokens], centres[:, :, tokens], found, of):
            continue
        if windows == 1:
            order = tokens[np.argsort(found.places)][None]
            own = np.arange(len(tokens))[None], np.setdiff1d(np.arange(count), tokens), np.zeros_like(order)
            layout = Layout(found.grid, order, *own, found.grid, first)
        else:
            layout = arranged(found.places.reshape(windows, -1), found.grid)
        if layout is not None:
            return layout._replace(swapped=first if number == 2 else 0, centres=found.centres)
    return why


def reached(energy: Float[np.ndarray, "k ..."]) -> Bool[np.ndarray, "..."]:
    """Which tokens respond to a strip by more than rounding."""
    most = energy.max(axis=0)
    return most > max(REACHED, WEAK * most.max())


def together(heads: np.ndarray, centres: np.ndarray, found: Lattice, of: Strips) -> bool:
    """Whether each of the heads `(h, w, k, t)` has its tokens where all have them: none is a window in disguise."""
    steps = [
        np.ptp(mean) / (len(mean) - 1) if len(mean) > 1 else length
        for mean, length in zip(found.centres, of.size, strict=True)
    ]
    for head in heads:
        moved = (centres_of(head.swapaxes(0, 1), of.middles)[0] - centres).reshape(2, -1) / np.array(steps)[:, None]
        if abs(moved.mean(axis=1)).max() > TOGETHER or np.square(moved).mean(axis=1).max() > SCATTER**2:
            return False
    return True
