"""What the page knows of a run, as a dictionary that is ready for JSON."""

from collections.abc import Iterator

import jax
import numpy as np

from attn_cnn_jax.analysis.viewer.content import pack, quantise
from attn_cnn_jax.analysis.viewer.pictures import Picture, data_uri
from attn_cnn_jax.analysis.viewer.positions import position_parameters, position_scores
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encoder import space_to_depth
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import Run

MOST_HEADS = 1024
MOST_PIXELS = 128 * 128  # that a query can attend to, in the browser
MOST_CONTENT_PIXELS = 32 * 32  # where every pair of pixels is stored


def check(run: Run, size: tuple[int, int]) -> None:
    """UserError where a page would be of no use: no attention, or more of it than a browser can show."""
    model = run.config.model
    if model.name != "attention":
        raise UserError(f"a {model.name} has no attention to show")
    if size[0] % model.downsample or size[1] % model.downsample:
        raise UserError(f"--size={size[0]}x{size[1]}: both sides must be multiples of {model.downsample}")
    heads = sum(block.attention.num_heads for block in run.model.blocks)
    if heads > MOST_HEADS:
        raise UserError(f"this network has {heads} heads in all; a page shows at most {MOST_HEADS}")
    content = run.model.depends_on_content
    pixels, most = size[0] * size[1] // model.downsample**2, MOST_CONTENT_PIXELS if content else MOST_PIXELS
    if pixels > most:
        kind = "attention that depends on content" if content else "attention"
        raise UserError(f"{kind} over {pixels} pixels: a page shows at most {most}; choose a smaller --size")


def page_data(run: Run, size: tuple[int, int], *, title: str, epochs: list[dict] | None = None) -> dict:
    """All that does not depend on a picture.

    Args:
      run: the run.
      size: (H, W) of the pictures, in pixels.
      title: the page's title, plain text.
      epochs: positions recorded in training, as `history.recorded` returns them.

    Returns:
      `title`, `facts` (what the heading says), `size` [H, W] and `grid` [rows, columns], `channels`, `terms` (names of score terms),
      `contentTerms` (those that are stored with each picture), `layers` (`heads`, and `position` as
      `position_parameters` returns it), `epochs`, and `pictures`, an empty list.
    """
    check(run, size)
    model, downsample = run.config.model, run.config.model.downsample
    grid = (size[0] // downsample, size[1] // downsample)
    layers = [
        {"heads": block.attention.num_heads, "position": position_parameters(block.attention, grid)}
        for block in run.model.blocks
    ]
    content = content_names(run)
    positions = [layer["position"]["term"] for layer in layers if layer["position"]]
    return {
        "title": title,
        "facts": {
            "dataset": run.config.dataset.name,
            "encoding": model.encoding + (" + content" if model.content else ""),
            "step": int(run.step),
        },
        "size": list(size),
        "grid": list(grid),
        "channels": model.image_shape[2],
        "terms": positions[:1] + content,
        "contentTerms": content,
        "layers": layers,
        "epochs": epochs or [],
        "pictures": [],
    }


def picture_data(run: Run, picture: Picture, class_names: tuple[str, ...]) -> dict:
    """A picture, what the network takes it for, and the content scores of every head.

    Returns:
      `name`, `label`, `prediction`, `confidence`, `source` (a data URI), and `content`: None, or `codes` as
      `content.pack` writes them and `heads[layer][head][term]`, a pair of rank and step; factors stand in the
      order of layers, heads and terms, queries before keys.
    """
    probabilities = run.predict(picture.pixels[None])[0]
    prediction = int(probabilities.argmax())
    return {
        "name": picture.name,
        "label": picture.label,
        "prediction": class_names[prediction] if class_names else f"class {prediction}",
        "confidence": round(float(probabilities[prediction]), 4),
        "source": data_uri(picture.pixels),
        "content": content_data(run, picture.pixels) if run.model.depends_on_content else None,
    }


def content_data(run: Run, pixels: np.ndarray) -> dict:
    """Quantised content scores of a picture `(H, W, C)`: what `picture_data` calls `content`."""
    codes, heads = [], []
    for attention, terms in zip(_attentions(run), content_scores(run, pixels), strict=True):
        grid = tuple(size // run.config.model.downsample for size in pixels.shape[:2])
        position = np.broadcast_to(position_scores(attention, grid), next(iter(terms.values())).shape)
        heads.append([])
        for head in range(attention.num_heads):
            factors = quantise({name: term[head] for name, term in terms.items()}, position[head])
            heads[-1].append({name: [f.codes.shape[1], f.step] for name, f in factors.items()})
            codes += [f.codes for f in factors.values()]
    return {"codes": pack(codes), "heads": heads}


def content_scores(run: Run, pixels: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """For each layer, its content terms by name: `(h, q, p)` float64, flattened pixels."""
    skeleton, *arrays = split(run.model)

    @jax.jit
    def all_layers(arrays, x):
        model = join(skeleton, *arrays)
        x = model.embedding(space_to_depth(x, model.downsample))
        layers = []
        for block in model.blocks:
            layers.append(block.attention.content_terms(x))
            x = block(x)
        return layers

    for terms in all_layers(arrays, run.normalised(pixels[None])):
        yield {name: _flat(np.asarray(term, np.float64)[0]) for name, term in terms.items()}


def content_names(run: Run) -> list[str]:
    """Names of the network's content terms, found without computing them."""
    if not run.model.depends_on_content:
        return []
    size, downsample = run.config.model.image_shape, run.config.model.downsample
    x = jax.ShapeDtypeStruct(
        (1, size[0] // downsample, size[1] // downsample, run.config.model.hidden_size), run.config.model.dtype
    )
    attention = _attentions(run)[0]
    return list(jax.eval_shape(attention.content_terms, x))


def _attentions(run):
    return [block.attention for block in run.model.blocks]


def _flat(scores: np.ndarray) -> np.ndarray:
    """`(h, i, j, k, l) -> (h, q, p)`."""
    heads, height, width = scores.shape[:3]
    return scores.reshape(heads, height * width, height * width)
