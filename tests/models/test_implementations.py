"""Both forms of the sum over heads compute the same attention; parts, memory, dropout masks.

That every implementation computes the formula is in test_encodings.py.
"""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.attention import accelerator, cpu, parts
from attn_cnn_jax.models.attention import layer as attention_module
from attn_cnn_jax.models.attention.accelerator import attended, nearest_divisor
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.variables import join, split

GRID = (6, 4)
HIDDEN, HEADS = 8, 3
CONTENT = {"encoding": "learned", "content": True}


def network(grid=GRID, *, dtype="float64", **options):
    sizes = {"downsample": 1, "num_layers": 1, "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_heads": HEADS}
    config = attention_config(image_shape=(*grid, 3), dtype=dtype, **sizes | options).model
    return create_model(config, rngs=nnx.Rngs(jax.random.key(0, impl="unsafe_rbg")))  # compiles fast


def layer(grid=GRID, **options):
    """The attention layer of a network with one layer."""
    return network(grid, **options).blocks[0].attention


@pytest.fixture
def small_parts(monkeypatch):
    """Two of six rows of four pixels, and two images, at a time."""
    monkeypatch.setattr(parts, "QUERIES_PER_BLOCK", 9)
    monkeypatch.setattr(cpu, "PIXELS_PER_PART", 60)
    monkeypatch.setattr(cpu, "factorised", cpu.factorised.__wrapped__)  # nothing traced with parts of another size


POSITIONS = [
    {"implementation": "dense"},
    {"implementation": "dense", "head_size": 3},
    {"implementation": "factorised", "attention_dropout_on": "factors"},
    {"implementation": "factorised", "attention_dropout_on": "factors", "head_size": 3},
    {"encoding": "learned", "implementation": "blocked"},
]
OF_CONTENT = [  # the first two have merged maps of content
    {**CONTENT, "implementation": "dense", "attention_dropout": 0.0},
    {"encoding": "content", "implementation": "dense", "attention_dropout": 0.0},
    {**CONTENT, "gate": True, "implementation": "dense"},
    {"encoding": "pape", "head_size": 4, "implementation": "dense"},
]


@pytest.mark.usefixtures("float64", "promotion")
@pytest.mark.parametrize("cases", [POSITIONS, OF_CONTENT], ids=["positions", "content"])
def test_accelerators_compute_the_same_network_and_gradients(cases):
    """A layer per case, with the same masks of dropped probabilities; on a grid that is not square; intermediates."""
    model = network(dropout=0.0)
    model.blocks = nnx.List([network(**{"attention_dropout": 0.4, "dropout": 0.0} | case).blocks[0] for case in cases])
    skeleton, parameters, statistics = split(model)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, *GRID, 3)))

    def loss(parameters, images, platform):
        model = for_platform(join(skeleton, parameters, statistics), platform)
        logits, intermediates = model(images, key=jax.random.key(3))
        return jnp.square(logits).sum(), intermediates

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    on_cpu, on_gpu = run(parameters, images, "cpu"), run(parameters, images, "gpu")
    chex.assert_trees_all_close(on_gpu, on_cpu, rtol=1e-9, atol=1e-10)
    assert model.blocks[0].attention.platform is None  # left as it was
    merged = [block.attention.merged_content() is not None for block in model.blocks]
    assert merged == [case in OF_CONTENT[:2] for case in cases]


@pytest.mark.usefixtures("float64")
def test_gradients_of_split_sums_are_those_of_autodiff(monkeypatch):
    rng = np.random.default_rng(0)
    arguments = [jnp.asarray(rng.normal(size=shape)) for shape in ((3, 6, 8), (8, 4, 5), (3, 5, 7))]
    expected, backward = jax.vjp(lambda *arguments: jnp.einsum("hqp,pbd,hdo->qbo", *arguments), *arguments)
    gradient = jnp.asarray(rng.normal(size=expected.shape))
    for devices, cache in itertools.product((1, 2, 4), (0, accelerator.CACHE)):
        monkeypatch.setattr(accelerator, "CACHE", cache)  # with 0 the gradient of maps is computed head by head
        found, split_backward = jax.vjp(functools.partial(attended, devices=devices), *arguments)
        chex.assert_trees_all_close((found, split_backward(gradient)), (expected, backward(gradient)), atol=1e-12)
    assert [nearest_divisor(*both) for both in ((100, 10), (25, 10), (13, 10), (256, 16))] == [10, 5, 13, 16]


