"""The JavaScript network in Chromium gives the logits of the model: every kind, every option, and changed alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from attn_cnn_jax import reference
from attn_cnn_jax.models.attention.encoding import Sizes
from attn_cnn_jax.models.encodings import REGISTRY, Quadratic
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.build import in_json, page_data
from attn_cnn_jax.page.network import network_data, reason_not_to_compute
from attn_cnn_jax.page.scores import position_parameters
from tests.page.conftest import CLASSES, GRID, SIZE, random_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LARGER = {"image_shape": (SIZE[0] + 4, SIZE[1] + 2, 3)}  # trained on such images, and shown with smaller ones
# Networks of every kind of scores, with what a choice of score terms in the page is in the model: parameters that are
# set to a number. Values are merged or, with heads smaller than the hidden size, not.
NETWORKS = [
    ({"encoding": "quadratic"}, {(): {"spread": 0}}),
    (
        {"encoding": "quadratic_generalized", "content": True, "gate": True, "head_size": 4},
        {("content",): {"gate": -100}, ("position",): {"gate": 100}},
    ),
    (
        {"encoding": "learned", "content": True, "head_size": 4} | LARGER,
        {("content",): {"weight": 0}, ("position",): {"query.kernel": 0, "query.bias": 0}},
    ),
    ({"encoding": "alibi", "content": True}, {("content",): {"slope": 0}, (): {"slope": 0, "key.kernel": 0}}),
    ({"encoding": "landmark", "content": True, "head_size": 4}, {}),
    ({"encoding": "content", "block": "pre_norm", "window": 5}, {(): {"query.kernel": 0, "query.bias": 0}}),
    ({"encoding": "absolute_learned"}, {("content_content",): {"position.position": 0}}),
    ({"encoding": "absolute_sinusoidal", "dtype": "bfloat16"} | LARGER, {}),  # the page has its parameters in float32
    (
        {"encoding": "relative", "head_size": 4} | LARGER,
        {
            ("content_content", "content_position", "position_content"): {"position_bias": 0},
            ("content_content", "content_position"): {"position_bias": 0, "content_bias": 0},
            ("content_content", "position_content"): {"position_key": 0},
            ("content_position", "position_position"): {"key.kernel": 0},
            ("position_content", "position_position"): {"query.kernel": 0},
        },
    ),
]

FORWARD = """
const [page, bytes, changes] = arguments;
const { weights, test, ...network } = page.network;
const loaded = withWeights(network, numbersOf(bytesOfText(weights).buffer, network.half));
return changes.map(({ terms = page.terms, off = [], moved = {} }) => {
  const layers = page.layers.map((layer, l) => withMoves(layer, l, moved));
  const state = { terms: new Set(terms), off: new Set(off), convolved: { layers: 0 } };
  const { logits, attention } = forward(loaded, layers, page.grid, Uint8Array.from(bytes), state, []);
  return { logits: Array.from(logits.at(-1)), attention: attention[0].map((map) => Array.from(map)) };
});
"""


def shown(run, image):
    """What the page of a run knows, with the network."""
    assert reason_not_to_compute(run, GRID) is None
    return page_data(run, image.shape[:2], title="") | {"network": network_data(run, GRID, CLASSES)}


def changes_of(parameters, choices):
    """Changes as a visitor makes them, each with the parameters that say the same of the model."""
    output = "blocks.0.attention.output.kernel"
    silent = parameters[output].at[: len(parameters[output]) // 3].set(0)
    changes = [({}, {}), ({"off": ["0,0"]}, {output: silent})]
    for terms, numbers in choices.items():
        set_to = {
            name: jnp.full_like(array, number)
            for name, array in parameters.items()
            for end, number in numbers.items()
            if ".attention." in name and name.endswith(end)
        }
        changes.append(({"terms": terms}, set_to))
    centre, spread = (f"blocks.1.attention.position.{name}" for name in ("centre", "spread"))
    if centre in parameters:
        moved = parameters[centre].at[0].set(jnp.array([1.0, -0.5]))
        wider = parameters[spread].at[0].multiply(4)
        changes.append(({"moved": {"1,0": {"centre": [1.0, -0.5], "factor": 4.0}}}, {centre: moved, spread: wider}))
    return changes


def test_every_kind_and_its_changes(open_page, images):
    driver, image = open_page().driver, images[0]
    for network, choices in NETWORKS:
        size = {"hidden_size": 12, "num_heads": (3, 2)}
        run = single = random_run(3, **network | size)
        if "dtype" in network:
            single = random_run(3, **network | size | {"dtype": "float32"})
        skeleton, parameters, statistics = split(single.model)
        changes, in_model = zip(*changes_of(parameters, choices), strict=True)
        x = single.normalised(image[None])
        logits = lambda parameters: join(skeleton, parameters, statistics)(x)[0]  # noqa: B023, E731
        expected = [reference.evaluate(logits, parameters | of)[0] for of in in_model]
        found = driver.execute_script(FORWARD, shown(run, image), image.ravel().tolist(), changes)
        for change, of_page, of_model in zip(changes, found, expected, strict=True):
            np.testing.assert_allclose(of_page["logits"], of_model, atol=1e-5, err_msg=f"{network} {change}")
            assert change == {} or np.abs(of_model - expected[0]).max() > 1e-4, (network, change)


def test_terms_of_absolute_positions(open_page, images):
    """Each of the four terms of eq. 7 alone: what queries and keys read is the image's, or the pixel's."""
    run, image = random_run(3, encoding="absolute_learned", num_heads=3), images[0]
    content = jnp.asarray(run.intermediates(image[None])["embedding"])
    encoding = run.model.blocks[0].attention.position
    reads = {"content": content, "position": encoding.position_vectors(content)}
    terms = [(query, key) for query in reads for key in reads]
    changes = [{"terms": [f"{query}_{key}"]} for query, key in terms]
    found = open_page().driver.execute_script(FORWARD, shown(run, image), image.ravel().tolist(), changes)
    for (query, key), answer in zip(terms, found, strict=True):
        q, k = (np.reshape(of(reads[what]), (-1, 3, 16)) for of, what in ((encoding.query, query), (encoding.key, key)))
        expected = jax.nn.softmax(np.einsum("qhc,phc->hqp", q, k) / 4).reshape(3, -1)
        np.testing.assert_allclose(answer["attention"], expected, atol=1e-5, err_msg=f"{query} {key}")


PROBABILITIES = """
const [heads, position, grid, query] = arguments;
const layer = { heads, position, gate: null }, terms = new Set([position.term]);
return Array.from({ length: heads }, (_, h) => Array.from(headProbabilities(layer, h, null, query, grid, terms)));
"""


class Doubled(Quadratic):
    """An encoding of a user's own, with scores that the parameters of the one before it do not describe."""

    def axis_scores(self, height, width):
        row, column = super().axis_scores(height, width)
        return 2 * row, 2 * column


