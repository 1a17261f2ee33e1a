"""Every encoding against the naive loops of tests/support, in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.encodings.relative import RELATIVE_TERMS
from tests.support import numpy_attention as naive

HEIGHT, WIDTH, HEADS, HIDDEN, HEAD_SIZE = 3, 4, 2, 8, 3  # 8 channels: two frequencies of sinusoids per axis


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def layer_and_picture(**model):
    """A float64 attention layer with no parameter left at a special value, and a picture for it."""
    config = attention_config(
        dtype="float64", image_shape=(HEIGHT, WIDTH, 3), downsample=1, num_layers=1, num_heads=HEADS, hidden_size=HIDDEN
    ).model
    with config.unlocked():
        config.update(model)
    layer = create_model(config, rngs=nnx.Rngs(0)).blocks[0].attention
    return layer, jax.random.normal(jax.random.key(1), (HEIGHT, WIDTH, HIDDEN), jnp.float64)


def value(variable):
    return np.asarray(variable[...])


def per_head(linear):
    """A linear map to `h D_h` features as one matrix a head, `(h, D, D_h)`, and its bias `(h, D_h)`."""
    kernel = value(linear.kernel)
    weights = kernel.reshape(kernel.shape[0], HEADS, -1).transpose(1, 0, 2)
    return weights, None if linear.bias is None else value(linear.bias).reshape(HEADS, -1)


def naive_scores(layer, x):
    """Scores `(h, i, j, k, l)` of the layer's parameters by a loop over heads and pairs of pixels."""
    position, kind = layer.position, type(layer.position).__name__
    x = np.asarray(x)
    content = None if layer.content is None else per_head(layer.content.query) + per_head(layer.content.key)
    if kind == "Relative":
        maps = {name: per_head(getattr(position, name))[0] for name in ("query", "key") if getattr(position, name)}
        tables = [value(position.tables.row), value(position.tables.column)] if position.tables else None

    def score(h, q, k):
        if kind == "Quadratic":
            total = naive.quadratic_score(q, k, value(position.centre)[h], value(position.spread)[h])
        elif kind == "GeneralizedQuadratic":
            total = naive.generalized_quadratic_score(q, k, value(position.centre)[h], value(position.spread)[h])
        elif kind == "Learned":
            rows, columns = value(position.tables.row), value(position.tables.column)
            weights = value(position.row_weight)[h], value(position.column_weight)[h]
            total = naive.learned_score(q, k, rows, columns, *weights)
        elif kind == "Content":
            maps_and_biases = [part[h] for each in (position.query, position.key) for part in per_head(each)]
            total = naive.content_score(x[q], x[k], *maps_and_biases)
        elif kind == "Relative":
            names = {"position_content": "bias_content", "position_position": "bias_position"}
            of_head = lambda parameter, shape: np.zeros(shape) if parameter is None else value(parameter)[h]  # noqa: E731
            total = naive.relative_score(
                x[q],
                x[k],
                naive.relative_vector(q, k, *tables) if tables else np.zeros(HIDDEN),
                *(maps[name][h] if name in maps else np.zeros((HIDDEN, HEAD_SIZE)) for name in ("query", "key")),
                of_head(position.position_key, (HIDDEN, HEAD_SIZE)),
                of_head(position.content_bias, HEAD_SIZE),
                of_head(position.position_bias, HEAD_SIZE),
                terms=tuple(names.get(term, term) for term in position.terms),
            )
        else:
            weights = [per_head(m)[0][h] for m in (position.query, position.key)]
            learned = position.position
            p = naive.sinusoidal_positions(HEIGHT, WIDTH, HIDDEN) if learned is None else value(learned)
            total = naive.absolute_score(x[q], p[q], x[k], p[k], *weights)
        if content is not None:
            total += naive.content_score(x[q], x[k], *(each[h] for each in content))
        return total

    return naive.scores_of_image(score, HEADS, HEIGHT, WIDTH)


