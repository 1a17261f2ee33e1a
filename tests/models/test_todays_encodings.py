"""Encodings after the paper's: values by loops over pixels from their formulas, identities, larger images."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.analysis.heads import layer_statistics
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.attention.encoding import FactorisingEncoding
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.attention.scores import outer
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.encodings.pape import Pape
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.run import Run
from tests.support import numpy_attention as naive

NAMES = ("pape", "pape_ri", "rope", "rope_mixed", "alibi", "alibi_manhattan", "kerple", "fire", "lookhere")
CONTENT = NAMES[:4]
HEIGHT, WIDTH, HEADS, HIDDEN, HEAD_SIZE = 3, 4, 6, 8, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def layer_of(name, height=HEIGHT, width=WIDTH, **model):
    sizes = {"num_layers": 2, "num_heads": HEADS, "hidden_size": HIDDEN, "head_size": HEAD_SIZE, "downsample": 1}
    config = attention_config(encoding=name, dtype="float64", image_shape=(height, width, 3), **sizes | model)
    return create_model(config.model, rngs=nnx.Rngs(0)).blocks[0].attention


def image(height=HEIGHT, width=WIDTH, seed=1):
    return jax.random.normal(jax.random.key(seed), (height, width, HIDDEN), jnp.float64)


def value(variable):
    return np.asarray(variable[...])


def head_of(linear, x, h):
    """What a linear map to all heads gives one of them, for a pixel `(d,)`."""
    y = x @ value(linear.kernel) + (0 if linear.bias is None else value(linear.bias))
    return y.reshape(HEADS, -1)[h]


def rotated(vector, angles):
    """Complex numbers from neighbouring channels, turned."""
    numbers = (vector[::2] + 1j * vector[1::2]) * np.exp(1j * angles)
    return np.stack([numbers.real, numbers.imag], axis=-1).ravel()


def naive_score(name, encoding, x):
    """`score(h, query, key)` as the papers state it."""

    def fire(axis, h, i, k, size):
        c, reach = abs(value(axis.scale)), max(i, size - 1 - i)
        psi = lambda z: math.log(c * z + 1)  # noqa: E731
        z = np.array([psi(abs(k - i)) / psi(max(abs(value(axis.threshold)), reach))])
        hidden = np.maximum(z @ value(axis.hidden.kernel) + value(axis.hidden.bias), 0)
        return hidden @ value(axis.output.kernel)[:, h]

    def score(h, q, k):
        row, column = k[0] - q[0], k[1] - q[1]
        if name in CONTENT:
            query, key = head_of(encoding.query, x[q], h), head_of(encoding.key, x[k], h)
        match name:
            case "alibi":
                return -(2.0 ** (-8 * (h + 1) / HEADS)) * math.hypot(row, column)
            case "alibi_manhattan":
                return -(2.0 ** (-8 * (h + 1) / HEADS)) * (abs(row) + abs(column))
            case "kerple":
                r1, r2 = np.exp(value(encoding.log_strength)[h]), np.exp(value(encoding.log_scale)[h])
                return sum(-r1[a] * math.log(1 + r2[a] * abs(s)) for a, s in enumerate((row, column)))
            case "fire":
                of_row = fire(encoding.row, h, q[0], k[0], HEIGHT)
                return of_row + fire(encoding.column, h, q[1], k[1], WIDTH)
            case "lookhere":  # six heads: up left, up right, down left, down right, then two that see everything
                slope = 1.5 * (0.5, 0.5, 0.5, 0.5, 0.25, 0.0625)[h]
                up, left = ((True, True), (True, False), (False, True), (False, False), (None, None), (None, None))[h]
                hidden = up is not None and ((row > 0 if up else row < 0) or (column > 0 if left else column < 0))
                return -np.inf if hidden else -slope * math.hypot(row, column)
            case "rope":
                n = np.arange(HEAD_SIZE // 4)
                f = 100.0 ** (-4 * n / HEAD_SIZE)
                query, key = (rotated(v, np.concatenate([p[0] * f, p[1] * f])) for v, p in ((query, q), (key, k)))
                return query @ key / math.sqrt(HEAD_SIZE)
            case "rope_mixed":
                f = value(encoding.frequency)[h]
                query, key = (rotated(v, f @ np.array(p, float)) for v, p in ((query, q), (key, k)))
                return query @ key / math.sqrt(HEAD_SIZE)
        total = query @ key / math.sqrt(HEAD_SIZE)
        tilt = head_of(encoding.tilt, x[q], h) if name == "pape" else np.zeros(2)
        for w, a, b in zip(value(encoding.direction)[h], head_of(encoding.width, x[q], h), tilt, strict=True):
            u_q, u_k = w @ np.array(q), w @ np.array(k)
            total += -math.log1p(math.exp(a)) * (u_q - u_k) ** 2 + b * (u_q - u_k)
        return total

    return score


@pytest.mark.parametrize("name", NAMES)
def test_attention_is_that_of_the_formula_and_gradients_are_differences(name):
    layer, x = layer_of(name), image()
    expected = naive.softmax_over_keys(
        naive.scores_of_image(naive_score(name, layer.position, np.asarray(x)), HEADS, HEIGHT, WIDTH)
    )
    found = jax.jit(layer.probabilities)(x[None])
    assert (found.ndim == 6) == (name in CONTENT) == layer.depends_on_content
    chex.assert_trees_all_close(found.reshape(expected.shape), expected, rtol=1e-12, atol=1e-14)

    skeleton, parameters, _ = split(layer)
    direction = {n: jnp.cos(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape) for n, p in parameters.items()}
    fixed = {f"position.{n}" for n in ("slope", "direction", "frequency")} - (
        {"position.frequency"} if name == "rope_mixed" else {"position.direction"} if name == "pape" else set()
    )
    direction = {n: 0 * d if n in fixed else d for n, d in direction.items()}
    weight = image(seed=2)

    @jax.jit
    def loss(t):
        moved = {n: p + t * direction[n] for n, p in parameters.items()}
        return jnp.vdot(join(skeleton, moved, {})(x[None])[0], weight)

    np.testing.assert_allclose(jax.grad(loss)(0.0), (loss(1e-5) - loss(-1e-5)) / 2e-5, rtol=1e-6)
    gradients = jax.grad(lambda p: jnp.vdot(join(skeleton, p, {})(x[None])[0], weight))(parameters)
    assert all(np.isfinite(g).all() and g.any() != (n in fixed) for n, g in gradients.items() if "bias" not in n)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CONTENT])
def test_factorised_is_dense_where_it_factorises(name):
    layer = layer_of(name)
    factorises = name in ("alibi_manhattan", "kerple", "fire")
    assert isinstance(layer.position, FactorisingEncoding) == layer.factorises == factorises
    if factorises:
        (scores,) = layer.position_terms(HEIGHT, WIDTH).values()
        dense = jax.nn.softmax(scores.reshape(HEADS, HEIGHT * WIDTH, -1))
        chex.assert_trees_all_close(outer(*layer.factors((HEIGHT, WIDTH))), dense, rtol=1e-12)
        outputs = [layer_of(name, implementation=how)(image()[None]) for how in ("factorised", "dense")]
        chex.assert_trees_all_close(*outputs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_what_is_moved_are_the_scores_there(name):
    """An image and the same one pixel down and two to the right, in a larger one: equal scores of equal pairs."""
    layer = layer_of(name, 6, 8, head_size=8)
    x = image(6, 8)
    moved = jnp.roll(x, (1, 2), axis=(0, 1))
    before, after = (
        sum(jnp.broadcast_to(term, (1, HEADS, 6, 8, 6, 8)) for term in terms.values())[0]
        for terms in (layer.content_terms(each[None]) | layer.position_terms(6, 8) for each in (x, moved))
    )
    chex.assert_trees_all_close(after[:, 1:, 2:, 1:, 2:], before[:, :-1, :-2, :-1, :-2], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rope", "rope_mixed"])
def test_rotations_keep_lengths_and_products_depend_on_the_shift_alone(name):
    position = layer_of(name, 5, 5, head_size=8).position
    same = jnp.broadcast_to(image()[:1, :1], (1, 5, 5, HIDDEN))  # every pixel reads the same
    query, key = position.project(same)
    lengths = jnp.linalg.norm(query, axis=-1)
    chex.assert_trees_all_close(lengths, jnp.broadcast_to(lengths[:, :, :1, :1], lengths.shape), rtol=1e-12)
    product = jnp.einsum("hijc,hklc->hijkl", query[0], key[0])
    chex.assert_trees_all_close(product[:, 1:, 1:, 1:, 1:], product[:, :-1, :-1, :-1, :-1], rtol=1e-10)
    assert np.ptp(product[:, 0, 0]) > 0.01


def test_pape_is_the_quadratic_encoding_where_its_maps_read_a_constant():
    """And its figures' centres and covariances are then the parameters of eq. 9."""
    quadratic = Quadratic(HEADS, dtype=jnp.float64, rngs=nnx.Rngs(3))
    pape = Pape(HEADS, HIDDEN, HEAD_SIZE, dtype=jnp.float64, rngs=nnx.Rngs(0))
    alpha, centre = value(quadratic.spread) ** 2 / 2, value(quadratic.centre)
    pape.query.kernel[...] = 0 * pape.query.kernel[...]
    pape.query.bias[...] = 0 * pape.query.bias[...]
    pape.direction[...] = jnp.broadcast_to(jnp.eye(2), (HEADS, 2, 2))
    for linear, constants in ((pape.width, np.log(np.expm1(alpha))[:, None] + np.zeros(2)),
                              (pape.tilt, -2 * alpha[:, None] * centre)):  # fmt: skip
        linear.kernel[...] = jnp.zeros(linear.kernel.shape).at[0].set(constants.ravel())
    x = image(5, 6).at[:, :, 0].set(1.0)[None]  # the first channel is the constant
    rows = jnp.arange(5)
    (expected,) = quadratic.position_terms(5, 6, rows).values()
    found = sum(pape.content_terms(pape.project(x), rows).values())[0]
    softmax = lambda scores: jax.nn.softmax(scores.reshape(HEADS, 30, 30))  # noqa: E731
    chex.assert_trees_all_close(softmax(found), softmax(expected), rtol=1e-12)
    found, covariance = pape.shapes(x)
    chex.assert_trees_all_close(found[0, :, 2, 3], centre, rtol=1e-10)
    chex.assert_trees_all_close(covariance[0, :, 2, 3], np.eye(2)[None] / (2 * alpha)[:, None, None], atol=1e-12)


