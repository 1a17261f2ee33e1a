"""Attention of Flax NNX networks: the network is traced, and its program run here, an operation at a time.

So it does not matter how a network writes its attention (`nnx.MultiHeadAttention`, `jax.nn.dot_product_attention`,
`einsum`), nor whether it is inside of `nnx.jit`, `nnx.remat` or `nnx.scan`: every product is a `dot_general` one of
whose operands is a matrix whose rows sum to one. This package's `SelfAttention`, whose attention takes other forms, is
replaced by one operation that shows attention and values.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import Literal, Primitive

from attn_cnn_jax import compiling
from attn_cnn_jax.instrument.adapters import LOCAL, Call, Seen, Softmax, Visit, absorb, difference, numbers, sums_to_one
from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.reference import CONTROL

# layer, key, activations -> its output, the attention that was used; run by `Watching` alone
self_attention = Primitive("self_attention")
self_attention.multiple_results = True
self_attention.def_abstract_eval(
    lambda *avals, shapes, **_: [avals[-1].update(shape=of.shape, dtype=of.dtype) for of in shapes]
)


def run(model: nnx.Module, images: Any, visit: Visit) -> Seen:
    """Runs a copy of a network in evaluation mode; see the contract in adapters/__init__.py."""
    model = nnx.clone(model)
    model.eval()
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module._attend = functools.partial(attend_as_one_operation, *nnx.split(module))
    graph, state = nnx.split(model)
    arguments = state, jnp.asarray(images)
    program, shape = jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x), return_shape=True)(*arguments)
    watching = Watching(visit)
    leaves = watching.run(program.jaxpr, program.consts, jax.tree.leaves(arguments))
    return Seen(jax.tree.unflatten(jax.tree.structure(shape), leaves), watching.unseen)


def attend_as_one_operation(graph: nnx.GraphDef, state: nnx.State, x: jax.Array, key: Any) -> Any:
    """`SelfAttention._attend` of the layer that is `graph` and `state`."""
    shown, own, _ = jax.eval_shape(functools.partial(own_attention, graph), state, key, x)
    leaves, tree = jax.tree.flatten((state, key, x))
    return self_attention.bind(*leaves, graph=graph, tree=tree, shapes=(own, shown[0]))


@compiling.jit(static_argnums=0)
def own_attention(graph: nnx.GraphDef, state: nnx.State, key: Any, x: jax.Array) -> tuple[tuple, jax.Array, jax.Array]:
    """Attention, values and averages again, from these two; a layer's own averages, without bias; the bias."""
    layer, pixels = nnx.merge(graph, state), x.shape[1] * x.shape[2]
    maps, flat = layer.maps(), x.reshape(len(x), 1, -1, x.shape[-1])
    values = flat if maps.value is None else flat @ maps.value[None]
    attention = layer.probabilities(x).reshape(-1, layer.num_heads, pixels, pixels)
    attention = jnp.broadcast_to(attention, (len(x), *attention.shape[1:]))
    own = SelfAttention._attend(layer, x, key)[0] - layer.bias
    return (attention, values, dense(attention, x, maps)), own, layer.bias


@compiling.jit(static_argnums=0)
def given_attention(graph: nnx.GraphDef, state: nnx.State, attention: jax.Array, x: jax.Array) -> jax.Array:
    """A layer's output with other attention, by the one form that there is for it."""
    layer = nnx.merge(graph, state)
    return dense(attention, x, layer.maps()) + layer.bias


