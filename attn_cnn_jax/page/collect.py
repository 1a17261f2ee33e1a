"""What the page knows of a run, as a dictionary that is ready for JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from attn_cnn_jax.arrays import AnyArray, Grid
from attn_cnn_jax.config.network import encoding_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.content import pack, quantise
from attn_cnn_jax.page.history import recorded_epochs
from attn_cnn_jax.page.pictures import Picture, data_uri
from attn_cnn_jax.runs.run import Run

MOST_HEADS = 1024
MOST_PIXELS = 128 * 128  # that a query can attend to, in the browser
MOST_SIDE = 512  # pixels; what is computed for the columns of a row grows as their square
MOST_CONTENT_PIXELS = 32 * 32  # where every pair of pixels is stored
MOST_VALUES = 4_000_000  # that the browser computes when the query moves


def check(run: Run, size: tuple[int, int]) -> None:
    """UserError where a page would be of no use: no attention, or more of it than a browser can show."""
    model = run.config.model
    if model.name != "attention":
        raise UserError(f"a {model.name} has no attention to show")
    if size[0] % model.downsample or size[1] % model.downsample:
        raise UserError(f"--size={size[0]}x{size[1]}: both sides must be multiples of {model.downsample}")
    if not all(np.all(np.isfinite(array)) for array in split(run.model)[1].values()):
        raise UserError(f"the parameters at step {run.step} are not finite numbers: choose an earlier --step")
    heads = sum(block.attention.num_heads for block in run.model.blocks)
    if heads > MOST_HEADS:
        raise UserError(f"this network has {heads} heads in all; a page shows at most {MOST_HEADS}")
    content = run.model.depends_on_content
    pixels, most = size[0] * size[1] // model.downsample**2, MOST_CONTENT_PIXELS if content else MOST_PIXELS
    if pixels > most:
        kind = "attention that depends on content" if content else "attention"
        raise UserError(f"{kind} over {pixels} pixels: a page shows at most {most}; choose a smaller --size")
    if max(size) > (side := MOST_SIDE * model.downsample):
        raise UserError(f"a side of {max(size)} pixels: a page shows at most {side}; choose a smaller --size")
    if heads * pixels > MOST_VALUES:
        raise UserError(f"{heads} heads over {pixels} pixels are too much for a page; choose a smaller --size")


def page_data(run: Run, size: tuple[int, int], *, title: str, workdir: Path | None = None) -> dict:
    """All that does not depend on a picture.

    Args:
      run: the run.
      size: (H, W) of the pictures, in pixels.
      title: the page's title, plain text.
      workdir: the run directory, whose recorded positions become `epochs`; None for none.

    Returns:
      `title`, `facts` (what the heading says), `size` [H, W] and `grid` [rows, columns], `channels`, `terms` (names of
      score terms), `contentTerms` (those that are stored with each picture), `layers` (`heads`; `position` as
      `Encoding.page_parameters` returns it; `gate`, the weight of position attention of each head, or None where scores
      are added before one softmax), `epochs`, `network`, None (see network.py), and `pictures`, an empty
      list.
    """
    check(run, size)
    model, downsample = run.config.model, run.config.model.downsample
    grid = (size[0] // downsample, size[1] // downsample)
    layers = [
        {
            "heads": block.attention.num_heads,
            "position": in_json(block.attention.position.page_parameters(grid)),
            "gate": None if block.attention.gate is None else in_json(jax.nn.sigmoid(block.attention.gate[...])),
        }
        for block in run.model.blocks
    ]
    content = content_names(run)
    position = layers[0]["position"]["term"] if layers[0]["position"] else None
    own = [] if position is None else [position]
    # As the paper writes them: an encoding with content terms of its own ends with position (eq. 8).
    terms = own + content if encoding_of(model).accepts_content else content + own
    heads = [layer["heads"] for layer in layers]
    return {
        "title": title,
        "facts": {
            "dataset": run.config.dataset.name,
            "encoding": model.encoding + " + content" * model.content + " (gated)" * model.gate,
            "step": int(run.step),
        },
        "size": list(size),
        "grid": list(grid),
        "channels": model.image_shape[2],
        "terms": terms,
        "contentTerms": content,
        "layers": layers,
        "epochs": recorded_epochs(workdir, run.step, heads, position, run.seed) if workdir else [],
        "network": None,
        "pictures": [],
    }


def picture_entries(
    run: Run, pictures: list[Picture], class_names: tuple[str, ...], *, with_content: bool = True
) -> Iterator[dict]:
    """Pictures, what the network takes them for, and the content scores of every head.

    Args:
      run: the run.
      pictures: of the size of the page.
      class_names: one per class, or none where they are unknown.
      with_content: whether content scores are stored; not needed where the page computes the network.

    Yields:
      For each picture `name`, `label`, `prediction`, `confidence`, `source` (a data URI), and `content`: None, or
      what `content_data` returns.
    """
    if not pictures:
        return
    predictions = run.predict(np.stack([picture.pixels for picture in pictures]))
    scores = content_scorer(run) if with_content and run.model.depends_on_content else None
    for picture, probabilities in zip(pictures, predictions, strict=True):
        best = int(probabilities.argmax())
        yield {
            "name": picture.name,
            "label": picture.label,
            "prediction": class_names[best] if best < len(class_names) else f"class {best}",
            "confidence": round(float(probabilities[best]), 4),
            "source": data_uri(picture.pixels),
            "content": content_data(run, scores(picture.pixels)) if scores else None,
        }


def content_data(run: Run, layers: Sequence[Mapping[str, AnyArray]]) -> dict:
    """Quantised content scores of a picture.

    Args:
      run: the run.
      layers: for each layer, its content terms by name, `(h, i, j, k, l)` each.

    Returns:
      `codes` as `content.pack` writes them, and `heads[layer][head][term]`, a pair of rank and step; factors
      stand in the order of layers, heads and terms, queries before keys.
    """
    codes, heads = [], []
    for block, terms in zip(run.model.blocks, layers, strict=True):
        _, height, width, _, _ = next(iter(terms.values())).shape
        pixels = height * width
        terms = {name: np.asarray(term, np.float64).reshape(-1, pixels, pixels) for name, term in terms.items()}
        position = position_scores(block.attention, (height, width))
        heads.append([])
        for head in range(block.attention.num_heads):
            factors = quantise({name: term[head] for name, term in terms.items()}, position[head])
            heads[-1].append({name: [f.codes.shape[1], f.step] for name, f in factors.items()})
            codes += [f.codes for f in factors.values()]
    return {"codes": pack(codes), "heads": heads}


def content_scorer(run: Run) -> Callable[[UInt8[np.ndarray, "H W C"]], list[dict[str, Float[Array, "h i j k l"]]]]:
    """A function from a picture to the content terms of each layer, by name."""
    skeleton, *arrays = split(run.model)

    @jax.jit
    def all_layers(arrays, x):
        layers = []
        for layer in join(skeleton, *arrays)(x)[1]["layers"]:
            heads, *pixels = layer["attention"].shape[1:]  # some terms are the same for all queries
            terms = layer["separate_scores"]
            layers.append({name: jnp.broadcast_to(term[0], (heads, *pixels)) for name, term in terms.items()})
        return layers

    return lambda pixels: all_layers(arrays, run.normalised(pixels[None]))


def position_scores(attention: SelfAttention, grid: Grid) -> Float[np.ndarray, "h q p"]:
    """All position scores of a layer; zeros where it has none."""
    pixels = grid[0] * grid[1]
    total = np.zeros((attention.num_heads, pixels, pixels))
    for term in attention.position_terms(*grid).values():
        total += np.asarray(term, np.float64).reshape(total.shape)
    return total


def in_json(value: Any) -> Any:
    """A value with its arrays as nested lists, with no more digits than float32 has."""
    if isinstance(value, dict):
        return {name: in_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | jax.Array):
        return in_json(np.asarray(value, np.float32).tolist())
    if isinstance(value, list):
        return [in_json(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def content_names(run: Run) -> list[str]:
    """Names of the network's content terms, found without computing them."""
    if not run.model.depends_on_content:
        return []
    size, downsample = run.config.model.image_shape, run.config.model.downsample
    x = jax.ShapeDtypeStruct(
        (1, size[0] // downsample, size[1] // downsample, run.config.model.hidden_size), run.config.model.dtype
    )
    return list(jax.eval_shape(run.model.blocks[0].attention.separate_terms, x))
