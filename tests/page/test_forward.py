"""The JavaScript network in Chromium gives the logits of the model: every kind, every option, and changed alike."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.encodings import REGISTRY, CentredEncoding
from attn_cnn_jax.models.encodings.relative import RELATIVE_TERMS
from attn_cnn_jax.page.build import page_data
from attn_cnn_jax.page.network import network_data, reason_not_to_compute
from tests.page.conftest import GRID, random_run
from tests.support import networks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Every encoding; content and gates, which are the same for all, with one; relative encodings also with single terms.
NETWORKS = [
    *({"encoding": encoding} for encoding in sorted(REGISTRY) if not encoding.startswith(("pape", "rope"))),
    *({"encoding": "quadratic", "content": True, "gate": gate} for gate in (False, True)),
    *({"encoding": "relative", "relative_terms": (term,)} for term in RELATIVE_TERMS[1:]),
]

FORWARD = """
const [page, bytes, changes, done] = arguments;
const found = [];
const answer = answerer(({ logits }) => found.push(Array.from(logits.at(-1))));
const { weights, test, ...network } = page.network;
const { grid, size: [height] } = page;
const start = { network, weights: floatsOf(weights), grid, size: height / grid[0], test: null };
answer({ start });
for (const { terms, off = [], moved = {} } of changes) {
  const state = { ...unchanged(), terms: new Set(terms ?? page.terms), off: new Set(off), moved };
  const layers = page.layers.map((layer, l) => withMoves(layer, l, state.moved));
  answer({ classify: { bytes: Uint8Array.from(bytes), id: found.length, layers, changes: changesOf(state) } });
}
done(found);
"""


class Change(NamedTuple):
    """What a visitor changes: terms that stay (None for all), and heads `(layer, head)` that go."""

    terms: tuple[str, ...] | None = None
    off: tuple[tuple[int, int], ...] = ()

    def in_page(self):
        return {"terms": self.terms, "off": [f"{layer},{head}" for layer, head in self.off]}


@pytest.fixture
def computed(probe):
    """`computed(run, picture, changes)`: logits as the page's network gives them, a row per change of the view."""
    page = probe()

    def logits(run, picture, changes):
        assert reason_not_to_compute(run, GRID) is None
        data = page_data(run, picture.shape[:2], title="a network")
        data["network"] = network_data(run, GRID, ())
        return np.array(page.driver.execute_async_script(FORWARD, data, picture.ravel().tolist(), changes))

    return logits


def logits_of(run, picture):
    """The model's logits of a picture."""
    return networks.logits_of(run.model, run.normalised(picture[None]))[0]


def changed_logits(run, picture, changes):
    """The model's logits with score terms and heads taken out of it, a row per change."""
    return jax.jit(lambda: logits_with_changes(run, picture, changes))()


def logits_with_changes(run, picture, changes):
    model, axes = run.model, (slice(None), *(None,) * 5)
    x = model(run.normalised(np.stack([picture] * len(changes))))[1]["embedding"]
    for number, block in enumerate(model.blocks):
        layer = block.attention
        position = {name: term[None] for name, term in layer.position_terms(*GRID).items()}
        content = networks.separate_terms(layer, x)
        stays = {
            name: np.array([change.terms is None or name in change.terms for change in changes])
            for name in position | content
        }

        shape = len(x), layer.num_heads, *GRID, *GRID

        def attention(terms, stays=stays, shape=shape):
            chosen = [jnp.where(stays[name][axes], jnp.broadcast_to(term, shape), 0.0) for name, term in terms.items()]
            return jax.nn.softmax(sum(chosen, jnp.zeros(shape)).reshape(*shape[:2], GRID[0] * GRID[1], -1))

        found = attention(position | content)
        if layer.gate is not None:  # weighs two softmaxes where there are two
            gate = jax.nn.sigmoid(layer.gate[...])[None, :, None, None]
            both = np.logical_and(*(np.any([stays[name] for name in terms], axis=0) for terms in (position, content)))
            gated = gate * attention(position) + (1 - gate) * attention(content)
            found = jnp.where(both[:, None, None, None], gated, found)
        on = [[(number, head) not in change.off for head in range(layer.num_heads)] for change in changes]
        found = found * np.array(on, np.float32)[:, :, None, None]
        attended = dense(found, x, layer.maps()) + layer.bias
        y = block.attention_norm(x + block.dense(attended))
        x = block.output_norm(y + block.output(jax.nn.gelu(block.intermediate(y), approximate=False)))
    return model.classifier(x.mean(axis=(1, 2)))


