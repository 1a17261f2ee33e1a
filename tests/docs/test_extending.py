"""The code of the page "Extend it" runs as it stands: an encoding of one's own, and a layer in another network."""

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_cnn_jax import create_model, load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.page.build import page_data

PAGE = Path(__file__).parents[2] / "docs/extending.md"
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
SHORT = ("--config.train.batch_size=96", "--config.train.num_epochs=1", "--config.train.logger=none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's files, whose modules are forgotten at the end."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("manhattan", "euclidean", "my_rotary"):
        REGISTRY.pop(name, None)
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


@pytest.fixture(scope="module")
def run(folder, data_dir, one_device_in_module):
    workdir = folder / "runs/manhattan"
    line = ["train", f"--config={folder / 'manhattan_digits.py'}", f"--workdir={workdir}", *SHORT]
    assert main([*line, f"--config.dataset.data_dir={data_dir}"]) == 0
    return workdir


def by_hand(slope, distance, height, width):
    """Attention of one head, `(q, p)`: the softmax of `-slope * distance(rows, columns)`."""
    rows, columns = np.mgrid[:height, :width].reshape(2, -1)
    weights = np.exp(-slope * distance(rows[None] - rows[:, None], columns[None] - columns[:, None]))
    return weights / weights.sum(axis=1, keepdims=True)


def test_its_attention_is_the_formula(run):
    loaded = load_run(run)
    for block, attention in zip(loaded.model.blocks, loaded.attention(), strict=True):
        for slope, head in zip(np.asarray(block.attention.position.slope[...]), attention, strict=True):
            expected = by_hand(slope, lambda rows, columns: abs(rows) + abs(columns), 8, 8)
            np.testing.assert_allclose(head.reshape(64, 64), expected, atol=1e-6)


def test_commands_read_the_run(run, folder, capsys):
    load = ["--load", str(folder / "manhattan.py")]
    assert main(["heads", str(run), *load]) == 0
    assert "layer" in capsys.readouterr().out
    assert main(["figures", str(run), "--figures=centres,maps,training", *load]) == 0
    assert {path.suffix for path in (run / "figures").iterdir()} == {".png", ".svg", ".gif"}
    assert main(["page", str(run), "--images=1", *load]) == 0
    assert (run / "viewer.html").stat().st_size > 10_000
    assert main(["summary", str(folder / "manhattan_digits.py")]) == 0


def test_the_page_has_its_scores(run):
    loaded = load_run(run)
    (position, _) = (layer["position"] for layer in page_data(loaded, (8, 8), title="")["layers"])
    assert (position["term"], position["kind"]) == ("position", "axes")
    slope = np.asarray(loaded.model.blocks[0].attention.position.slope[...])
    np.testing.assert_allclose(position["row"], -slope[:, None] * np.abs(np.arange(-7, 8)), rtol=1e-5)


def test_pruning_takes_its_heads(run):
    loaded = load_run(run)
    found, expected = loaded.without_heads([(0, 1)]).attention(), loaded.attention()
    np.testing.assert_allclose(found[0], np.delete(expected[0], 1, axis=0), atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])


def test_an_encoding_or_a_file_that_is_not_there_is_said_in_a_line_or_two(run, tmp_path, capsys, monkeypatch):
    broken, taken = tmp_path / "broken_encoding.py", tmp_path / "encodings.py"
    broken.write_text("1 / 0")
    taken.write_text("1 / 0")
    monkeypatch.delitem(REGISTRY, "manhattan")
    for flags, said in (
        ([], "the encoding 'manhattan', which is not registered here: name its file, --load=FILE"),
        (["--load=nowhere.py"], "--load=nowhere.py: there is no such file"),
        ([f"--load={broken}"], f"--load={broken} cannot be imported: ZeroDivisionError"),
        ([f"--load={taken}"], f"--load={taken}: Python has another module 'encodings': rename the file"),
    ):
        assert main(["heads", str(run), *flags]) == 1
        assert said in capsys.readouterr().err


SMALL = {"image_shape": (4, 5, 1), "num_layers": 1, "num_heads": 2, "hidden_size": 8, "intermediate_size": 8}


def test_scores_that_do_not_factorise(folder):
    importlib.import_module("euclidean")
    model = create_model(encoding="euclidean", downsample=1, **SMALL)
    for slope, head in zip((2.0, 1.0), model.attention((4, 5, 1))[0], strict=True):
        np.testing.assert_allclose(head.reshape(20, 20), by_hand(slope, np.hypot, 4, 5), atol=1e-6)


def test_scores_that_read_the_image(folder):
    importlib.import_module("rotary")
    layer = create_model(encoding="my_rotary", downsample=1, **SMALL).blocks[0].attention
    x = np.random.default_rng(0).normal(size=(1, 4, 5, 8)).astype(np.float32)
    found = np.asarray(layer.content_terms(jnp.asarray(x))["content"])

    def turned(name, row, column):  # as complex numbers, (h, half, pair)
        kernel, bias = (np.asarray(getattr(getattr(layer.position, name), part)[...]) for part in ("kernel", "bias"))
        vector = (x[0, row, column] @ kernel + bias).reshape(2, 2, 2, 2)
        angle = np.array([row, column])[:, None] * 100.0 ** (-np.arange(2) / 2)
        return (vector[:, :, 0] + 1j * vector[:, :, 1]) * np.exp(1j * angle)

    for i, j, k, l in np.ndindex(4, 5, 4, 5):  # noqa: E741
        expected = (turned("query", i, j) * turned("key", k, l).conj()).real.sum(axis=(1, 2)) / np.sqrt(8)
        np.testing.assert_allclose(found[0, :, i, j, k, l], expected, atol=1e-5)
    with pytest.raises(UserError, match="multiples of 4"):
        create_model(encoding="my_rotary", downsample=1, head_size=6, **SMALL)


def test_the_layer_in_another_network_learns(folder):
    network = importlib.import_module("small_network").SmallNetwork(rngs=nnx.Rngs(0))
    images, labels = jax.random.normal(jax.random.key(0), (4, 8, 8, 3)), jnp.arange(4)
    graph, state = nnx.split(network)

    @jax.jit
    def loss(state):
        logits = nnx.merge(graph, state, copy=True)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    gradient = jax.grad(loss)(state)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))
    assert loss(jax.tree.map(lambda p, g: p - 0.5 * g, state, gradient)) < loss(state)
