"""Evaluates JAX functions with NumPy in double precision, operation by operation: no compiler takes part.

What `selfcheck` and tests hold compiled programs against. Operations without a rule (sorts, random
numbers) are computed by JAX one at a time on the CPU, in their own precision.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from attn_cnn_jax.reference.operations import RULES, SIMPLE, widened

Values = Sequence[Any]
Run = Callable[[Any, Values, Values], list[Any]]  # as `run`
MOST_BYTES = 2**31  # of an array: attention over 128x128 pixels would take 18 GiB a layer


def evaluate(function: Callable, *args: Any) -> Any:
    """Returns what `function(*args)` returns, as NumPy arrays; float64 where it is floating point.

    Args:
      function: of trees of arrays, traced once; never compiled.
      args: arrays in the shapes and types that it is called with.

    Raises:
      MemoryError: an array would take more than 2 GiB in double precision.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    values = run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), values)


def run(jaxpr: Jaxpr, consts: Values, args: Values) -> list[Any]:
    """Evaluates a jaxpr; forgets each value after its last use, so that memory holds no more than a program's."""
    environment: dict[Any, Any] = {}
    last = {v: n for n, equation in enumerate(jaxpr.eqns) for v in equation.invars if not isinstance(v, Literal)}
    kept = {v for v in jaxpr.outvars if not isinstance(v, Literal)}

    def read(v: Any) -> Any:
        return widened(v.val) if isinstance(v, Literal) else environment[v]

    for variables, given in ((jaxpr.constvars, consts), (jaxpr.invars, args)):
        environment |= zip(variables, map(widened, given), strict=True)
    for n, equation in enumerate(jaxpr.eqns):
        results = apply(equation, [read(v) for v in equation.invars])
        results = [np.asarray(x) if isinstance(x, np.generic) else x for x in results]  # NumPy's of no axes
        environment |= zip(equation.outvars, results, strict=True)
        for v in {v for v in equation.invars if not isinstance(v, Literal)} - kept:
            if last[v] == n:
                environment.pop(v, None)
    return [read(v) for v in jaxpr.outvars]


def apply(equation: Any, inputs: list[Any]) -> list[Any]:
    """Returns the results of one operation."""
    name, parameters = equation.primitive.name, equation.params
    for v in equation.outvars:
        if (size := 8 * math.prod(v.aval.shape)) > MOST_BYTES:
            raise MemoryError(f"{name} of shape {v.aval.shape} takes {size / 2**30:.0f} GiB in double precision")
    if name in CONTROL:
        return CONTROL[name](parameters, inputs, run)
    inner = next((parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters), None)
    if inner is not None:  # jit, checkpoint, functions with derivatives of their own
        return run(*((inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())), inputs)
    if name in SIMPLE:
        return [SIMPLE[name](*inputs)]
    rule = RULES.get(name)
    if rule is not None and (result := rule(equation, *inputs)) is not None:
        return result if isinstance(result, list) else [result]
    return by_jax(equation, inputs)


def by_jax(equation: Any, inputs: list[Any]) -> list[Any]:
    """Returns the results of an operation that JAX computes by itself, on the CPU."""
    device = jax.local_devices(backend="cpu")[0]
    with jax.default_device(device):
        arrays = [
            x if isinstance(x, jax.Array) else jax.device_put(np.asarray(x, v.aval.dtype), device)
            for x, v in zip(inputs, equation.invars, strict=True)
        ]
        results = equation.primitive.bind(*arrays, **equation.params)
    return [widened(x) for x in (results if equation.primitive.multiple_results else [results])]


def scan_counts(p: dict[str, Any]) -> tuple[int, int]:
    """Returns how many inputs of a `lax.scan` are constants, and how many are carried."""
    if "ft_in" in p:  # of JAX 0.12
        constants, carried, _ = p["ft_in"].unpack()
        return len(constants), len(carried)
    return p["num_consts"], p["num_carry"]


def scan(p: dict[str, Any], inputs: list[Any], run: Run) -> list[Any]:
    """`lax.scan`: constants, then carried values, then arrays whose first axis is scanned over."""
    num_constants, num_carried = scan_counts(p)
    constants, rest = inputs[:num_constants], inputs[num_constants:]
    carry, stacked, body, ys = rest[:num_carried], rest[num_carried:], p["jaxpr"], []
    steps = range(p["length"])
    for n in reversed(steps) if p["reverse"] else steps:
        out = run(body.jaxpr, body.consts, [*constants, *carry, *(x[n] for x in stacked)])
        carry = out[:num_carried]
        ys.append(out[num_carried:])
    ordered = zip(*(reversed(ys) if p["reverse"] else ys), strict=True)
    return [*carry, *((jnp if isinstance(rows[0], jax.Array) else np).stack(rows) for rows in ordered)]


def while_loop(p: dict[str, Any], inputs: list[Any], run: Run) -> list[Any]:
    """`lax.while_loop` and `lax.fori_loop`."""
    condition, body = p["cond_jaxpr"], p["body_jaxpr"]
    of_condition, rest = inputs[: p["cond_nconsts"]], inputs[p["cond_nconsts"] :]
    of_body, carry = rest[: p["body_nconsts"]], rest[p["body_nconsts"] :]
    while run(condition.jaxpr, condition.consts, [*of_condition, *carry])[0]:
        carry = run(body.jaxpr, body.consts, [*of_body, *carry])
    return list(carry)


def cond(p: dict[str, Any], inputs: list[Any], run: Run) -> list[Any]:
    """`lax.cond` and `lax.switch`."""
    branch = p["branches"][int(np.clip(int(inputs[0]), 0, len(p["branches"]) - 1))]
    return run(branch.jaxpr, branch.consts, inputs[1:])


# By parameters, inputs, and what evaluates the programs inside.
CONTROL: dict[str, Callable[[dict[str, Any], list[Any], Run], list[Any]]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "optimization_barrier": lambda _, inputs, run: inputs,
}
