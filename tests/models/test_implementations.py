"""All implementations compute the same attention; what they keep in memory differs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.attention import blocked, chunks, factorised, forms
from attn_cnn_jax.models.attention import layer as attention_module

GRID = (6, 4)
HIDDEN, HEADS = 8, 3
ENCODINGS = {
    "quadratic": {"encoding": "quadratic"},
    "learned": {"encoding": "learned"},
    "value maps": {"encoding": "quadratic", "head_size": 3},
    "generalised": {"encoding": "quadratic_generalized"},
    "content": {"encoding": "learned", "content": True},
    "gated": {"encoding": "quadratic", "content": True, "gate": True},
    "relative": {"encoding": "relative", "head_size": 5},
    "absolute": {"encoding": "absolute_learned"},
}
FACTORISED = ("quadratic", "learned", "value maps")
CASES = [(name, ("blocked", "factorised") if name in FACTORISED else ("blocked",), 6) for name in ENCODINGS]
CASES += [("quadratic", ("factorised",), 1), ("content", ("blocked",), 1)]


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def layer(grid=GRID, *, seed=0, dtype="float64", **options):
    """The attention layer of a network with one layer."""
    sizes = {"downsample": 1, "num_layers": 1, "hidden_size": HIDDEN, "num_heads": HEADS}
    config = attention_config(image_shape=(*grid, 3), dtype=dtype, **sizes, **options).model
    return create_model(config, rngs=nnx.Rngs(seed)).blocks[0].attention


def value_and_gradients(layer, x, implementation, key=None):
    """A weighted `sum MHSA(x)^2` and its gradients with respect to parameters and pictures."""
    graph, state = nnx.split(layer)

    def loss(state, x):
        layer = nnx.merge(graph, state, copy=True)
        layer.implementation = implementation
        y = layer(x, key)
        weights = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)  # no two pictures or pixels alike
        return (weights * jnp.square(y)).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(state, x)


@pytest.fixture
def nothing_traced(monkeypatch):
    """No program that was traced with chunks of another size is taken for one of these."""
    monkeypatch.setattr(forms, "factorised", factorised.factorised.__wrapped__)


@pytest.mark.usefixtures("nothing_traced", "float64")
@pytest.mark.parametrize(("name", "implementations", "batch"), CASES)
def test_implementations_equal_dense_forward_and_backward(name, implementations, batch, monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES_PER_BLOCK", 9)  # two of six rows of four pixels
    monkeypatch.setattr(factorised, "PIXELS_PER_CHUNK", 60)  # two pictures
    x = jax.random.normal(jax.random.key(1), (batch, *GRID, HIDDEN), jnp.float64)
    network = layer(**ENCODINGS[name])
    dense = value_and_gradients(network, x, "dense")
    for implementation in implementations:
        chex.assert_trees_all_close(value_and_gradients(network, x, implementation), dense, rtol=1e-10, atol=1e-11)


def test_blocks_and_chunks_divide_what_they_split():
    grids = ((16, 16), (32, 32), (128, 128), (6, 100), (7, 100), (3, 999))
    assert [blocked.rows_per_block(*grid) for grid in grids] == [16, 8, 2, 2, 1, 1]
    seen = []
    x = jnp.arange(2 * 6 * 640, dtype=jnp.float32).reshape(6, 20, 32, 2)
    y = chunks.in_chunks(lambda part: seen.append(part.shape) or 2 * part, x, 2)
    chex.assert_trees_all_equal(y, 2 * x)
    assert seen[-1] == (2, 20, 32, 2)


@pytest.mark.usefixtures("nothing_traced", "float64")
@pytest.mark.parametrize("name", ["content", "gated", "relative", "absolute"])
def test_content_of_a_few_pictures_at_a_time_is_that_of_all(name, monkeypatch):
    """On CPUs; value and gradients with the same dropout, and no array has the probabilities of all pictures."""
    network = layer(**ENCODINGS[name], attention_dropout=0.4)
    x = jax.random.normal(jax.random.key(1), (6, *GRID, HIDDEN), jnp.float64)
    pixels = GRID[0] * GRID[1]
    found = []
    for pictures in (6, 2):
        monkeypatch.setattr(chunks, "PROBABILITIES_PER_CHUNK", pictures * network.num_heads * pixels**2)
        program = str(jax.make_jaxpr(lambda x: jax.vjp(lambda x: network(x, jax.random.key(2)), x)[1](x))(x))
        assert f"f64[{pictures},{network.num_heads},{pixels},{pixels}]" in program
        assert (f"f64[6,{network.num_heads},{pixels},{pixels}]" in program) == (pictures == 6)
        found.append(value_and_gradients(network, x, "dense", jax.random.key(2)))
    chex.assert_trees_all_close(*found, rtol=1e-10, atol=1e-11)


def test_probabilities_are_dropped_though_a_product_was_asked_for():
    """Averages of ones are ones unless single probabilities are dropped, which no product of factors can express."""
    network = layer(dtype="float32", implementation="factorised", attention_dropout=0.5)
    shape = (1, *GRID, HIDDEN)
    assert network.implementation_for(shape, training=False) == "factorised"
    assert network.implementation_for(shape, training=True) != "factorised"
    x, key = jnp.ones(shape), jax.random.key(0)
    kept, dropped = network(x), network(x, key)
    np.testing.assert_allclose(kept, jnp.broadcast_to(kept[:, :1, :1], kept.shape), rtol=1e-4, atol=1e-5)
    assert np.std(np.asarray(dropped - kept)) > 0.05


@pytest.mark.usefixtures("float64")
def test_factors_are_dropped_on_their_own_and_keep_the_mean():
    """Each probability becomes P times two factors, 0 or 1/(1 - rate), one for its row shift and one for its column."""
    rate = 0.5
    network = layer((5, 4), attention_dropout=rate, attention_dropout_on="factors")
    network.output.kernel[...] = jnp.ones_like(network.output.kernel[...])
    network.output.bias[...] = jnp.zeros_like(network.output.bias[...])
    # One picture a key pixel, that pixel 1 and all else 0: the layer's output is the sum over heads of probabilities.
    x = jnp.repeat(jnp.eye(20, dtype=jnp.float64).reshape(20, 5, 4, 1), HIDDEN, axis=-1) / HIDDEN
    expected = np.asarray(network.probabilities(x)).sum(axis=0).reshape(20, 20)
    step = jax.jit(lambda key: network(x, key)[..., 0].reshape(20, 20).T)
    draws = np.stack([np.asarray(step(jax.random.key(n))) for n in range(300)])
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) < 5 * standard_error + 1e-12).all()
    assert network.implementation_for((1, 32, 32, HIDDEN), training=True) == "factorised"
    one_head = layer((5, 4), attention_dropout=rate, attention_dropout_on="factors")
    one_head.output.kernel[...] = jnp.zeros_like(one_head.output.kernel[...]).at[:HIDDEN].set(1)
    one_head.output.bias[...] = jnp.zeros_like(one_head.output.bias[...])
    dropped = np.asarray(one_head(x, jax.random.key(7))[..., 0]).reshape(20, 5, 4).transpose(1, 2, 0)
    factor = dropped.reshape(5, 4, 5, 4) / np.asarray(one_head.probabilities(x))[0].reshape(5, 4, 5, 4)
    rows = factor.max(axis=(1, 3)) > 0
    columns = factor.max(axis=(0, 2)) > 0
    assert rows.mean() not in (0, 1)
    assert columns.mean() not in (0, 1)
    expected = (rows[:, None, :, None] & columns[None, :, None, :]) / (1 - rate) ** 2
    np.testing.assert_allclose(factor, expected, rtol=1e-9)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["generalised", "content"])
def test_blocked_dropout_drops_single_probabilities_and_keeps_the_mean(name, monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES_PER_BLOCK", 9)
    masks = []
    original = attention_module.dropout

    def record(key, x, *others):
        masks.append(x.shape)
        return original(key, x, *others)

    monkeypatch.setattr(attention_module, "dropout", record)
    network = layer(attention_dropout=0.4, **ENCODINGS[name])
    x = jax.random.normal(jax.random.key(1), (2, *GRID, HIDDEN), jnp.float64)
    network.implementation = "blocked"
    draws = np.stack(jax.lax.map(lambda key: network(x, key), jax.random.split(jax.random.key(0), 300)))
    assert masks[0][-2:] == (8, 24)
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    expected = np.asarray(network(x))
    assert (np.abs(draws.mean(axis=0) - expected) < 5 * standard_error + 1e-12).all()


@pytest.mark.usefixtures("float64")
def test_every_block_draws_a_mask_of_its_own(monkeypatch):
    """A mask that is one number for a whole block shows which block has which."""
    monkeypatch.setattr(blocked, "QUERIES_PER_BLOCK", 9)  # two rows
    number = lambda key, x, *_: x if key is None else x * jax.random.uniform(key, (), x.dtype)  # noqa: E731
    monkeypatch.setattr(attention_module, "dropout", number)
    network = layer(attention_dropout=0.4, **ENCODINGS["generalised"])
    network.implementation = "blocked"
    x = jax.random.normal(jax.random.key(1), (1, *GRID, HIDDEN), jnp.float64)
    bias = network.output.bias[...].reshape(1, 1, 1, -1)
    masks = ((network(x, jax.random.key(3)) - bias) / (network(x) - bias)).reshape(3, -1)
    chex.assert_trees_all_close(masks, jnp.broadcast_to(masks[:, :1], masks.shape), rtol=1e-8)
    assert len(set(masks[:, 0].round(6).tolist())) == 3


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "implementation", "dropout_on"),
    [
        ("content", "dense", "probabilities"),
        ("content", "blocked", "probabilities"),
        ("quadratic", "dense", "factors"),
        ("quadratic", "factorised", "factors"),
    ],
)
def test_forward_and_backward_share_a_dropout_mask(name, implementation, dropout_on, monkeypatch):
    """The gradient is the slope of the loss that one key's mask gives: a mask drawn anew for either would not fit."""
    monkeypatch.setattr(blocked, "QUERIES_PER_BLOCK", 9)  # three blocks
    network = layer(attention_dropout=0.4, attention_dropout_on=dropout_on, **ENCODINGS[name])
    network.implementation = implementation
    graph, state = nnx.split(network)
    x, weights = jax.random.normal(jax.random.key(1), (2, 2, *GRID, HIDDEN), jnp.float64)

    def loss(arrays):
        state, x = arrays
        return (weights * nnx.merge(graph, state, copy=True)(x, jax.random.key(3))).sum()

    assert_gradient_is_slope(loss, (state, x))


