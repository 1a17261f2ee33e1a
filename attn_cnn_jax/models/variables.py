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
    """A network's skeleton, its parameters by name (`blocks.0.attention.position.centre`), and running statistics."""
    graph, parameters, statistics = nnx.split(model, nnx.Param, ...)
    skeleton = Skeleton(graph, jax.tree.structure(parameters), jax.tree.structure(statistics))
    return skeleton, _flatten(parameters), _flatten(statistics)


def join(skeleton: Skeleton, parameters: Arrays, statistics: Arrays) -> nnx.Module:
    """The network that `split` took apart, with these arrays, tracers too; shapes may differ."""
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
