"""Whole networks: types, dropout masks, attention, what gradients keep, and merged maps."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.models import classifier, variables
from attn_cnn_jax.models.attention import layer as attention_module
from attn_cnn_jax.models.merging import merged
from tests.support.networks import logits_of

SIZES = {"image_shape": (4, 6, 3), "hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 3}
NETWORKS = {
    "quadratic": {"encoding": "quadratic"},
    "learned and content": {"encoding": "learned", "content": True, "head_size": 5},
    "gated": {"encoding": "learned", "content": True, "head_size": 5, "gate": True},
}
PICTURES = jax.random.normal(jax.random.key(1), (2, 4, 6, 3))
KEYS = [jax.random.key(seed, impl="unsafe_rbg") for seed in (2, 3)]


@functools.cache
def network(name, **model):
    """A network; the generator of random bits is one that compiles faster than the default."""
    config = attention_config(**SIZES | NETWORKS[name] | model).model
    key = jax.random.key(0, impl="unsafe_rbg")
    return create_model(config, rngs=nnx.Rngs(key))


@pytest.mark.parametrize("name", ["quadratic", "learned and content"])
def test_intermediates_are_what_the_network_computed(name):
    model = network(name, num_layers=2)
    logits, found = jax.jit(lambda state, x: nnx.merge(nnx.graphdef(model), state, copy=True)(x))(
        nnx.state(model), PICTURES
    )
    first, second = found["layers"]
    chex.assert_trees_all_close(found["pixel_logits"].mean(axis=(1, 2)), logits, atol=1e-5)
    chex.assert_trees_all_equal(first["input"], found["embedding"])
    chex.assert_trees_all_equal(second["input"], first["output"])
    chex.assert_trees_all_close(jax.jit(model.blocks[1])(second["input"]), second["output"], atol=1e-5)
    terms = [jnp.broadcast_to(term, (2, 3, 2, 3, 2, 3)) for term in first["content_scores"].values()]
    terms += [jnp.broadcast_to(term[None], (2, 3, 2, 3, 2, 3)) for term in first["position_scores"].values()]
    expected = jax.nn.softmax(sum(terms).reshape(2, 3, 2, 3, 6)).reshape(terms[0].shape)
    chex.assert_trees_all_close(jnp.broadcast_to(first["attention"], expected.shape), expected, atol=1e-6)
    if not model.depends_on_content:
        chex.assert_trees_all_close(model.attention((4, 6, 3))[0], first["attention"], rtol=1e-5)


def test_flax_and_jax_transforms_work_on_a_model():
    """Public methods take and return arrays or trees: flax's table calls each, and leaves a class that fails broken."""
    model = network("learned and content")
    table = nnx.tabulate(model, PICTURES, key=KEYS[0])
    assert "AttentionClassifier Summary" in table
    assert "SelfAttention Summary" in nnx.tabulate(model.blocks[0].attention, jnp.ones((1, 2, 3, 16)))
    nnx.display(model)
    logits = nnx.jit(lambda model, x: model(x)[0])(model, PICTURES)
    one_by_one = jax.jit(jax.vmap(lambda picture: model(picture[None])[0][0]))(PICTURES)
    chex.assert_trees_all_close(one_by_one, logits, atol=1e-5)


def test_forward_mode_agrees_with_reverse_mode():
    """In training, with the masks of one key: `v . (J u)` by `jax.jvp` is `(J^T v) . u` by `jax.vjp`."""
    model = network("gated")
    logits = jax.jit(lambda x: model(x, key=KEYS[0])[0])
    u, v = jax.random.normal(KEYS[0], PICTURES.shape), jax.random.normal(KEYS[1], (2, 10))
    forward = jnp.vdot(v, jax.jvp(logits, (PICTURES,), (u,))[1])
    (gradient,) = jax.vjp(logits, PICTURES)[1](v)
    np.testing.assert_allclose(forward, jnp.vdot(gradient, u), rtol=1e-3)


def test_bfloat16_computes_near_float32_from_float32_parameters_to_float32_logits():
    """bfloat16 keeps 8 bits: each rounding is off by up to 0.4%, a few of them by some percent of the logits' size."""
    half, full = network("learned and content", dtype="bfloat16"), network("learned and content")
    chex.assert_trees_all_equal(variables.split(half)[1:], variables.split(full)[1:])
    with jax.numpy_dtype_promotion("standard"):  # Flax's norms promote bfloat16 against float32 by themselves
        got = logits_of(half, PICTURES.astype(jnp.bfloat16))
    expected = logits_of(full, PICTURES)
    assert got.dtype == expected.dtype == jnp.float32
    assert 0 < jnp.abs(got - expected).max() < 0.04 * jnp.abs(expected).max()
    layer, x = half.blocks[0].attention, jnp.asarray(jnp.tile(PICTURES[:1, :2, :3, :1], 16), jnp.bfloat16)
    attention = jax.jit(layer.probabilities)(x)  # float32 too, and sums to one
    chex.assert_trees_all_close(attention.sum(axis=(-2, -1)), jnp.ones(attention.shape[:-2], jnp.float32), atol=1e-6)


