"""The instrument: planted heads are found in networks of other libraries, and replaced; what comes in is checked."""

import base64
import csv
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument import figures, page
from attn_cnn_jax.instrument import inspect as inspect_module
from attn_cnn_jax.instrument.adapters import nnx as nnx_adapter
from attn_cnn_jax.instrument.anatomy import by_place
from attn_cnn_jax.instrument.curves import cheapest
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.runs.run import Run
from tests.support.figures import found

GRID = 4, 5
PATCHES = 20


@pytest.fixture
def random():
    return np.random.default_rng(0)


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def with_prefix(patches, random, share=0.3):
    """Adds a class token that has a share of every query's attention."""
    whole = np.zeros((*patches.shape[:-2], PATCHES + 1, PATCHES + 1))
    whole[..., 1:, 1:], whole[..., 1:, 0] = (1 - share) * patches, share
    whole[..., 0, :] = softmax(random.normal(size=whole[..., 0, :].shape))
    return whole


def test_the_prefix_is_left_out_and_its_share_is_said(random):
    patches = by_place(np.exp(random.normal(size=(3, 7, 9))), GRID)
    attention = np.repeat(with_prefix(patches, random)[None, None], 2, axis=1)
    report = inspect(attention, grid=GRID, prefix=1)
    np.testing.assert_allclose(report.attention[0][0], patches, atol=1e-6)
    np.testing.assert_allclose(report.prefix_share[0], 0.3, atol=1e-6)
    np.testing.assert_allclose(report.anatomy[0], np.tile([1.0, 0, 0], (3, 1)), atol=1e-5)
    assert "30.0%" in str(report)
    places = patches.reshape(3, *GRID, *GRID)
    windows = [places[:, i, j, i - 1 : i + 2, j - 1 : j + 2].sum(axis=(1, 2)) for i in (1, 2) for j in (1, 2, 3)]
    np.testing.assert_allclose(report.within[0], np.mean(windows, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("attention", "options", "words"),
    [
        (np.full((1, 2, 3, 20, 21), 1 / 21), {}, "as many queries"),
        (np.full((2, 3, 20, 20), 1 / 20), {}, "expected is (layers, images, heads, q, k)"),
        (np.ones(3), {}, "expected is (layers, images, heads, q, k)"),
        (np.full((1, 2, 3, 20, 20), 1 / 20), {"grid": (5, 5)}, "20 tokens is not over a grid of 5x5"),
        (np.full((1, 2, 3, 20, 20), 1 / 20), {"grid": (4, 4), "prefix": 1}, "prefix of 1"),
        (np.full((1, 2, 3, 16, 16), 1 / 16), {"prefix": 30}, "prefix of 30"),
        (np.full((1, 2, 3, 16, 16), 1 / 16), {"groups": [[0], [1, 2]]}, "groups=[[0], [1, 2]]: allowed is one"),
        (np.full((1, 2, 3, 16, 16), 1 / 16), {"groups": [0, 0, 1]}, "allowed is one for each of 2 images"),
        (np.full((1, 2, 3, 16, 16), 1 / 16), {"kernel_size": 9}, "kernel_size=9: allowed is 1 to 7"),
        (np.random.default_rng(0).normal(size=(1, 2, 3, 16, 16)), {}, "after the softmax"),
        ([np.full((n, 3, 16, 16), 1 / 16) for n in (2, 4)], {}, "windowed attention"),
        (3, {"images": np.ones((1, 2))}, "no attention was found in int"),
        (3, {}, "give images"),
    ],
)
def test_what_is_no_attention_over_the_grid_is_refused(attention, options, words):
    with pytest.raises(UserError) as error:
        inspect(attention, **options)
    assert words in str(error.value)


class SmallViT(nnx.Module):
    """Two layers of `nnx.MultiHeadAttention` over 4x4 patches and a class token."""

    def __init__(self, rngs):
        self.token = nnx.Param(jnp.ones((1, 1, 12)))
        self.layers = nnx.List([nnx.MultiHeadAttention(3, 12, decode=False, rngs=rngs) for _ in range(2)])
        self.classifier = nnx.Linear(12, 5, rngs=rngs)

    def __call__(self, x):
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, 12)), x], axis=1)
        for layer in self.layers:
            x = x + layer(x)
        return self.classifier(x[:, 0])


