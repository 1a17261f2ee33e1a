"""What it costs to replace heads: the network runs with some heads' attention replaced, cheapest first."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import Call
from attn_cnn_jax.instrument.kernels import INSTEAD
from attn_cnn_jax.instrument.layer import Layer, replaced
from attn_cnn_jax.instrument.layout import Layout
from attn_cnn_jax.instrument.network import Network
from attn_cnn_jax.instrument.output import Output, as_output
from attn_cnn_jax.instrument.proof import Site

Head = tuple[int, int]  # a layer of the report and a head, from 0


class Watched(NamedTuple):
    """The network of a report, for what is measured when it is asked for."""

    network: Network
    sites: list[Site]
    output: Output
    labels: Any  # None: its own classes


def cheapest(layers: Sequence[Layer]) -> list[Head]:
    """Returns all heads, those first whose averages change least with their kernel."""
    by_layer = [[] if layer.output_change is None else layer.output_change.tolist() for layer in layers]
    changes = {(n, h): change for n, layer in enumerate(by_layer) for h, change in enumerate(layer)}
    return sorted(changes, key=lambda head: changes[head])


def run_with(watched: Watched, layers: Sequence[Layer], heads: Sequence[Head], instead: list[np.ndarray]) -> Output:
    """Returns the output with the attention of some heads replaced."""
    network, of_call = watched.network, {watched.sites[layer.number].call: n for n, layer in enumerate(layers)}

    def visit(call: Call) -> np.ndarray | None:
        n = of_call.get(call.number)
        chosen = [head for layer, head in heads if layer == n]
        if n is None or not chosen:
            return None
        layout = layers[n].layout
        return layout.as_it_was(replaced(layout.by_window(call.attention()), instead[n], layout, chosen))

    return as_output(network, network.run(visit).output, len(network))


def compared(own: Output, output: Output, classes: Any, layout: Layout, name: str) -> dict[str, float]:
    """Returns how outputs differ: of logits the largest, and accuracy by `name`; of features the mean cosine.

    Features of tokens are those of patches and of other tokens, where there are as many as in a layer of this layout.
    """
    scale = max(np.abs(own.array).max(), 1e-30)
    row = {"logits": float(np.abs(output.array - own.array).max() / scale)}
    if own.classifies:
        return row | {name: float((output.array.argmax(axis=1) == classes).mean())}
    product = (own.array * output.array).sum(axis=-1)
    lengths = np.linalg.norm(own.array, axis=-1) * np.linalg.norm(output.array, axis=-1)
    cosine = product / np.maximum(lengths, 1e-30)
    patches, others = layout.tokens[0], layout.others
    if own.array.ndim != 3 or not len(others) or own.array.shape[1] == len(patches):
        return row | {"cosine": float(cosine.mean())}
    if own.array.shape[1] != len(patches) + len(others):
        return row
    of_patches, of_other = cosine[:, patches].mean(), cosine[:, others[0]].mean()
    return row | {"cosine": float(of_patches), "cosine_class_token": float(of_other)}


def curve(
    watched: Watched, layers: Sequence[Layer], counts: Sequence[int], kernel_size: int, instead: str, order: list[Head]
) -> list[dict[str, float]]:
    """Returns a row for every number of heads replaced, in their order; see `Report.curve`."""
    if instead not in INSTEAD:
        raise UserError(f"instead={instead!r}: allowed are {', '.join(INSTEAD)}")
    own, labels = watched.output, watched.labels
    classes = labels if labels is not None or not own.classifies else own.array.argmax(axis=1)
    name = "agreement" if labels is None else "accuracy"
    given = [layer.instead(instead, kernel_size).astype(np.float32) for layer in layers]
    # Multiply-adds of one head, of scores and of averages; a convolution has averages over K^2 keys, and no scores.
    keys = [len(layer.layout.tokens[0]) + len(layer.layout.others) for layer in layers]
    work = [n**2 * layer.layout.windows for n, layer in zip(keys, layers, strict=True)]
    saved = [max(0.0, w * (1 - kernel_size**2 / (2 * n))) for n, w in zip(keys, work, strict=True)]
    total, rows = sum(w * len(layer.prefix_share) for w, layer in zip(work, layers, strict=True)), []
    for count in counts:
        if not 0 <= count <= len(order):
            raise UserError(f"{count} heads: allowed are 0 to {len(order)}")
        output = run_with(watched, layers, order[:count], given) if count else own
        share = sum(saved[n] for n, _ in order[:count]) / total
        rows.append({"heads": count} | compared(own, output, np.asarray(classes), layers[-1].layout, name))
        rows[-1]["saved"] = share
    return rows
