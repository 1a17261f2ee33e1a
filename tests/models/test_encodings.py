"""Every encoding against loops over pixels written from its formula, in float64; identities; larger images."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import cpu, parts
from attn_cnn_jax.models.encodings import LookHere
from attn_cnn_jax.models.encodings.absolute import sinusoidal_positions
from attn_cnn_jax.models.variables import join, split

HEIGHT, WIDTH, HEADS, HIDDEN, HEAD_SIZE = 3, 4, 6, 8, 4
TODAY = ("pape", "pape_ri", "rope", "rope_mixed", "alibi", "alibi_manhattan", "kerple", "fire", "lookhere")
READ_THE_IMAGE = (*TODAY[:4], "relative", "absolute_learned", "absolute_sinusoidal", "content")
FACTORISE = ("quadratic", "learned", "alibi_manhattan", "kerple", "fire")
FIXED = {"alibi": ("slope",), "alibi_manhattan": ("slope",), "lookhere": ("slope", "direction")}
FIXED |= {"rope": ("frequency",), "pape_ri": ("direction",)}  # what is not trained
pytestmark = pytest.mark.usefixtures("float64")


def layer_of(encoding, height=HEIGHT, width=WIDTH, **model):
    sizes = {"num_layers": 2, "num_heads": HEADS, "hidden_size": HIDDEN, "head_size": HEAD_SIZE, "downsample": 1}
    config = attention_config(encoding=encoding, dtype="float64", image_shape=(height, width, 3), **sizes | model)
    key = jax.random.key(0, impl="unsafe_rbg")  # compiles faster than the default
    return create_model(config.model, rngs=nnx.Rngs(key)).blocks[0].attention


def image(height=HEIGHT, width=WIDTH, seed=1):
    return jax.random.normal(jax.random.key(seed), (height, width, HIDDEN), jnp.float64)


def value(variable):
    return np.asarray(variable[...])


def of_head(linear, x, h):
    """What a linear map to all heads gives one of them, for a pixel `(d,)`; zeros without a map."""
    if linear is None:
        return np.zeros(HEAD_SIZE)
    y = x @ value(linear.kernel) + (0 if linear.bias is None else value(linear.bias))
    return y.reshape(HEADS, -1)[h]


def rotated(vector, angles):
    """Complex numbers from neighbouring channels, turned."""
    numbers = (vector[::2] + 1j * vector[1::2]) * np.exp(1j * angles)
    return np.stack([numbers.real, numbers.imag], axis=-1).ravel()


def entry(tables, row, column):
    """Vectors of a row shift and of a column shift: a table of `2M - 1` vectors begins with shift `-(M - 1)`."""
    return value(tables.row)[row + HEIGHT - 1], value(tables.column)[column + WIDTH - 1]


def fire(axis, h, i, k, size):
    c, reach = abs(value(axis.scale)), max(i, size - 1 - i)
    psi = lambda z: math.log(c * z + 1)  # noqa: E731
    z = np.array([psi(abs(k - i)) / psi(max(abs(value(axis.threshold)), reach))])
    hidden = np.maximum(z @ value(axis.hidden.kernel) + value(axis.hidden.bias), 0)
    return hidden @ value(axis.output.kernel)[:, h]


@functools.cache
def sinusoids():
    return np.asarray(sinusoidal_positions(HEIGHT, WIDTH, HIDDEN, jnp.dtype("float64")))


def naive_score(name, encoding, x, h, q, k):
    """The score of one head, query and key as the papers state it."""
    shift = row, column = k[0] - q[0], k[1] - q[1]
    root = math.sqrt(HEAD_SIZE)
    if name in READ_THE_IMAGE:
        query, key = of_head(encoding.query, x[q], h), of_head(encoding.key, x[k], h)
    match name:
        case "quadratic":  # eq. 9
            return -(value(encoding.spread)[h] ** 2) / 2 * ((shift - value(encoding.centre)[h]) ** 2).sum()
        case "quadratic_generalized":
            along = value(encoding.spread)[h].T @ (shift - value(encoding.centre)[h])
            return -0.5 * along @ along
        case "learned":
            of_row, of_column = entry(encoding.tables, row, column)
            return value(encoding.row_weight)[h] @ of_row + value(encoding.column_weight)[h] @ of_column
        case "content":
            return query @ key / root
        case "absolute_learned" | "absolute_sinusoidal":  # eq. 7
            p = sinusoids() if encoding.position is None else value(encoding.position)
            return of_head(encoding.query, x[q] + p[q], h) @ of_head(encoding.key, x[k] + p[k], h) / root
        case "relative":  # eq. 8
            u, v = value(encoding.content_bias)[h], value(encoding.position_bias)[h]
            r = sum(entry(encoding.tables, row, column)) @ value(encoding.position_key)[h]
            return (query @ key + query @ r + u @ key + v @ r) / root
        case "alibi":
            return -(2.0 ** (-8 * (h + 1) / HEADS)) * math.hypot(row, column)
        case "alibi_manhattan":
            return -(2.0 ** (-8 * (h + 1) / HEADS)) * (abs(row) + abs(column))
        case "kerple":
            r1, r2 = np.exp(value(encoding.log_strength)[h]), np.exp(value(encoding.log_scale)[h])
            return sum(-r1[a] * math.log(1 + r2[a] * abs(s)) for a, s in enumerate(shift))
        case "fire":
            return fire(encoding.row, h, q[0], k[0], HEIGHT) + fire(encoding.column, h, q[1], k[1], WIDTH)
        case "lookhere":  # six heads: up left, up right, down left, down right, then two that see everything
            slope = 1.5 * (0.5, 0.5, 0.5, 0.5, 0.25, 0.0625)[h]
            up, left = ((True, True), (True, False), (False, True), (False, False), (None, None), (None, None))[h]
            hidden = up is not None and ((row > 0 if up else row < 0) or (column > 0 if left else column < 0))
            return -np.inf if hidden else -slope * math.hypot(row, column)
        case "rope":
            f = 100.0 ** (-4 * np.arange(HEAD_SIZE // 4) / HEAD_SIZE)
            query, key = (rotated(v, np.concatenate([p[0] * f, p[1] * f])) for v, p in ((query, q), (key, k)))
            return query @ key / root
        case "rope_mixed":
            f = value(encoding.frequency)[h]
            query, key = (rotated(v, f @ np.array(p, float)) for v, p in ((query, q), (key, k)))
            return query @ key / root
    total = query @ key / root
    tilt = of_head(encoding.tilt, x[q], h) if name == "pape" else np.zeros(2)
    for w, a, b in zip(value(encoding.direction)[h], of_head(encoding.width, x[q], h), tilt, strict=True):
        u_q, u_k = w @ np.array(q), w @ np.array(k)
        total += -math.log1p(math.exp(a)) * (u_q - u_k) ** 2 + b * (u_q - u_k)
    return total


def attention_of(scores):
    """Softmax over the keys `(k, l)` of each head and query."""
    exponentials = np.exp(scores - scores.max(axis=(-2, -1), keepdims=True))
    return exponentials / exponentials.sum(axis=(-2, -1), keepdims=True)


def mhsa(attention, x, weights, bias):
    """`sum_h sum_k a_h(q, k) X_k W^(h) + b`: attention `(h, i, j, k, l)`, image `(k, l, d)`, weights `(h, d, o)`."""
    output = np.zeros((*x.shape[:2], len(bias))) + bias
    for h, i, j, *k in np.ndindex(attention.shape):
        output[i, j] += attention[h, i, j, *k] * x[*k] @ weights[h]
    return output


CASES = [  # by every implementation of attention, an image and a row of queries at a time
    {"encoding": "quadratic", "implementation": "factorised"},
    {"encoding": "quadratic", "implementation": "factorised", "head_size": HIDDEN},  # merged value maps
    {"encoding": "quadratic", "implementation": "dense"},
    {"encoding": "quadratic", "implementation": "blocked", "head_size": HIDDEN},
    {"encoding": "quadratic_generalized", "implementation": "blocked"},
    {"encoding": "learned", "position_size": 3},
    {"encoding": "learned", "content": True},
    {"encoding": "learned", "content": True, "gate": True, "implementation": "blocked"},
    {"encoding": "quadratic_generalized", "content": True, "gate": True},
    {"encoding": "relative", "position_size": 5, "implementation": "blocked"},
    *({"encoding": name} for name in ("absolute_learned", "absolute_sinusoidal", "content", *TODAY)),
]


def test_sinusoidal_positions_by_hand():
    expected = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    expected += [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    np.testing.assert_allclose(sinusoidal_positions(2, 3, 8, jnp.dtype("float64"))[1, 2], expected, rtol=1e-15)


def test_lookhere_shares_out_sixteen_heads_as_its_authors_do():
    """Two rounds of four quadrants; eight heads see everything, two with each of four slopes."""
    encoding = LookHere(16, dtype=jnp.float64)
    slopes = np.repeat([1 / 2, 1 / 4], 4), np.repeat([1 / 4, 1 / 16, 1 / 64, 1 / 256], 2)
    np.testing.assert_array_equal(value(encoding.slope), 1.5 * np.concatenate(slopes))
    assert not value(encoding.direction)[8:].any()


@pytest.fixture
def small_parts(monkeypatch):
    """One image and one row of queries at a time."""
    monkeypatch.setattr(parts, "QUERIES_PER_BLOCK", WIDTH)
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    monkeypatch.setattr(cpu, "PIXELS_PER_PART", HEIGHT * WIDTH)
    monkeypatch.setattr(cpu, "factorised", cpu.factorised.__wrapped__)  # nothing traced with parts of another size


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_attention_and_output_are_those_of_the_formula_and_gradients_are_differences(case):
    layer, x, name = layer_of(**case), np.asarray(image()), case["encoding"]
    assert layer.factorises == (name in FACTORISE and layer.content is None)  # attention is then a product

    def scores_by(name, encoding):
        pairs = np.ndindex(HEADS, HEIGHT, WIDTH, HEIGHT, WIDTH)
        scores = [naive_score(name, encoding, x, h, (i, j), (k, l)) for h, i, j, k, l in pairs]  # noqa: E741
        return np.reshape(scores, (HEADS, HEIGHT, WIDTH, HEIGHT, WIDTH))

    position, of_content = scores_by(name, layer.position), scores_by("content", layer.content) if layer.content else 0
    if layer.gate is None:
        expected = attention_of(position + of_content)
    else:  # ConViT: a gate per head weighs two softmaxes
        layer.gate[...] = jnp.linspace(-2.0, 2.0, HEADS)
        gate = 1 / (1 + np.exp(-np.linspace(-2, 2, HEADS)))[:, None, None, None, None]
        expected = gate * attention_of(position) + (1 - gate) * attention_of(of_content)
    skeleton, arrays, _ = split(layer)
    arrays["x"] = jnp.stack([image(seed=2), jnp.asarray(x)])

    @jax.jit
    def found(arrays):
        def loss(arrays):
            layer, images = join(skeleton, arrays, {}), arrays["x"]
            output = layer(images)
            return jnp.vdot(output, images[::-1]), (output[1], layer.probabilities(images))

        return jax.value_and_grad(loss, has_aux=True)(arrays)

    (_, (output, attention)), gradients = found(arrays)
    assert (attention.ndim == 6) == layer.depends_on_content
    attention = attention[1] if layer.depends_on_content else attention
    chex.assert_trees_all_close(attention, expected, rtol=1e-12, atol=1e-14)
    weights = value(layer.output.kernel).reshape(HEADS, -1, HIDDEN)
    if layer.value is not None:
        weights = value(layer.value.kernel).reshape(HIDDEN, HEADS, -1).transpose(1, 0, 2) @ weights
    chex.assert_trees_all_close(output, mhsa(expected, x, weights, value(layer.output.bias)), rtol=1e-11, atol=1e-12)

    fixed = {f"position.{parameter}" for parameter in FIXED.get(name, ())}
    direction = {n: jnp.cos(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape) for n, p in arrays.items()}
    direction = {n: 0 * d if n in fixed else d for n, d in direction.items()}
    ends = ({n: p + step * direction[n] for n, p in arrays.items()} for step in (1e-6, -1e-6))
    after, before = (found(each)[0][0] for each in ends)
    slope = sum(jnp.vdot(gradients[n], d) for n, d in direction.items())
    np.testing.assert_allclose(slope, (after - before) / 2e-6, rtol=1e-6)
    for n, gradient in gradients.items():
        assert np.isfinite(gradient).all()
        assert "bias" in n or bool(gradient.any()) == (n not in fixed), n


def scores_of(layer, x):
    """The sum of all score terms for an image, `(h, i, j, k, l)`."""
    size = x.shape[:2]

    @jax.jit
    def total(x):
        terms = layer.content_terms(x[None]) | layer.position_terms(*size)
        return sum(jnp.broadcast_to(term, (1, layer.num_heads, *size, *size)) for term in terms.values())[0]

    return total(x)


@pytest.mark.parametrize("name", [name for name in TODAY if name != "fire"])  # FIRE reads the size of the image
def test_scores_of_pixels_that_look_the_same_depend_on_their_shift_alone(name):
    same = jnp.broadcast_to(image()[0, 0], (HEIGHT, WIDTH, HIDDEN))
    scores = np.asarray(scores_of(layer_of(name), same))
    np.testing.assert_allclose(scores[:, 1:, 1:, 1:, 1:], scores[:, :-1, :-1, :-1, :-1], rtol=1e-12, atol=1e-13)
    assert len(np.unique(scores.round(9))) > HEADS  # and differ from shift to shift


def test_pape_is_the_quadratic_encoding_where_its_maps_read_a_constant():
    layer, quadratic = layer_of("pape"), layer_of("quadratic").position
    pape, alpha, centre = layer.position, value(quadratic.spread) ** 2 / 2, value(quadratic.centre)
    pape.query.kernel[...], pape.query.bias[...] = 0 * pape.query.kernel[...], 0 * pape.query.bias[...]
    pape.direction[...] = jnp.broadcast_to(jnp.eye(2), (HEADS, 2, 2))
    widths, tilts = np.log(np.expm1(alpha))[:, None] + np.zeros(2), -2 * alpha[:, None] * centre
    for linear, constants in ((pape.width, widths), (pape.tilt, tilts)):
        linear.kernel[...] = jnp.zeros(linear.kernel.shape).at[0].set(constants.ravel())
    (expected,) = quadratic.position_terms(HEIGHT, WIDTH, jnp.arange(HEIGHT)).values()
    found = scores_of(layer, image().at[:, :, 0].set(1.0))  # the first channel is the constant
    chex.assert_trees_all_close(attention_of(np.asarray(found)), attention_of(np.asarray(expected)), rtol=1e-12)


BY_AXIS = ("rope", "rope_mixed", "kerple", "pape", "quadratic_generalized", "learned", "relative")  # rescaled


@pytest.mark.parametrize(
    "name", [*TODAY, "quadratic", "quadratic_generalized", "learned", "relative", "absolute_learned"]
)
def test_rescaled_encodings_score_a_longer_shift_as_before(name):
    """At twice the size, pixels and shifts twice as far apart; at scale one nothing changes."""
    layer, x = layer_of(name, 5, 5), image(5, 5)
    if name == "fire":  # beyond every distance: the farthest pixel of a larger image is not quite twice as far away
        layer.position.row.threshold[...] = layer.position.column.threshold[...] = jnp.asarray(6.0)
    kept, before = jax.tree.leaves(split(layer)[1]), scores_of(layer, x)
    layer.position.rescale(1, 1)
    chex.assert_trees_all_close(jax.tree.leaves(split(layer)[1]), kept, rtol=1e-14)
    uneven = layer_of(name, 5, 5)
    if name in BY_AXIS:
        uneven.position.rescale(2, 1)
        after = scores_of(uneven, jnp.repeat(x, 2, axis=0))[:, ::2, :, ::2]
        chex.assert_trees_all_close(after, before, rtol=1e-10, atol=1e-10)
    if name == "absolute_learned":
        uneven.position.rescale(2, 1)
        assert uneven.position.position.shape[:2] == (10, 5)
    layer.position.rescale(2, 2)
    after = scores_of(layer, jnp.repeat(jnp.repeat(x, 2, axis=0), 2, axis=1))[:, ::2, ::2, ::2, ::2]
    if name == "absolute_learned":  # bilinear: near what it was
        assert after.shape == before.shape
    else:
        chex.assert_trees_all_close(after, before, rtol=1e-10, atol=1e-10)


def test_images_of_any_size_with_quadratic_heads_and_a_clear_error_with_tables():
    x = jnp.ones((1, 7, 2, HIDDEN), jnp.float64)
    assert layer_of("quadratic")(x).shape == x.shape
    with pytest.raises(UserError, match="7x2 pixels, where learned relative positions reach 3x4"):
        layer_of("learned")(x)
    with pytest.raises(UserError, match=r"config\.model\.hidden_size=6: allowed is a multiple of 4"):
        layer_of("absolute_sinusoidal", hidden_size=6)