def assert_gradient_is_slope(loss, arrays, step=1e-5):
    """The gradient of `loss(arrays)` along a random direction is the central difference."""
    flat, unflatten = ravel_pytree(arrays)
    both = jax.jit(jax.value_and_grad(lambda flat: loss(unflatten(flat))))
    direction = jax.random.normal(jax.random.key(2), flat.shape, flat.dtype)
    slope = (both(flat + step * direction)[0] - both(flat - step * direction)[0]) / (2 * step)
    np.testing.assert_allclose(both(flat)[1] @ direction, slope, rtol=1e-7)


def peak_bytes(name, implementation, size, batch=1):
    """Temporary memory of one training step of a one-layer network on `size x size` attention pixels, compiled."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 1, "num_heads": 2, "downsample": 1}
    config = attention_config(
        image_shape=(size, size, 3), implementation=implementation, attention_dropout=0.0, **sizes, **ENCODINGS[name]
    )
    graph, state = nnx.split(nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0))))

    def loss(state, x):
        return nnx.merge(graph, state, copy=True)(x, key=jax.random.key(0))[0].sum()

    x = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(state, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "implementation", "sizes"),
    [
        ("quadratic", "factorised", (64, 128)),
        ("generalised", "blocked", (64, 128)),
        ("content", "blocked", (64, 128)),
    ],
)
def test_memory_grows_as_the_pixels(name, implementation, sizes):
    small, large = (peak_bytes(name, implementation, size) for size in sizes)
    pixels = (sizes[1] / sizes[0]) ** 2
    assert large / small <= 1.2 * pixels


@pytest.mark.slow
def test_dense_memory_grows_as_the_square_of_the_pixels():
    """The check above can fail."""
    assert peak_bytes("quadratic", "dense", 64) / peak_bytes("quadratic", "dense", 32) > 2 * 4


@pytest.mark.parametrize("implementation", ["dense", "factorised", "blocked"])
def test_bfloat16_attention_stays_near_float32(implementation):
    options = {"encoding": "quadratic", "attention_dropout": 0.0, "implementation": implementation}
    networks = [layer((8, 8), dtype=dtype, **options) for dtype in ("float32", "bfloat16")]
    x = jax.random.normal(jax.random.key(1), (2, 8, 8, HIDDEN))
    wide, narrow = (network(x) for network in networks)
    assert narrow.dtype == jnp.bfloat16
    chex.assert_trees_all_close(narrow.astype(jnp.float32), wide, atol=0.03)