def test_images_split_over_devices_are_not_gathered(monkeypatch):
    """In the accelerators' order of axes, where images are not the first: the same loss on 1 and on 4 devices."""
    monkeypatch.setattr(accelerator, "CACHE", 0)
    common = {"attention_dropout": 0.1, "dtype": "float32"}
    model = network(implementation="dense", **common)
    model.blocks.append(network(implementation="factorised", attention_dropout_on="factors", **common).blocks[0])
    skeleton, *arrays = split(model)

    def loss(arrays, images):
        model = for_platform(join(skeleton, *arrays), "gpu", count)
        return jnp.square(model(images, key=jax.random.key(3))[0]).sum()

    found = []
    for count in (1, 4):
        mesh = jax.make_mesh((count,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:count])
        place = lambda tree, *axes: jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))  # noqa: B023, E731
        images = place(np.random.default_rng(0).normal(size=(8, *GRID, 3)).astype(np.float32), "data")
        program = jax.jit(jax.value_and_grad(loss)).lower(place(arrays), images).compile()
        assert " all-gather(" not in program.as_text()
        found.append(jax.device_get(program(place(arrays), images)))
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-5)


def assert_mean_is_kept(attention, x):
    """Averages of the layer over dropout masks are its averages without."""
    draws = np.stack(jax.lax.map(lambda key: attention(x, key), jax.random.split(jax.random.key(0), 300)))
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - np.asarray(attention(x))) < 5 * standard_error + 1e-12).all()
    assert draws.std() > 0.01