def name_of(network):
    return ", ".join(f"{key} {value}" for key, value in network.items() if value)


@pytest.fixture(scope="module")
def picture():
    return np.random.default_rng(7).integers(0, 256, (GRID[0] * 2, GRID[1] * 2, 3), np.uint8)


# Every other network keeps its value maps: heads smaller than the hidden size.
@pytest.mark.parametrize(
    "network", [network | ({"head_size": 4} if n % 2 else {}) for n, network in enumerate(NETWORKS)], ids=name_of
)
def test_every_kind_and_its_changes(computed, picture, network):
    run = random_run(3, **network, hidden_size=12, num_heads=(3, 2))
    names = page_data(run, picture.shape[:2], title="")["terms"]
    changes = [Change(), Change(off=((0, 1),)), Change(off=((0, 0), (1, 1))), Change(terms=())]
    changes += [Change(terms=tuple(other for other in names if other != name)) for name in names]
    changes += [Change(terms=(name,), off=((1, 0),)) for name in names]
    moved = {"1,0": {"centre": [1.0, -0.5], "factor": 4.0}}
    *logits, of_moved = computed(run, picture, [*(change.in_page() for change in changes), {"moved": moved}])
    np.testing.assert_allclose(logits[0], logits_of(run, picture), atol=1e-5)
    expected = changed_logits(run, picture, changes)
    for change, found, row in zip(changes, logits, expected, strict=True):
        np.testing.assert_allclose(found, row, atol=1e-5, err_msg=str(change))
    position = run.model.blocks[1].attention.position
    if isinstance(position, CentredEncoding):
        position.centre[...] = position.centre[...].at[0].set(jnp.array([1.0, -0.5]))
        position.spread[...] = position.spread[...].at[0].multiply(4)
        np.testing.assert_allclose(of_moved, changed_logits(run, picture, [Change()])[0], atol=1e-5)
        assert np.abs(of_moved - logits[0]).max() > 1e-4


@pytest.mark.parametrize("encoding", ["distance", "landmark"])
def test_encodings_of_ones_own(computed, picture, encoding):
    run = random_run(encoding=encoding, content=True, hidden_size=12, head_size=4)
    changes = [Change(), Change(terms=("content",))]
    logits = computed(run, picture, [change.in_page() for change in changes])
    np.testing.assert_allclose(logits, changed_logits(run, picture, changes), atol=1e-5)


@pytest.mark.parametrize("encoding", ["learned", "relative", "absolute_sinusoidal"])
def test_pictures_smaller_than_those_of_training(computed, picture, encoding):
    larger = (GRID[0] * 2 + 4, GRID[1] * 2 + 2, 3)
    run = random_run(encoding=encoding, image_shape=larger, hidden_size=12, head_size=4)
    logits = computed(run, picture, [Change().in_page()])
    np.testing.assert_allclose(logits[0], logits_of(run, picture), atol=1e-4)


def test_a_network_in_bfloat16_is_computed_in_float32(computed, picture):
    half, single = (random_run(encoding="absolute_learned", dtype=dtype) for dtype in ("bfloat16", "float32"))
    logits = computed(half, picture, [Change().in_page()])
    np.testing.assert_allclose(logits[0], logits_of(single, picture), atol=1e-4)