def test_positions_of_every_encoding(open_page):
    """Those that the page has as parameters, and those that it has as a table of scores."""
    driver, query = open_page().driver, (1, 4)
    for name, kind in sorted((REGISTRY | {"doubled": Doubled}).items()):
        encoding = kind.create(Sizes(3, 12, 4, GRID, jnp.float32), position_size=12, rngs=nnx.Rngs(2))
        terms = reference.evaluate(functools.partial(encoding.position_terms, *GRID), jnp.array(query[:1]))
        if not terms:
            continue  # content alone, and positions that queries and keys read
        expected = scipy.special.softmax(np.reshape(sum(terms.values())[:, 0, query[1]], (3, -1)), axis=1)
        given = in_json(position_parameters(encoding, GRID))
        found = driver.execute_script(PROBABILITIES, 3, given, GRID, query)
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


def test_attention_inside_the_kernel(open_page):
    """That of keys at most (K - 1) / 2 rows and columns from the query, by a loop; a diamond has no corners."""
    driver, maps = open_page().driver, np.random.default_rng(0).random((*GRID, *GRID))
    program = "return Array.from(truncated(Float32Array.from(arguments[0]), arguments[1], arguments[2]))"
    for size in (1, 3, 5):
        expected = np.zeros_like(maps)
        for i, j, k, l in np.ndindex(maps.shape):  # noqa: E741
            if abs(k - i) <= size // 2 and abs(l - j) <= size // 2:
                expected[i, j, k, l] = maps[i, j, k, l]
        found = driver.execute_script(program, maps.ravel().tolist(), size, GRID)
        np.testing.assert_allclose(found, expected.ravel(), rtol=1e-6)
