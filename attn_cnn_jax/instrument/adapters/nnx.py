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
from attn_cnn_jax.instrument.adapters import CLOSE, HALF, LOCAL, Call, Seen, Softmax, Visit, absorb, difference, numbers
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
            if is_attention(rows):
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
            is_exact(values),
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
            a = read[which]
            has_queries = len(contracting[which]) == 1 and batch[which] and a.ndim > len(batch[which]) + 1
            if not has_queries or not is_attention(jnp.moveaxis(a, contracting[which][0], -1)):
                continue
            absorb(self.unseen, a)
            return self.attended(read, which, parameters, own)
        return own

    def attended(self, read: list[Any], which: int, parameters: dict[str, Any], own: jax.Array) -> jax.Array:
        """Shows a product of attention, the operand `which`, with values, both as `axes_of` has them.

        Axes of windows join that of images; groups of queries that share keys count as heads.
        """
        a, other = read[which], read[1 - which]
        order, of_values, batch = axes_of(read, which, parameters)
        shape = [a.shape[axis] for axis in order]
        first = max(1, batch - 1)  # a batch of one axis is of images
        images, heads, (queries, keys) = math.prod(shape[:first]), math.prod(shape[first:-2]), shape[-2:]

        def attention() -> np.ndarray:
            return numbers(a.transpose(order)).reshape(images, heads, queries, keys)

        def values() -> np.ndarray:
            groups = [1] * (len(shape) - 2 - batch)
            moved = numbers(other.transpose(of_values)).reshape(*shape[:batch], *groups, keys, -1)
            return np.broadcast_to(moved, (*shape[:-2], *moved.shape[-2:])).reshape(images, heads, keys, -1)

        def averages(used: Any, values: Any) -> jax.Array:
            options = {"precision": parameters["precision"], "preferred_element_type": own.dtype}
            operands = (used, values) if which == 0 else (values, used)
            return jax.lax.dot_general(*operands, parameters["dimension_numbers"], **options)

        def proof() -> float:
            return difference(numbers(averages(a, other)), numbers(own))

        again = lambda: attention() @ values()  # noqa: E731
        arrays, exact = (attention, values, again, proof), is_exact(a)
        used = self.show("dot_general", (images, heads, queries, keys), *arrays, exact, 2 * self.place + which)
        if used is None:
            return own
        used = jnp.asarray(used, a.dtype).reshape(shape)
        return averages(used.transpose(np.argsort(order)), other)


def axes_of(read: list[Any], which: int, parameters: dict[str, Any]) -> tuple[list[int], list[int], int]:
    """Returns the axes of attention, the operand `which` of a `dot_general`, of values, and how many are a batch's.

    Both begin with those of the batch, in the order of the values: images, windows, heads. Of values follow keys and
    channels; of attention groups of queries that share keys, queries (as long as keys, or else the last axis) and keys.
    """
    a, other = read[which], read[1 - which]
    contracting, batch = parameters["dimension_numbers"]
    (key,), (value_key,) = contracting[which], contracting[1 - which]
    of_values, of_attention = zip(*sorted(zip(batch[1 - which], batch[which], strict=True)), strict=True)
    free = [axis for axis in range(a.ndim) if axis not in (*of_attention, key)]
    query = max(free, key=lambda axis: (a.shape[axis] == a.shape[key], axis))
    groups = [axis for axis in free if axis != query]
    channels = [axis for axis in range(other.ndim) if axis not in (*of_values, value_key)]
    return [*of_attention, *groups, query, key], [*of_values, value_key, *channels], len(of_values)


def is_exact(a: jax.Array) -> bool:
    """Whether numbers are of float32 or wider."""
    return a.dtype in (np.float32, np.float64)


def is_attention(a: jax.Array) -> bool:
    """Whether the last axis of an array holds numbers that are not negative and sum to one."""
    if not jnp.issubdtype(a.dtype, jnp.floating) or a.shape[-1] < 2:
        return False
    rows, close = np.asarray(a, np.float32), CLOSE if is_exact(a) else HALF
    return bool(rows.min() >= 0 and np.abs(rows.sum(axis=-1) - 1).max() < close)