@pytest.mark.usefixtures("float64", "promotion")
def test_content_of_a_few_images_at_a_time_is_that_of_all(monkeypatch):
    """On CPUs; with the same dropout, and no array of a step has the probabilities of all images."""
    attention, key = layer(**CONTENT, gate=True, attention_dropout=0.4), jax.random.key(2)
    x = jax.random.normal(jax.random.key(1), (6, *GRID, HIDDEN), jnp.float64)
    pixels = GRID[0] * GRID[1]
    found = []
    for images in (6, 2):
        monkeypatch.setattr(parts, "PART_BYTES", 4 * images * HEADS * pixels**2)
        program = str(jax.make_jaxpr(lambda x: jax.vjp(lambda x: attention(x, key), x)[1](x))(x))
        assert f"f64[{images},{HEADS},{pixels},{pixels}]" in program
        assert (f"f64[6,{HEADS},{pixels},{pixels}]" in program) == (images == 6)
        found.append(jax.jit(lambda x: attention(x, key))(x))
    chex.assert_trees_all_close(*found, rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("float64", "promotion")
def test_factors_are_dropped_on_their_own_and_keep_the_mean():
    """Each probability becomes P times two factors, 0 or 1/(1 - rate), one for its row shift and one for its column."""
    rate = 0.5
    attention = layer((5, 4), attention_dropout=rate, attention_dropout_on="factors")
    attention.output.bias[...] = jnp.zeros_like(attention.output.bias[...])
    # Of the first head alone, one image per key pixel, that pixel 1 and all else 0: the output is its probabilities.
    attention.output.kernel[...] = jnp.zeros_like(attention.output.kernel[...]).at[:HIDDEN].set(1)
    x = jnp.repeat(jnp.eye(20, dtype=jnp.float64).reshape(20, 5, 4, 1), HIDDEN, axis=-1) / HIDDEN
    assert_mean_is_kept(attention, x)
    dropped = np.asarray(attention(x, jax.random.key(7))[..., 0]).reshape(20, 5, 4).transpose(1, 2, 0)
    factor = dropped.reshape(5, 4, 5, 4) / np.asarray(attention.probabilities(x))[0].reshape(5, 4, 5, 4)
    rows, columns = factor.max(axis=(1, 3)) > 0, factor.max(axis=(0, 2)) > 0
    assert {rows.mean(), columns.mean()} & {0, 1} == set()
    expected = (rows[:, None, :, None] & columns[None, :, None, :]) / (1 - rate) ** 2
    np.testing.assert_allclose(factor, expected, rtol=1e-9)


@pytest.mark.usefixtures("float64", "promotion", "small_parts")
def test_every_block_draws_a_mask_of_its_own(monkeypatch):
    """A mask that is one number for a whole block shows which block has which; whole masks keep the mean."""
    attention = layer(attention_dropout=0.4, implementation="blocked", encoding="quadratic_generalized")
    x = jax.random.normal(jax.random.key(1), (1, *GRID, HIDDEN), jnp.float64)
    assert_mean_is_kept(attention, x)
    dense = layer(implementation="dense", encoding="quadratic_generalized")
    chex.assert_trees_all_close(attention(x), dense(x), rtol=1e-10)
    number = lambda key, x, *_: x if key is None else x * jax.random.uniform(key, (), x.dtype)  # noqa: E731
    monkeypatch.setattr(attention_module, "dropout", number)
    masks = ((attention(x, jax.random.key(3)) - attention.bias) / (attention(x) - attention.bias)).reshape(3, -1)
    chex.assert_trees_all_close(masks, jnp.broadcast_to(masks[:, :1], masks.shape), rtol=1e-8)
    assert len(set(masks[:, 0].round(6).tolist())) == 3


@pytest.mark.usefixtures("float64", "promotion", "small_parts")
@pytest.mark.parametrize(
    ("implementation", "platform"), [("dense", "cpu"), ("dense", "gpu"), ("blocked", "cpu"), ("factorised", "cpu")]
)
def test_forward_and_backward_share_a_dropout_mask(implementation, platform):
    """The gradient is the slope of the loss that one key's mask gives: a mask drawn anew for either would not fit."""
    options = {"attention_dropout_on": "factors"} if implementation == "factorised" else CONTENT
    attention = for_platform(layer(**options, implementation=implementation, attention_dropout=0.4), platform)
    if platform == "gpu":  # its mask is drawn in another order: not compared with that of CPUs
        assert_mean_is_kept(attention, jax.random.normal(jax.random.key(1), (2, *GRID, HIDDEN), jnp.float64))
    graph, state = nnx.split(attention)
    x, weights = jax.random.normal(jax.random.key(1), (2, 2, *GRID, HIDDEN), jnp.float64)
    flat, unflatten = ravel_pytree((state, x))

    @jax.jit
    @jax.value_and_grad
    def loss(flat):
        state, x = unflatten(flat)
        return (weights * nnx.merge(graph, state, copy=True)(x, jax.random.key(3))).sum()

    step = 1e-5 * jax.random.normal(jax.random.key(2), flat.shape, flat.dtype)
    np.testing.assert_allclose(loss(flat)[1] @ step, (loss(flat + step)[0] - loss(flat - step)[0]) / 2, rtol=1e-7)


def peak_bytes(encoding, implementation, size):
    """Temporary memory of one training step of a one-layer network on `size x size` attention pixels, compiled."""
    # Fewer channels would show the columns that CPUs repeat for every row, the cube of the side.
    options = {"hidden_size": 16, "num_heads": 2, "attention_dropout": 0.0, "dtype": "float32"} | encoding
    graph, state = nnx.split(nnx.eval_shape(lambda: network((size, size), implementation=implementation, **options)))

    def loss(state, x):
        return nnx.merge(graph, state, copy=True)(x, key=jax.random.key(0))[0].sum()

    x = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(state, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_grows_as_the_pixels():
    for encoding, implementation in (({}, "factorised"), (CONTENT, "blocked")):
        assert peak_bytes(encoding, implementation, 96) <= 1.3 * 4 * peak_bytes(encoding, implementation, 48)
    assert peak_bytes({}, "dense", 48) > 2 * 4 * peak_bytes({}, "dense", 24)  # the check can fail


TAKEN = [  # side in attention pixels, platform, batch, content: which implementation `auto` takes in training
    (16, "cpu", 100, False, "factorised"),
    (16, "gpu", 100, False, "dense"),
    (64, "cpu", 100, False, "factorised"),
    (64, "gpu", 100, False, "factorised"),
    (16, "cpu", 100, True, "dense"),
    (16, "cpu", 800, True, "blocked"),  # its mask is sampled for the whole batch
    (16, "gpu", 800, True, "dense"),  # as on one GPU: the number of devices must not choose
    (32, "cpu", 100, True, "blocked"),
    (32, "gpu", 800, True, "blocked"),
]


def test_auto_takes_the_cheapest_that_fits():
    grids = ((16, 16), (32, 32), (128, 128), (6, 100), (7, 100), (3, 999))
    assert [parts.rows_per_block(*grid) for grid in grids] == [16, 8, 2, 2, 1, 1]
    position = layer(dtype="float32", num_heads=9, attention_dropout_on="factors")
    content = layer(dtype="float32", num_heads=9, **CONTENT)
    for side, platform, batch, reads, expected in TAKEN:
        attention = for_platform(content if reads else position, platform)
        assert parts.implementation_for(attention, (batch, side, side, HIDDEN), training=True) == expected
    # Which no product of factors can express: single probabilities that are dropped.
    attention, shape = layer(dtype="float32", implementation="factorised", attention_dropout=0.5), (1, *GRID, HIDDEN)
    assert parts.implementation_for(attention, shape, training=False) == "factorised"
    assert parts.implementation_for(attention, shape, training=True) != "factorised"