CASES = [
    {"encoding": "quadratic"},
    {"encoding": "quadratic", "head_size": HEAD_SIZE},
    {"encoding": "quadratic_generalized"},
    {"encoding": "learned"},
    {"encoding": "quadratic", "content": True},
    {"encoding": "quadratic_generalized", "content": True, "head_size": HEAD_SIZE},
    {"encoding": "learned", "content": True},
    {"encoding": "relative", "head_size": HEAD_SIZE},
    *({"encoding": "relative", "head_size": HEAD_SIZE, "relative_terms": (term,)} for term in RELATIVE_TERMS),
    {"encoding": "absolute_learned", "head_size": HEAD_SIZE},
    {"encoding": "absolute_sinusoidal"},
    {"encoding": "content"},
    {"encoding": "learned", "position_size": 3},
    {"encoding": "relative", "head_size": HEAD_SIZE, "position_size": 5},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_attention_and_output_are_those_of_the_papers_formulas(case):
    layer, x = layer_and_picture(**case)
    expected = naive.softmax_over_keys(naive_scores(layer, x))
    got = jax.jit(layer.probabilities)(x[None])
    assert (got.ndim == 6) == layer.depends_on_content
    got = got[0] if layer.depends_on_content else got
    chex.assert_trees_all_close(got.reshape(expected.shape), expected, rtol=1e-12)
    weights = value(layer.output.kernel).reshape(HEADS, -1, HIDDEN)
    if case.get("head_size"):
        assert layer.value.kernel.shape == (HIDDEN, HEADS * HEAD_SIZE)
        weights = value(layer.value.kernel).reshape(HIDDEN, HEADS, HEAD_SIZE).transpose(1, 0, 2) @ weights
    expected = naive.mhsa(expected, np.asarray(x), weights, value(layer.output.bias))
    other = jax.random.normal(jax.random.key(2), x.shape, x.dtype)
    got = jax.jit(layer)(jnp.stack([other, x]))[1]
    chex.assert_trees_all_close(got, expected, rtol=1e-11, atol=1e-12)


def test_content_alone_knows_no_positions():
    """Pixels in another order: the same attention in that order."""
    layer, x = layer_and_picture(encoding="content")
    order = np.random.default_rng(0).permutation(HEIGHT * WIDTH)
    mixed = x.reshape(-1, HIDDEN)[order].reshape(x.shape)
    flat = lambda x: np.asarray(layer.probabilities(x[None]))[0].reshape(HEADS, HEIGHT * WIDTH, -1)  # noqa: E731
    chex.assert_trees_all_close(flat(mixed), flat(x)[:, order][:, :, order], rtol=1e-12)
    assert layer.position_terms(HEIGHT, WIDTH) == {}


def test_quadratic_attention_of_an_interior_query_is_gaussian_around_its_centre():
    layer, _ = layer_and_picture(encoding="quadratic", image_shape=(31, 31, 3))
    layer.position.centre[...] = jnp.array([[2.0, -1.0], [0.5, 0.25]])
    layer.position.spread[...] = jnp.array([1.0, 0.8])
    attention = layer.probabilities(jnp.zeros((1, 31, 31, HIDDEN), jnp.float64))
    row, column = np.meshgrid(np.arange(31) - 15, np.arange(31) - 15, indexing="ij")
    for h, spread in enumerate((1.0, 0.8)):
        p = np.asarray(attention[h, 15, 15])
        mean = np.array([(p * row).sum(), (p * column).sum()])
        np.testing.assert_allclose(mean, value(layer.position.centre)[h], atol=1e-6)
        variance = (p * (row - mean[0]) ** 2).sum()
        np.testing.assert_allclose(variance, spread**-2, rtol=1e-6)


def test_pictures_of_any_size_with_quadratic_heads_and_a_clear_error_with_tables():
    layer, _ = layer_and_picture(encoding="quadratic")
    assert layer(jnp.ones((1, 7, 2, HIDDEN), jnp.float64)).shape == (1, 7, 2, HIDDEN)
    layer, _ = layer_and_picture(encoding="learned")
    with pytest.raises(UserError, match="7x2 pixels, where learned relative positions reach 3x4"):
        layer(jnp.ones((1, 7, 2, HIDDEN), jnp.float64))
    with pytest.raises(UserError, match=r"config\.model\.hidden_size=6: allowed is a multiple of 4"):
        layer_and_picture(encoding="absolute_sinusoidal", hidden_size=6)


def test_what_images_share_has_the_sum_over_them_as_its_gradient():
    generator = np.random.default_rng(0)
    of_images, shared, gradient = (generator.normal(size=size) for size in ((5, 2, 3, 4), (2, 3, 4), (5, 2, 3, 4)))
    arguments = jnp.asarray(of_images), jnp.asarray(shared)
    total, backward = jax.vjp(jax.jit(scores.add_shared), *arguments)
    np.testing.assert_array_equal(total, of_images + shared)
    expected = (gradient, gradient.sum(axis=0))
    chex.assert_trees_all_close(backward(jnp.asarray(gradient)), expected, rtol=1e-14, atol=1e-14)
    _, forward = jax.jvp(scores.add_shared, arguments, arguments)
    np.testing.assert_allclose(forward, of_images + shared)
