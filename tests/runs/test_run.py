"""A run that is read back: predictions, evaluation, changed networks, the networks of the package."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

import attn_cnn_jax
from attn_cnn_jax import create_model, load_pretrained, load_run
from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.image_files import as_image, fit
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import metrics, pretrained
from attn_cnn_jax.runs.metrics import accuracy_in_words

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)


@pytest.fixture(scope="module")
def by_position(quadratic_run):
    return load_run(quadratic_run)


@pytest.fixture(scope="module")
def by_content(content_run):
    return load_run(content_run)


def test_the_face_of_the_package():
    assert attn_cnn_jax.__all__ == [
        "create_model",
        "export",
        "inspect",
        "load_pretrained",
        "load_run",
        "read_image",
        "show",
        "train",
    ]


def test_a_buffer_may_be_filled_again_once_its_images_are_normalised(by_position):
    buffer, before = np.empty((8192, 8, 8, 1), np.uint8), []
    values = np.tile(np.arange(0, 256, 5), 5)  # JAX may be done in time: many images, to see that it need not be
    for value in values:
        buffer[:] = value
        before.append(by_position.normalised(buffer))
    seen = np.array([[x.min(), x.max()] for x in map(np.asarray, before)])
    expected = (values[:, None] / 255 - by_position.spec.mean[0]) / by_position.spec.std[0]
    np.testing.assert_allclose(seen, np.broadcast_to(expected, seen.shape), rtol=1e-5, atol=1e-6)


def test_a_network_of_explicit_values():
    model = create_model(image_shape=(4, 4, 1), num_layers=1, num_heads=2, hidden_size=8, downsample=1)
    assert [block.attention.num_heads for block in model.blocks] == [2]
    assert model(np.zeros((3, 4, 4, 1), np.float32))[0].shape == (3, 10)
    same, other = (create_model(hidden_size=8, num_layers=1, seed=seed) for seed in (0, 1))
    assert not np.array_equal(same.classifier.kernel[...], other.classifier.kernel[...])
    for values, said in (
        ({"num_head": 2}, r"did you mean config\.model\.num_heads"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"name": "vgg"}, "attention, resnet"),
        ({"gate": True}, "a gate weighs position and content"),
    ):
        with pytest.raises(UserError, match=said):
            create_model(**values)


def test_a_changed_network_has_no_training_to_show(by_position):
    """Its positions would be those of the network before."""
    assert len(by_position.positions) > 1
    for changed in (
        by_position.without_heads([(0, 1)]),
        by_position.with_centres([None, None]),
        by_position.at_size(16),
    ):
        assert changed.positions == ()


def test_intermediates_come_as_arrays_joined_over_batches(by_content):
    found = by_content.intermediates(IMAGES, batch_size=2)
    logits, expected = jax.jit(by_content.model)(by_content.normalised(IMAGES))
    chex.assert_trees_all_close(found, expected | {"logits": logits}, rtol=0, atol=1e-5)


@pytest.mark.as_users
def test_evaluation_is_that_of_the_logits(by_position):
    assert by_position.evaluate(list(IMAGES), [0] * len(IMAGES)).count == len(IMAGES)
    labels = np.array([3, 1, 4, 1, 5])
    logits = by_position.logits(IMAGES).astype(np.float64)
    mirrored = (logits + by_position.logits(IMAGES[:, :, ::-1])) / 2
    for found, expected in (
        (by_position.evaluate(IMAGES, labels), logits),
        (by_position.evaluate(IMAGES, labels, mirrored=True), mirrored),
    ):
        assert (found.right, found.count) == ((expected.argmax(axis=1) == labels).sum(), 5)
        assert found.accuracy == found.right / 5
        assert found.loss == pytest.approx(-log_softmax(expected, axis=1)[range(5), labels].mean(), rel=1e-5)
    with pytest.raises(UserError, match=r"5 images and labels of shape \(4,\)"):
        by_position.evaluate(IMAGES, labels[:4])


def test_without_heads_is_with_their_values_zero(by_content):
    run, heads = by_content, [(0, 1), (0, 3), (1, 0)]
    pruned = run.without_heads(heads)
    assert [layer.shape[1] for layer in pruned.attention(IMAGES)] == [2, 3]
    assert (pruned.config.model.num_heads, run.config.model.num_heads) == ((2, 3), 4)
    one_by_one = run.without_heads(heads[:1]).without_heads([(0, 2)]).without_heads(heads[2:])
    np.testing.assert_allclose(one_by_one.logits(IMAGES), pruned.logits(IMAGES), rtol=1e-4, atol=1e-5)
    assert np.abs(pruned.logits(IMAGES) - run.logits(IMAGES)).max() > 1e-3
    rows = run.without_heads(np.array(heads))
    np.testing.assert_array_equal(rows.logits(IMAGES), pruned.logits(IMAGES))
    for wrong, message in (((2, 0), "is no head"), ((0, 4), "is no head"), ((-1, 0), "is no head"), (1, "are pairs")):
        with pytest.raises(UserError, match=message):
            run.without_heads([wrong])
    with pytest.raises(UserError, match="layer 1, counted from 0, would have no head left"):
        run.without_heads([(1, head) for head in range(4)])


def test_with_centres_moves_heads(by_position, by_content):
    centres = np.array([[0, 0], [1, -1], [2, 0], [0, -2]], np.float32)
    moved = by_position.with_centres([centres, None])
    np.testing.assert_array_equal(split(moved.model)[1]["blocks.0.attention.position.centre"], centres)
    first, second = moved.attention()
    np.testing.assert_array_equal(second, by_position.attention()[1])
    peaks = first[:, 4, 4].reshape(4, -1).argmax(axis=1)
    assert [divmod(peak, 8) for peak in peaks[3:]] == [(4, 2)]
    for wrong, message in (
        ([centres], "centres of 1 layers"),
        ([centres[:3], None], "layer 0, from 0: allowed is"),
        ([[[1, 2], [3]], None], "layer 0, from 0: allowed is"),
        ([np.full((4, 2), np.nan), None], "finite"),
    ):
        with pytest.raises(UserError, match=message):
            by_position.with_centres(wrong)
    with pytest.raises(UserError, match="has no centres"):
        by_content.with_centres([centres, None])


def test_a_run_is_read_by_several_threads_and_where_transfers_are_disallowed(quadratic_run, by_position):
    expected, hook = by_position.predict(IMAGES), sys.unraisablehook

    def read(_):
        with jax.transfer_guard("disallow"):
            return load_run(quadratic_run).predict(IMAGES)

    with ThreadPoolExecutor(4) as threads:
        for probabilities in threads.map(read, range(4)):
            np.testing.assert_array_equal(probabilities, expected)
    assert sys.unraisablehook is hook


def test_a_step_that_there_is_not(quadratic_run):
    for step in ("newest", -1, 3, True, "20", 20.0):
        with pytest.raises(UserError, match=f"^step={step!r}: {quadratic_run} has checkpoints of steps 20$"):
            load_run(quadratic_run, step)
    assert load_run(quadratic_run, np.int64(20)).step == 20
    with pytest.raises(UserError, match="has no best checkpoint: train with"):
        load_run(quadratic_run, "best")


@pytest.mark.as_users
def test_the_networks_of_the_package_are_small_and_digits_is_as_accurate_as_its_card_says():
    assert set(pretrained.names()) == {"cifar10", "cifar10_maps16", "digits"}
    for name in ("imagenet", "", "..", "digits/..", "/"):
        with pytest.raises(UserError, match=f"is called {name!r}: allowed are cifar10, cifar10_maps16, digits$"):
            load_pretrained(name)
    for name in pretrained.names():
        files = {path.name for path in (pretrained.FOLDER / name).iterdir()}
        assert files >= {"README.md", "config.json", "metrics.jsonl", "model.safetensors"}
        assert json.loads((pretrained.FOLDER / name / "config.json").read_text())["dataset"]["data_dir"] == ""
    assert sum(path.stat().st_size for path in pretrained.FOLDER.rglob("*")) <= 3_000_000
    run, card = load_pretrained("digits"), (pretrained.FOLDER / "digits" / "README.md").read_text()
    assert f"{accuracy_in_words(run.test_record)} of the test images, all scans, at step {run.step}" in card
    found = run.evaluate(*sources.load("digits").test)
    assert (found.right, found.count, found.accuracy) == (353, 355, run.test_record["accuracy"])
    assert run.class_names == tuple("0123456789")
    assert [record["epoch"] for record in run.positions] == list(range(13))


@pytest.mark.parametrize("window", [0, 3])
def test_at_its_own_size_a_run_is_itself_and_larger_images_change_little(data_dir, window):
    """`pretrained:digits` at twice its size, images enlarged; and as a network that reads windows for their middle."""
    run, (images, labels) = load_pretrained("digits"), sources.load("digits", data_dir).test.at(range(100))
    if window:
        run.config.model.window, embedding = window, run.model.embedding
        kernel = embedding.kernel[...]
        embedding.kernel = nnx.Param(jnp.zeros((window**2, kernel.shape[1])).at[window**2 // 2].set(kernel[0]))
    same = run.at_size(8)
    np.testing.assert_array_equal(same.logits(images), run.logits(images))
    large, resized = np.stack([fit(as_image(image), (16, 16)) for image in images]), run.at_size(16)
    right = [(r.logits(x).argmax(axis=1) == labels).sum() for r, x in ((run, images), (run, large), (resized, large))]
    assert right[2] >= right[0] - 3 > right[1], right
    assert (resized.config.model.image_shape, resized.config.model.window) == ((16, 16, 1), 2 * (window or 1))
    assert abstract_model(resized.config.model).embedding.kernel.shape == resized.model.embedding.kernel.shape
    assert (same.config.model.image_shape, same.config.model.window) == ((8, 8, 1), window)
    small = np.stack([fit(as_image(image), (4, 4)) for image in images])
    assert window or run.at_size(4).evaluate(small, labels).right > 30  # of 100; half of such a window is blurred
    fewer = run.at_size((16, 16)).without_heads([(0, 1)])
    np.testing.assert_allclose(fewer.attention()[0], np.delete(resized.attention()[0], 1, 0))
    for wrong in (0, 16.0, "16", (16, 16, 1)):
        with pytest.raises(UserError, match=r"(images of 0x0 pixels|size=.*): allowed"):
            run.at_size(wrong)


def test_heads_look_twice_as_far_along_the_side_that_is_twice_as_long(by_position):
    runs = by_position, by_position.at_size((16, 8))
    before, after = (np.asarray(run.model.blocks[0].attention.position.centre[...]) for run in runs)
    np.testing.assert_allclose(after, before * (2, 1), rtol=1e-6)


def test_a_test_record_is_that_of_its_step(tmp_path):
    for step in (10, 20):
        metrics.append(
            tmp_path / metrics.FILE, {"step": step, "epoch": 1, "split": "test", "accuracy": step / 100, "loss": 1}
        )
    found = [metrics.test_record(tmp_path, step) for step in (10, 20, 5)]
    assert [record and record["accuracy"] for record in found] == [0.1, 0.2, None]


def test_a_run_at_a_smaller_size_has_a_configuration():
    run = load_pretrained("cifar10").at_size(np.int64(16))
    held = sum(array.size for array in split(run.model)[1].values())
    assert count_parameters(run.config.model) == held < count_parameters(load_pretrained("cifar10").config.model)


def test_configurations_have_names_in_python(tmp_path):
    assert attn_cnn_jax.config("digits").dataset.name == "digits_and_strokes"
    assert attn_cnn_jax.config("digits_encodings:relative").model.encoding == "relative"
    for call in (attn_cnn_jax.config, lambda name: attn_cnn_jax.train(name, tmp_path / "run")):
        with pytest.raises(UserError, match=r"no configuration is called 'digit': allowed are .*, digits,"):
            call("digit")


def test_images_of_another_size_and_labels_that_are_none_are_refused(by_position):
    with pytest.raises(UserError, match=r"28x28 pixels: .* H, W are 8, 8; .*run\.at_size\(\(28, 28\)\)"):
        by_position.predict(np.zeros((1, 28, 28, 1), np.uint8))
    with pytest.raises(UserError, match=r"16x16 pixels: .* H, W are 8, 8"):
        by_position.evaluate(np.zeros((1, 16, 16, 1), np.uint8), [0])
    with pytest.raises(UserError, match="1 of 1 labels are no class, the first 12"):
        by_position.evaluate(IMAGES[:1], [12])


def test_an_image_file_is_read_as_prepare_and_predict_read_it(by_position, tmp_path):
    as_image(IMAGES[0].repeat(3, axis=0).repeat(3, axis=1)).convert("RGB").save(path := tmp_path / "a.png")
    expected = fit(as_image(IMAGES[0].repeat(3, axis=0).repeat(3, axis=1)), (8, 8))
    for config_or_run in (by_position, by_position.config):
        np.testing.assert_array_equal(attn_cnn_jax.read_image(path, config_or_run), expected)
    # A configuration that says no more than its data set, and one of own images.
    config = attn_cnn_jax.config("digits")
    np.testing.assert_array_equal(attn_cnn_jax.read_image(path, config), expected)
    config.dataset.update({"name": "folder", "image_size": (16, 8)})
    assert attn_cnn_jax.read_image(path, config).shape == (16, 8, 1)
    config.dataset.image_size = 0
    with pytest.raises(UserError, match="image_size=0: allowed is a size, or give a run"):
        attn_cnn_jax.read_image(path, config)


def test_an_exported_function_is_no_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.stablehlo").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds a function, model\.stablehlo"):
        load_run(tmp_path)