def test_nnx_networks_are_watched_and_left_as_they_are(random):
    model, x = SmallViT(nnx.Rngs(0)), random.normal(size=(2, 16, 12)).astype(np.float32)
    logits = np.asarray(model(x))
    report = inspect(model, x)
    assert [layer.shape for layer in report.attention] == [(2, 3, 16, 16)] * 2
    assert max(report.differences) < 1e-5
    assert report.replaced[0]["logits"] < 1e-5  # none replaced
    for size in (0, 8):
        with pytest.raises(UserError, match=r"kernel_size=.*: allowed is 1 to 7"):
            report.curve([1], kernel_size=size)
    with pytest.raises(UserError, match="layer=2: allowed is 0 to 1"):
        report.curve([1], layer=2)
    np.testing.assert_array_equal(logits, model(x))
    changes = [report.output_change[layer][head] for layer, head in cheapest(report.layers_measured)]
    assert changes == sorted(changes)
    keys = 16 + len(report.layers_measured[0].layout.others)
    assert report.curve([6])[0]["saved"] == pytest.approx(1 - 9 / (2 * keys))
    query, key = model.layers[0].query(jnp.asarray(x)), model.layers[0].key(jnp.asarray(x))
    query, key = (np.moveaxis(np.asarray(array, np.float64), 2, 1) for array in (query, key))
    expected = softmax(query @ key.swapaxes(-1, -2) / 2)  # D_h = 4
    np.testing.assert_allclose(report.attention[0], expected, atol=1e-5)


class Jitted(SmallViT):
    @nnx.jit
    def __call__(self, x):
        return super().__call__(x)


class Rematerialised(SmallViT):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.layers = nnx.List([Remat(layer) for layer in self.layers])


class Remat(nnx.Module):
    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return nnx.remat(lambda layer, x: layer(x))(self.layer, x)


class Scanned(SmallViT):
    def __init__(self, rngs):
        super().__init__(rngs)
        make = nnx.vmap(lambda rngs: nnx.MultiHeadAttention(3, 12, decode=False, rngs=rngs))
        self.layers = nnx.split_rngs(splits=2)(make)(rngs)

    def __call__(self, x):
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, 12)), x], axis=1)
        step = nnx.scan(lambda x, layer: x + layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.classifier(step(x, self.layers)[:, 0])


class Looped(SmallViT):
    def __call__(self, x):
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, 12)), x], axis=1)
        step = lambda state: (state[0] + 1, state[1] + self.layers[0](state[1]))  # noqa: E731
        return self.classifier(jax.lax.while_loop(lambda state: state[0] < 2, step, (0, x))[1][:, 0])


@pytest.mark.parametrize("kind", [Jitted, Rematerialised, Scanned, Looped])
def test_nnx_networks_that_transform_their_layers_are_watched(kind, random, capsys, self_check):
    model, x = kind(nnx.Rngs(0)), random.normal(size=(2, 16, 12)).astype(np.float32)
    report = inspect(model, x)
    assert [layer.shape for layer in report.attention] == [(2, 3, 16, 16)] * 2
    assert report.replaced[0]["logits"] < 1e-5
    assert "not self-checked" not in capsys.readouterr().err


