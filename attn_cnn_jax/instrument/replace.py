"""Heads replaced for good: a network of the user's own library with depth-wise convolutions in their place."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import Replacement
from attn_cnn_jax.instrument.curves import Head, Watched, cheapest, run_with
from attn_cnn_jax.instrument.layer import Layer
from attn_cnn_jax.instrument.output import as_output

CLOSE = 1e-4  # of outputs to those with the same heads replaced while the network is watched, relative to the largest


def replace(watched: Watched, layers: Sequence[Layer], heads: Sequence[Head] | int, kernel_size: int) -> Any:
    """Returns a network with heads replaced, which agrees with `curves.run_with`; see `Report.replaced_network`."""
    heads = cheapest(layers)[:heads] if isinstance(heads, int) else [*dict.fromkeys(heads)]
    allowed = {(n, head) for n, layer in enumerate(layers) for head in range(len(layer.within))}
    if not heads or not {*heads} <= allowed:
        raise UserError(f"heads={heads!r}: allowed are pairs of layer and head, from 0, or a number from 1")
    network, places, replacements = watched.network, list[int](), dict[int, Replacement]()
    network.run(lambda call: places.append(call.place), network.images[:1])
    for n in sorted({n for n, _ in heads}):
        layer, chosen = layers[n], np.array(sorted(head for layer, head in heads if layer == n))
        if layer.layout.windows > 1 or layer.layout.heads > 1:
            raise UserError(
                f"layer {layer.number + 1}: heads of windows, or merged with images, cannot be replaced for good"
            )
        call, (_, filters) = watched.sites[layer.number].call, layer.kernel(kernel_size)
        of_heads = tuple(chosen.tolist()), filters.weights[chosen], tuple(filters.repeated[chosen].tolist())
        replacements[places[call or 0]] = Replacement(*of_heads, tuple(layer.layout.tokens[0].tolist()), layer.grid)
    if network.is_torch:
        import torch  # pyright: ignore[reportMissingImports]

        from attn_cnn_jax.instrument.adapters.replaced_pytorch import Replaced  # imports PyTorch, which the user has

        result = Replaced(network.model, replacements)
        with torch.no_grad():
            output = result(network.images)
    else:
        from attn_cnn_jax.instrument.adapters.replaced_nnx import Replaced

        result = Replaced(network.model, replacements)
        output = result(network.images)
    expected = run_with(watched, layers, heads, [layer.instead("kernel", kernel_size) for layer in layers]).array
    difference = np.abs(as_output(network, output, len(network)).array - expected).max() / np.abs(expected).max()
    if difference > CLOSE:
        raise UserError(f"{network.name} with heads replaced differs by {difference:.1e} from what was measured")
    return result