ALL = (*NAMES, "quadratic", "quadratic_generalized", "learned", "relative", "absolute_learned")


@pytest.mark.parametrize("name", ALL)
def test_rescaled_encodings_score_a_longer_shift_as_before(name):
    """At twice the size, pixels and shifts twice as far apart; at scale one nothing changes."""
    layer = layer_of(name, 5, 5)
    x = image(5, 5)[None]
    if name == "fire":  # beyond every distance: the farthest pixel of a larger image is not quite twice as far away
        layer.position.row.threshold[...] = layer.position.column.threshold[...] = jnp.asarray(6.0)
    kept = jax.tree.leaves(split(layer)[1])

    def scores(x):
        size = x.shape[1]
        terms = layer.content_terms(x) | layer.position_terms(size, size)
        return sum(jnp.broadcast_to(term, (1, HEADS, *(size,) * 4)) for term in terms.values())[0]

    before = scores(x)
    layer.position.rescale(1, 1)
    chex.assert_trees_all_close(jax.tree.leaves(split(layer)[1]), kept, rtol=1e-14)
    layer.position.rescale(2, 2)
    large = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    after = scores(large)[:, ::2, ::2, ::2, ::2]
    if name == "absolute_learned":  # bilinear: near what it was
        assert after.shape == before.shape
    else:
        chex.assert_trees_all_close(after, before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_generic_answers_serve_every_encoding(name):
    """Heads, pruning, FLOPs, the accelerators' form and bfloat16, from what the base class asks."""
    config = attention_config(
        encoding=name,
        image_shape=(4, 4, 1),
        downsample=1,
        num_layers=1,
        num_heads=3,
        hidden_size=8,
        intermediate_size=8,
    )
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1), np.uint8)
    config.dataset.update({"mean": (0.5,), "std": (0.25,), "name": "digits"})
    with jax.enable_x64(False):
        run = Run(config, 1, create_model(config.model, rngs=nnx.Rngs(0)))
        attention = run.attention(images)[0]
        assert count_flops(config.model).full > count_flops(config.model).linear > 0
        fewer = run.without_heads([(0, 1)]).attention(images)[0]
        np.testing.assert_allclose(fewer, np.delete(attention, 1, axis=-5), rtol=1e-6)
        found = layer_statistics(attention, np.zeros((1, 2), int))
        assert np.isfinite(found.entropy).all()
        x = run.normalised(images)
        expected = run.model(x)[0]
        chex.assert_trees_all_close(for_platform(run.model, "gpu")(x)[0], expected, rtol=1e-4, atol=1e-5)
        config.model.dtype = "bfloat16"
        with jax.numpy_dtype_promotion("standard"):
            half = create_model(config.model, rngs=nnx.Rngs(0))(x.astype(jnp.bfloat16))[0]
        chex.assert_trees_all_close(half, expected, atol=0.1 * float(jnp.abs(expected).max()))