@pytest.mark.parametrize("encoding", ["pape", "rope_mixed", "alibi", "kerple", "fire", "lookhere"])
def test_encodings_serve_batches_of_any_size_and_bfloat16(encoding):
    """Others than the paper's, whose exports tests/interop has; FLOPs are counted too."""
    config = attention_config(**SIZES, encoding=encoding).model
    model = create_model(config, rngs=nnx.Rngs(KEYS[0]))
    expected = logits_of(model, PICTURES)
    if model.depends_on_content:  # other encodings see no image
        any_batch = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("b"), 4, 6, 3), "float32")
        program = jax.export.export(jax.jit(lambda x: model(x)[0]))(any_batch)
        chex.assert_trees_all_close(program.call(PICTURES), expected, rtol=1e-4, atol=1e-5)
    assert count_flops(config).full > count_flops(config).linear > 0
    config.dtype = "bfloat16"
    half = variables.join(variables.split(abstract_model(config))[0], *variables.split(model)[1:])
    with jax.numpy_dtype_promotion("standard"):
        narrow = logits_of(half, PICTURES.astype(jnp.bfloat16))
    chex.assert_trees_all_close(narrow, expected, atol=0.1 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize(("name", "one_mask"), [("quadratic", True), ("learned and content", False)])
def test_attention_dropout_has_one_mask_a_batch_where_attention_depends_on_position_alone(name, one_mask):
    model, twins = network(name, dropout=0.0, attention_dropout=0.5), jnp.stack([PICTURES[0]] * 2)
    first, second = logits_of(model, twins, KEYS[0])
    assert bool(jnp.allclose(first, second, atol=1e-6)) == one_mask
    assert not jnp.allclose(first, logits_of(model, twins)[0], atol=1e-3)
    first, second = logits_of(network(name, dropout=0.5, attention_dropout=0.0), twins, key=KEYS[0])
    assert not jnp.allclose(first, second, atol=1e-3)  # all other dropout has a mask per image


def test_every_dropout_has_a_key_of_its_own(monkeypatch):
    """Two that shared one would drop in step; three in each of two layers."""
    keys = []

    def record(key, x, *_):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return x

    monkeypatch.setattr(jax, "checkpoint", lambda function: function)  # keys are numbers here
    for module in (classifier, attention_module):
        monkeypatch.setattr(module, "dropout", record)
    network("quadratic", num_layers=2)(PICTURES, key=KEYS[0])
    assert len(keys) == len(set(keys)) == 6


def test_a_block_keeps_for_its_gradient_what_matrix_products_read_and_no_more():
    """Input, what dense reads and gives, what each feed-forward map reads and gives: no masks, no statistics.

    And a one per row: a product with it sums gradients over rows.
    """
    model = attention_config(**SIZES | NETWORKS["quadratic"], attention_dropout=0.0, implementation="factorised").model
    block, key = create_model(model, rngs=nnx.Rngs(0)).blocks[0], jax.random.key(0)
    graph, state = nnx.split(block)

    def kept(pictures):
        """Different numbers that the backward pass reads; arrays with the same numbers count once."""
        x = jax.random.normal(jax.random.key(1), (pictures, 2, 3, model.hidden_size))
        block_of = lambda state, x: nnx.merge(graph, state)(x, key)  # noqa: E731
        backward = jax.jit(lambda state, x: jax.vjp(block_of, state, x)[1])(state, x)
        leaves = [leaf for leaf in jax.tree.leaves(backward) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
        return sum({np.sort(leaf, axis=None).tobytes(): leaf.size for leaf in leaves}.values())

    assert kept(2) - kept(1) == 2 * 3 * (5 * model.hidden_size + 2 * model.intermediate_size + 1)


@pytest.mark.usefixtures("float64", "promotion")
@pytest.mark.parametrize("reads", [{}, {"encoding": "learned", "content": True}])
def test_pre_norm_blocks_against_loops(reads):
    """Norms before each half and before the classifier; on every platform."""
    options = {"head_size": 5, "num_layers": 2, "block": "pre_norm", "dtype": "float64"} | reads
    skeleton, parameters, _ = variables.split(network("quadratic", **options))
    keys = jax.random.split(KEYS[0], len(parameters))  # norms that do something
    moved = {
        n: p + 0.1 * jax.random.normal(k, p.shape, p.dtype) for k, (n, p) in zip(keys, parameters.items(), strict=True)
    }
    model, images = variables.join(skeleton, moved, {}), jnp.asarray(PICTURES, jnp.float64)
    found, intermediates = jax.jit(lambda moved, x: variables.join(skeleton, moved, {})(x))(moved, images)

    def affine(layer, x):
        return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

    def normed(layer, x):
        centred = x - x.mean()
        return layer.scale[...] * centred / np.sqrt(np.square(centred).mean() + 1e-12) + layer.bias[...]

    for n, image in enumerate(np.asarray(images)):
        x = np.zeros((2, 3, 16))
        for i, j in np.ndindex(2, 3):
            x[i, j] = affine(model.embedding, image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].ravel())
        for block, of_layer in zip(model.blocks, intermediates["layers"], strict=True):
            read = np.stack([[normed(block.attention_norm, pixel) for pixel in row] for row in x])
            np.testing.assert_allclose(of_layer["input"][n], read, rtol=1e-9, atol=1e-9)
            weights, maps = of_layer["attention"], block.attention.merged_maps()
            weights = weights[n] if weights.ndim == 6 else weights
            x = x + np.einsum("hijkl,kld,hdo->ijo", weights, read, maps) + np.asarray(block.attention.output.bias[...])
            for i, j in np.ndindex(2, 3):
                hidden = jax.nn.gelu(affine(block.intermediate, normed(block.output_norm, x[i, j])), approximate=False)
                x[i, j] += affine(block.output, np.asarray(hidden))
        mean = np.mean([normed(model.norm, pixel) for row in x for pixel in row], axis=0)
        np.testing.assert_allclose(found[n], affine(model.classifier, mean), rtol=1e-9, atol=1e-9)
    on_gpu = jax.jit(lambda moved, x: attention_module.for_platform(variables.join(skeleton, moved, {}), "gpu")(x)[0])
    np.testing.assert_allclose(on_gpu(moved, images), found, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(logits_of(merged(model, (4, 6)), images), found, rtol=1e-9, atol=1e-9)


def test_deep_resnets_are_made_of_bottlenecks():
    """1x1, 3x3 with the stride, 1x1 to four times the channels; how layers follow each other is PyTorch's."""
    config = resnet_config(depth=50, width=2, image_shape=(8, 8, 3)).model
    model = nnx.eval_shape(lambda: create_model(config, rngs=nnx.Rngs(0)))
    assert len(model.blocks) == 3 + 4 + 6 + 3
    block = model.blocks[3]  # the first of the second stage
    layers = [(layer.kernel.shape, layer.strides) for layer in (block.conv1, block.conv2, block.conv3, block.shortcut)]
    assert layers == [((1, 1, 8, 4), 1), ((3, 3, 4, 4), 2), ((1, 1, 4, 16), 1), ((1, 1, 8, 16), 2)]


def test_a_window_reads_around_its_square_and_repeats_what_is_at_the_border():
    """Side 6 around squares of 4: a pixel more on every side."""
    model, images = network("quadratic", image_shape=(8, 12, 3), downsample=4, window=6), np.asarray(PICTURES)
    images = np.concatenate([images, images + 1], axis=1).repeat(2, axis=2)
    read = np.zeros((2, 2, 3, 6, 6, 3), np.float32)
    for b, i, j, dy, dx in np.ndindex(read.shape[:-1]):
        read[b, i, j, dy, dx] = images[b, np.clip(4 * i + dy - 1, 0, 7), np.clip(4 * j + dx - 1, 0, 11)]
    kernel, bias = (np.asarray(array[...]) for array in (model.embedding.kernel, model.embedding.bias))
    assert kernel.shape == (6 * 6 * 3, 16)
    np.testing.assert_allclose(model.embedded(images), read.reshape(2, 2, 3, -1) @ kernel + bias, atol=1e-5)


def test_a_window_smaller_than_its_square_reads_the_middle():
    images = jnp.arange(64.0).reshape(1, 8, 8, 1)
    np.testing.assert_array_equal(classifier.patches(images, 4, 2)[0, 0], [[9, 10, 17, 18], [13, 14, 21, 22]])


# Value maps are merged where that costs less. A head's multiply-adds for one of 16 pixels: whole pixels 8 (16 + 8) =
# 192, values 3 (8 + 16 + 8) = 96 of size 3, 7 (8 + 16 + 8) = 224 of size 7; of 64 pixels 8 (64 + 8) = 576 and
# 7 (8 + 64 + 8) = 560.
@pytest.mark.usefixtures("float64", "promotion")
@pytest.mark.parametrize(
    ("side", "values", "options"),
    [(8, True, {"head_size": 3}), (8, False, {"head_size": 7, "encoding": "learned", "content": True}),
     (16, True, {"head_size": 7})],
)  # fmt: skip
def test_merged_maps_are_the_same_function(side, values, options):
    sizes = {"image_shape": (side, side, 3), "hidden_size": 8, "intermediate_size": 12, "num_layers": 2, "num_heads": 4}
    model = create_model(attention_config(dtype="float64", **sizes | options).model, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (5, side, side, 3))
    before = nnx.state(nnx.clone(model))
    fewer = merged(model, (side, side))
    logits, expected = jax.jit(lambda x: (merged(model, (side, side))(x)[0], model(x)[0]))(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-13)
    for block in fewer.blocks:
        assert block.dense is None
        assert (block.attention.value is not None) == values
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)  # left as it was


def test_a_resnet_has_no_maps_to_merge():
    model = nnx.eval_shape(lambda: create_model(resnet_config().model, rngs=nnx.Rngs(0)))
    assert merged(model, (8, 8)) is model
