"""A network as a plain dictionary of named arrays, and back: what optimizers and checkpoints work on."""

from typing import NamedTuple

import jax
from flax import nnx

from attn_cnn_jax.arrays import Arrays


class Skeleton(NamedTuple):
    """A network without its arrays: hashable, so that it can be a static argument of a jitted function."""

    graph: nnx.GraphDef
    parameters: jax.tree_util.PyTreeDef  # pyright: ignore[reportInvalidTypeForm]
    statistics: jax.tree_util.PyTreeDef  # pyright: ignore[reportInvalidTypeForm]


def split(model: nnx.Module) -> tuple[Skeleton, Arrays, Arrays]:
    """Takes a network apart into its skeleton, its parameters by dotted name, such as
    `blocks.0.attention.position.centre`, and what else it keeps, the running statistics of batch norm.
    """
    graph, parameters, statistics = nnx.split(model, nnx.Param, ...)
    skeleton = Skeleton(graph, jax.tree.structure(parameters), jax.tree.structure(statistics))
    return skeleton, _flatten(parameters), _flatten(statistics)


def join(skeleton: Skeleton, parameters: Arrays, statistics: Arrays) -> nnx.Module:
    """Returns the network that `split` took apart, with these arrays, by their names there; shapes may differ.

    Works on tracers too.
    """
    states = (
        jax.tree.unflatten(tree, [arrays[name] for name in names(tree)])
        for tree, arrays in ((skeleton.parameters, parameters), (skeleton.statistics, statistics))
    )
    return nnx.merge(skeleton.graph, *states, copy=True)


def _flatten(state: nnx.State) -> Arrays:
    return dict(zip(names(jax.tree.structure(state)), jax.tree.leaves(state), strict=True))


def names(tree: jax.tree_util.PyTreeDef) -> list[str]:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the dotted names of the arrays in one of a skeleton's trees, in order."""
    paths, _ = jax.tree.flatten_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))
    return [".".join(str(entry.key) for entry in path if hasattr(entry, "key")) for path, _ in paths]
