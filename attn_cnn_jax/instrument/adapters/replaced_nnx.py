"""A Flax NNX network some of whose heads are depth-wise convolutions of their values, for good."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import Replacement
from attn_cnn_jax.instrument.adapters.nnx import Watching, axes_of
from attn_cnn_jax.theorem.to_convolution import kernel_axis


class Replaced(nnx.Module):
    """The user's network with heads replaced; `model` is the copy, `weights` are by the place of their layer."""

    def __init__(self, model: nnx.Module, replacements: dict[int, Replacement]):
        self.model: Any = nnx.clone(model)
        self.model.eval()
        self.replacements = nnx.static(tuple((n, of._replace(weights=None)) for n, of in replacements.items()))
        self.weights = nnx.Dict(
            {str(n): nnx.Param(jnp.asarray(r.weights, np.float32)) for n, r in replacements.items()}
        )

    def __call__(self, *images: Any) -> Any:
        graph, state = nnx.split(self.model)
        arguments = state, *images
        program, shape = jax.make_jaxpr(lambda state, *x: nnx.merge(graph, state)(*x), return_shape=True)(*arguments)
        replacing = Replacing(
            dict(self.replacements), {int(name): weights[...] for name, weights in self.weights.items()}
        )
        leaves = replacing.run(program.jaxpr, program.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)


class Replacing(Watching):
    """Runs a program, also while JAX traces it, and replaces heads in the products at known places."""

    def __init__(self, replacements: dict[int, Replacement], weights: dict[int, jax.Array]):
        super().__init__(lambda call: None)
        self.replacements, self.weights = replacements, weights

    def softmax(self, result: jax.Array) -> None:
        """Lists nothing."""

    def over_pixels(self, *_: Any) -> tuple:
        raise UserError("layers of this package: attn-cnn convolution replaces their heads")

    def product(self, read: list[Any], parameters: dict[str, Any], own: jax.Array) -> jax.Array:
        which = next((n for n in (0, 1) if 2 * self.place + n in self.replacements), None)
        if which is None:
            return own
        place, (of_attention, of_values, batch) = 2 * self.place + which, axes_of(read, which, parameters)
        if batch != 2 or len(of_values) != 4:
            raise UserError("only heads that are an axis of their own, with values of their own, are replaced for good")
        attention = read[which].transpose(of_attention)
        attention = attention.reshape(len(attention), -1, *attention.shape[-2:])
        values = read[1 - which].transpose(of_values)
        values = jnp.repeat(values, attention.shape[1] // values.shape[1], axis=1)
        # The product has its batch first, then what the left operand has alone, then what the right one has.
        first, free = parameters["dimension_numbers"][1][which], of_attention[2:-1]
        before, channel = (2, 2 + len(free)) if which == 0 else (3, 2)
        moved = [before + sorted(free).index(axis) for axis in free]
        order = [*(first.index(axis) for axis in of_attention[:2]), *moved, channel]
        turned_own = own.transpose(order)
        averages = turned_own.reshape(*attention.shape[:3], -1)
        result = replaced(self.replacements[place], self.weights[place], attention, values, averages)
        return result.reshape(turned_own.shape).transpose(np.argsort(order))


def replaced(of: Replacement, weights: jax.Array, attention: jax.Array, values: jax.Array, own: jax.Array) -> jax.Array:
    """Averages `(b, h, q, c)` with heads replaced: of patches by convolution, of other tokens as they are."""
    heads, tokens = np.array(of.heads), np.array(of.tokens)
    rest = np.setdiff1d(np.arange(values.shape[2]), tokens)
    patches = values[:, heads][:, :, tokens]
    averages = convolved(of, weights.astype(values.dtype), patches)
    if len(rest):
        shares = attention[:, heads][:, :, tokens]
        averages *= shares[..., tokens].sum(axis=-1, keepdims=True)
        averages += shares[..., rest] @ values[:, heads][:, :, rest]
    return own.at[:, heads[:, None], tokens].set(averages.astype(own.dtype))


def convolved(of: Replacement, weights: jax.Array, values: jax.Array) -> jax.Array:
    """Values `(b, n, p, c)` of patches to the same, by a kernel per head: a sum over its shifts."""
    (rows, columns), x = of.grid, values.reshape(*values.shape[:2], *of.grid, -1)
    axes = [kernel_axis(size) for size in weights.shape[1:]]
    padding = [(0, 0), (0, 0), *((-axis[0], axis[-1]) for axis in axes), (0, 0)]

    def total(x: jax.Array) -> Any:
        windows = ((r, t, x[:, :, r : r + rows, t : t + columns]) for r, t in np.ndindex(weights.shape[1:]))
        return sum(weights[None, :, r, t, None, None, None] * window for r, t, window in windows)

    cut = total(jnp.pad(x, padding)) / jnp.maximum(total(jnp.pad(jnp.ones_like(x[:1, :1, ..., :1]), padding)), 1e-30)
    repeated = total(jnp.pad(x, padding, mode="edge"))
    return jnp.where(np.array(of.repeated)[None, :, None, None, None], repeated, cut).reshape(values.shape)