class Watching:
    """Runs a program, shows every product to the visitor, and uses what it returns."""

    def __init__(self, visit: Visit):
        self.visit, self.calls, self.place, self.unseen = visit, 0, -1, list[Softmax]()

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns the results of a program, equation by equation."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
        for equation in jaxpr.eqns:
            read = [var.val if isinstance(var, Literal) else known[var] for var in equation.invars]
            known.update(zip(equation.outvars, self.operation(equation, read), strict=True))
        return [var.val if isinstance(var, Literal) else known[var] for var in jaxpr.outvars]

    def operation(self, equation: Any, read: list[Any]) -> Sequence[Any]:
        """Returns the results of one operation."""
        name, parameters = equation.primitive.name, equation.params
        if equation.primitive is self_attention:
            return self.over_pixels(parameters["graph"], *jax.tree.unflatten(parameters["tree"], read))
        if name in CONTROL:
            return CONTROL[name](parameters, read, self.run)
        inner = parameters.get("jaxpr", parameters.get("call_jaxpr"))
        if inner is not None:
            closed = hasattr(inner, "consts")
            return self.run(inner.jaxpr if closed else inner, inner.consts if closed else [], read)
        results = equation.primitive.bind(*read, **parameters)
        if name == "dot_general":
            self.place += 1
            return [self.product(read, parameters, results)]
        if name == "div":
            self.softmax(results)
        return results if equation.primitive.multiple_results else [results]

    def softmax(self, result: jax.Array) -> None:
        """Lists a result that is one."""
        for axis in range(result.ndim - 1, 0, -1) if result.ndim > 2 else ():
            rows = jnp.moveaxis(result, axis, -1)
            if rows.shape[-1] > 1 and is_attention(rows):
                self.unseen.append(Softmax(self.calls, result if axis == result.ndim - 1 else rows))
                break

    def over_pixels(self, graph: nnx.GraphDef, state: nnx.State, key: Any, x: jax.Array) -> Sequence[jax.Array]:
        """Shows a layer of this package's networks."""
        (attention, values, again), own, bias = own_attention(graph, state, key, x)
        used = self.show(
            "SelfAttention",
            attention.shape,
            lambda: numbers(attention),
            lambda: numbers(values),
            lambda: numbers(attention) @ numbers(values),
            lambda: difference(numbers(again), numbers(own)),
            values.dtype == np.float32,
        )
        if used is None:
            return own + bias, attention
        used = jnp.asarray(used, attention.dtype)
        return given_attention(graph, state, used, x), used

    def show(self, kind: str, shape: tuple[int, ...], *arrays: Any) -> Any:
        """Returns the attention to use; None for the network's own."""
        images, heads, queries, keys = shape
        call = Call(self.calls, kind, (images, heads, queries, keys), *arrays)
        self.calls += 1
        used = self.visit(call)
        local = isinstance(used, str) and used == LOCAL and queries == keys
        return np.broadcast_to(np.eye(queries, keys) * local, shape) if isinstance(used, str) else used

    def product(self, read: list[Any], parameters: dict[str, Any], own: jax.Array) -> jax.Array:
        """A `dot_general`, shown where one operand is attention; by what is used instead."""
        contracting, batch = parameters["dimension_numbers"]
        for which in (0, 1):
            a, other = read[which], read[1 - which]
            free = [axis for axis in range(a.ndim) if axis not in (*contracting[which], *batch[which])]
            if a.ndim < 3 or len(contracting[which]) != 1 or not batch[which] or not free or a.shape[-1] < 2:
                continue
            if not is_attention(jnp.moveaxis(a, contracting[which][0], -1)):
                continue
            absorb(self.unseen, a)
            return self.attended(a, other, which, free, parameters, own)
        return own

    def attended(
        self, a: jax.Array, other: jax.Array, which: int, free: list[int], parameters: dict[str, Any], own: jax.Array
    ) -> jax.Array:
        """Shows a product of attention `a` with values `other`, both in the order `(b, h, q, p)` and `(b, h, p, c)`.

        Axes of a batch are in the order of the values, images first, then windows, which join them, and heads last.
        Queries are the axis of `a`'s alone that is as long as keys, or else the last one; others, groups of queries
        that share keys, count as heads.
        """
        (key,), (value_key,) = (parameters["dimension_numbers"][0][n] for n in (which, 1 - which))
        pairs = sorted(zip(*(parameters["dimension_numbers"][1][n] for n in (1 - which, which)), strict=True))
        *groups, query = queries_last(a, free, key)
        order = [axis for _, axis in pairs] + [*groups, query, key]
        batch = [a.shape[axis] for _, axis in pairs]
        first = batch[:-1] or batch  # a batch of one axis is of images
        images, heads = math.prod(first), math.prod(a.shape[axis] for axis in order[len(first) : -2])
        channels = [axis for axis in range(other.ndim) if axis not in (value_key, *(axis for axis, _ in pairs))]
        queries, keys = a.shape[query], a.shape[key]

        def attention() -> np.ndarray:
            return numbers(a.transpose(order)).reshape(images, heads, queries, keys)

        def values() -> np.ndarray:
            moved = numbers(other.transpose([axis for axis, _ in pairs] + [value_key, *channels]))
            moved = moved.reshape(*batch, *[1] * len(groups), keys, -1)
            shape = *batch, *(a.shape[axis] for axis in groups), *moved.shape[-2:]
            return np.broadcast_to(moved, shape).reshape(images, heads, keys, -1)

        def averages(used: Any, values: Any) -> jax.Array:
            options = {"precision": parameters["precision"], "preferred_element_type": own.dtype}
            operands = (used, values) if which == 0 else (values, used)
            return jax.lax.dot_general(*operands, parameters["dimension_numbers"], **options)

        shape = (images, heads, queries, keys)

        def proof() -> float:
            return difference(numbers(averages(a, other)), numbers(own))

        exact = a.dtype == np.float32
        again = lambda: attention() @ values()  # noqa: E731
        used = self.show("dot_general", shape, attention, values, again, proof, exact, 2 * self.place + which)
        if used is None:
            return own
        used = jnp.asarray(used, a.dtype).reshape([a.shape[axis] for axis in order])
        return averages(used.transpose(np.argsort(order)), other)


def queries_last(a: jax.Array, free: list[int], key: int) -> list[int]:
    """Axes of attention alone, that of queries last: as long as keys, or else the last one."""
    query = max(free, key=lambda axis: (a.shape[axis] == a.shape[key], axis))
    return [*(axis for axis in free if axis != query), query]


def is_attention(a: jax.Array) -> bool:
    """Whether the last axis of an array holds numbers that are not negative and sum to one."""
    return jnp.issubdtype(a.dtype, jnp.floating) and sums_to_one(a, a.dtype in (np.float32, np.float64))