@functools.cache
def run_of(content):
    config = attention_config(
        encoding="learned" if content else "quadratic", content=content, image_shape=(8, 8, 1), num_layers=2,
        num_heads=4, hidden_size=12, head_size=4, downsample=2, intermediate_size=8,
    )  # fmt: skip
    config.dataset.update({"name": "digits", "mean": (0.3,), "std": (0.3,)})
    return Run(config, 0, create_model(config.model, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("content", [False, True])
def test_runs_are_watched_and_left_as_they_are(content, random):
    run, images = run_of(content), random.integers(0, 256, (3, 8, 8, 1), np.uint8)
    report = inspect(run, images)
    assert report.grid == (4, 4)
    assert max(report.differences) < 1e-5
    assert report.replaced[0]["logits"] < 1e-5
    expected = run.attention(images)[1].reshape(-1, 4, 16, 16)
    np.testing.assert_allclose(report.attention[1], np.broadcast_to(expected, (3, 4, 16, 16)), atol=1e-5)
    if not content:
        np.testing.assert_allclose(report.anatomy[..., 0], 1, atol=1e-5)


def test_files_and_what_is_written(tmp_path, random, capsys):
    attention = softmax(random.normal(size=(2, 3, 2, 17, 17))).astype(np.float32)
    file = tmp_path / "attention.npz"
    np.savez(file, **{f"layer{n}": layer for n, layer in enumerate(attention)})
    files = [f"--{kind}={tmp_path / 'out'}.{kind}" for kind in ("csv", "json")]
    command = ["inspect", str(file), "--grid=4x4", f"--page={tmp_path / 'out.html'}", f"--figures={tmp_path}", *files]
    assert main(command) == 0
    report = inspect(attention, grid=(4, 4))
    assert capsys.readouterr().out.strip() == str(report).strip()
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [float(row["relative"]) for row in rows] == pytest.approx([row["relative"] for row in report.rows()], 1e-5)
    assert len(json.loads((tmp_path / "out.json").read_text())["heads"]) == 4
    assert "<canvas" in (tmp_path / "out.html").read_text()
    assert {path.name for path in tmp_path.glob("*.svg")} == {"anatomy.svg", "distance.svg", "maps.svg"}
    np.save(tmp_path / "whole.npy", attention)
    assert main(["inspect", str(tmp_path / "whole.npy"), "--grid=4x4"]) == 0
    assert capsys.readouterr().out.strip() == str(report).strip()
    (tmp_path / "whole.safetensors").write_bytes(save({"attention": attention}))
    assert main(["inspect", str(tmp_path / "whole.safetensors"), "--grid=4x4"]) == 0
    assert capsys.readouterr().out.strip() == str(report).strip()


@pytest.mark.parametrize("name", ["file.npz", "file.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no attention", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_damaged_files_are_refused(name, content, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main(["inspect", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err


def test_a_page_has_all_images_as_colours_of_patches_and_maps_of_those_that_fit(tmp_path, random, monkeypatch):
    attention = softmax(random.normal(size=(1, 3, 2, 16, 16)))
    report = inspect(attention)
    monkeypatch.setattr(page, "MOST_VALUES", 2 * 2 * 256)
    images = random.normal(size=(3, 3, 8, 8))
    assert page.write(report, tmp_path / "page.html", images) == 3
    text = (tmp_path / "page.html").read_text()
    content = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    stretched = (images[1] - images[1].min()) / np.ptp(images[1]) * 255
    found = np.frombuffer(base64.b64decode(content["images"][1]), np.uint8).reshape(16, 3)
    np.testing.assert_allclose(found, stretched.reshape(3, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(3, 16).T, atol=1.5)
    (maps,), (mean,), (handed,) = (
        [np.frombuffer(base64.b64decode(layer), np.uint8) for layer in content[name]]
        for name in ("layers", "mean", "handed")
    )
    most = attention[0].max(axis=-1, keepdims=True)
    np.testing.assert_allclose(maps.reshape(2, 2, 16, 16), 255 * (attention[0] / most)[:2], atol=0.6)
    whole = attention[0].mean(axis=0)
    np.testing.assert_allclose(mean.reshape(2, 16, 16), 255 * whole / whole.max(axis=-1, keepdims=True), atol=0.6)
    np.testing.assert_allclose(handed.reshape(3, 2, 16, 3)[1], attention[0][1] @ found, atol=1.6)


def test_a_page_of_a_network_has_images_whose_maps_were_not_kept(tmp_path, random, monkeypatch):
    model, x = SmallViT(nnx.Rngs(0)), random.normal(size=(3, 16, 12)).astype(np.float32)
    images = random.integers(0, 256, (3, 4, 4, 3), np.uint8)
    contents = []
    for kept in (2**28, 1):
        monkeypatch.setattr(inspect_module, "KEPT", kept)
        assert page.write(report := inspect(model, x), tmp_path / "page.html", images) == 3
        text = (tmp_path / "page.html").read_text()
        contents.append(json.loads(text.split('type="application/json">')[1].split("</script>")[0])["handed"])
    assert len(report.attention[0]) == 1
    first, second = ([np.frombuffer(base64.b64decode(x), np.uint8).astype(int) for x in each] for each in contents)
    np.testing.assert_allclose(first, second, atol=1)


def test_figures_show_shares_costs_and_maps(random):
    report = inspect(softmax(3 * random.normal(size=(2, 4, 3, 20, 20))), grid=GRID)
    costs = [{"heads": 0, "logits": 0.0, "accuracy": 1.0, "saved": 0.0}]
    costs.append({"heads": 6, "logits": 0.5, "accuracy": 0.25, "saved": 0.75})
    vars(report)["replaced"] = costs
    drawn = figures.draw(report)
    for part, name in enumerate(("relative", "absolute", "content")):
        bars = found(drawn["anatomy"], f"{name} 2")
        heights = [bar.get_height() for bar in drawn["anatomy"].axes[0].patches if bar in bars]
        np.testing.assert_allclose(heights, 100 * report.anatomy[1][:, part], atol=1e-9)
    assert all(bar.get_y() + bar.get_height() <= 100 + 1e-9 for bar in drawn["anatomy"].axes[0].patches)
    for name, values in {"accuracy": [(0, 100), (6, 25)], "saved": [(0, 0), (6, 75)]}.items():
        (line,) = found(drawn["anatomy"], name)
        np.testing.assert_allclose(line.get_xydata(), values)
    (dots,) = found(drawn["distance"], "layer 2")
    np.testing.assert_allclose(dots.get_offsets()[:, 1], report.statistics[1].distance)
    (first, _) = found(drawn["maps"], "map 0")
    shift = report.layers_measured[0].shift
    label = f"{shift.rows[0]:+.0f} {shift.columns[0]:+.0f}, {shift.share[0]:.0%}"
    assert first.axes.get_xlabel() == label
    np.testing.assert_allclose(first.get_array().ravel(), report.attention[0].mean(axis=0)[0, 12], 1e-6)


def test_a_wrong_program_is_not_inspected(monkeypatch, tmp_path, random, self_check):
    """Of a network whose last column is made of its first, as compiled; NumPy computes it right."""
    right = nnx_adapter.run

    def wrong(*arguments):
        seen = right(*arguments)
        return seen._replace(output=jax.tree.map(lambda x: x.at[..., -1].set(x[..., 0]), seen.output))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nnx_adapter, "run", wrong)
    with pytest.raises(UserError, match=r"self-check failed: outputs of .* differ"):
        inspect(run_of(False), random.integers(0, 256, (3, 8, 8, 1), np.uint8))


def test_whatever_a_network_or_its_images_raise_becomes_a_sentence():
    class Broken(nnx.Module):
        def __call__(self, images):
            return {"a": images}["b"]

    with pytest.raises(UserError, match=r"^Broken did not run on images of shape \(1, 4, 4, 3\): 'b'$"):
        inspect(Broken(), np.zeros((2, 4, 4, 3), np.float32))
    with pytest.raises(UserError, match=r"^images= of str \(.*\): allowed is an array or a tensor of numbers"):
        inspect(Broken(), "photo.png")
