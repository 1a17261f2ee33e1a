"""The evaluation by NumPy against JAX, operation by operation where the two could differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import reference

RANDOM = np.random.default_rng(0)


def array(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def convolution(strides, padding, of_input, of_kernel, groups=1, numbers=("NHWC", "HWIO", "NHWC")):
    options = {"lhs_dilation": of_input, "rhs_dilation": of_kernel, "feature_group_count": groups}
    return lambda x, k: jax.lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=numbers, **options)


CASES = {
    "batched product": (lambda x, y: jnp.einsum("bhqp,bpc->bqhc", x, y), (array(2, 3, 4, 5), array(2, 5, 6))),
    "product without free axes": (jnp.vdot, (array(7), array(7))),
    "convolution": (convolution((1, 2), ((1, 2), (0, 3)), (1, 1), (1, 2)), (array(2, 7, 9, 3), array(3, 2, 3, 4))),
    "dilated input": (convolution((2, 1), ((2, -1), (1, 1)), (3, 2), (2, 1)), (array(2, 5, 6, 3), array(2, 3, 3, 4))),
    "grouped": (convolution((1, 1), "SAME", (1, 1), (1, 1), groups=2), (array(1, 5, 5, 4), array(3, 3, 2, 6))),
    "other layout": (
        convolution((1, 1), "VALID", (1, 1), (1, 1), numbers=("CHWN", "IHWO", "HWNC")),
        (array(3, 6, 5, 2), array(3, 2, 3, 4)),
    ),
    "scan": (lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, c.sum()), x[0], x, reverse=True), (array(4, 3),)),
    "loop": (lambda x: jax.lax.fori_loop(0, 5, lambda n, c: c * 0.9 + n, x), (array(3),)),
    "branch": (lambda x: jax.lax.switch(2, [jnp.sin, jnp.cos, jnp.exp], x), (array(3),)),
    "slices": (lambda x: jax.lax.dynamic_update_slice(x, x[1:3, ::2] * 2, (4, 1)), (array(5, 4),)),
    "padding": (lambda x: jax.lax.pad(x, 2.0, ((1, -1, 2), (-2, 3, 0))), (array(4, 5),)),
    "gather": (lambda x: x[:, jnp.array([2, 0, 2])], (array(3, 4),)),
    "uniform numbers": (lambda x: x + jax.random.uniform(jax.random.key(3), (5,)), (array(5),)),
    "choices": (lambda x: jnp.where(x > 0, x, jnp.clip(x, -0.5, 1)), (array(9),)),
    "integers": (lambda x: jnp.sort((x * 100).astype(jnp.int32) // 7) % 5, (array(9),)),
    "norms": (lambda x: jax.nn.logsumexp(x, -1) + jax.nn.gelu(x, approximate=False).sum(-1), (array(3, 8),)),
    "argmax": (lambda x: jnp.argmax(x, axis=1), (array(3, 8),)),
    "powers": (lambda x: x**3 + (x**2 + 1) ** -2 + jax.nn.sigmoid(x), (array(5),)),
    "running sum": (lambda x: jax.lax.cumsum(x, axis=1, reverse=True), (array(3, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_jax(name):
    function, arguments = CASES[name]
    chosen = [function]
    if jnp.issubdtype(jax.tree.leaves(jax.eval_shape(function, *arguments))[0].dtype, jnp.floating):
        chosen.append(jax.grad(lambda *x: sum(jnp.square(y).sum() for y in jax.tree.leaves(function(*x)))))
    for each in chosen:
        found, expected = reference.evaluate(each, *arguments), jax.jit(each)(*arguments)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        wide = [x.dtype for x in jax.tree.leaves(found)]
        assert set(wide) <= {np.dtype(np.float64), np.dtype(np.int32)}


def test_precision_is_double():
    x = np.float32(2**-20)
    assert reference.evaluate(lambda x: (1 + x * x) - 1, x) == pytest.approx(2.0**-40, rel=1e-3)


def test_an_array_that_would_fill_the_memory_is_refused():
    """`attn-cnn page --size=128` took 24 GB for its self-check, of attention over 16,384 pixels."""
    with pytest.raises(MemoryError, match=r"mul of shape \(32768, 32768\) takes 8 GiB in double precision"):
        reference.evaluate(lambda x: jnp.sum(x * jnp.ones((1, 32768), np.float32)), np.ones((32768, 1), np.float32))
