"""Runs that start from another one: pruned, reset, partly fixed, resumed without it; for other classes or images."""

import itertools
import re
import shutil

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config, complete, create_model, resnet_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.export import export
from attn_cnn_jax.models.pruning import frozen_mask, frozen_names
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory, pretrained
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.initialise import initial_network, resized_table
from tests.support.digits_run import records_of, write_run

pytestmark = pytest.mark.usefixtures("one_device")

HEADS = 4
DEGENERATE = {0: {1}, 1: {0, 3}}  # layers and heads from 0
GENERALISED = {"encoding": "quadratic_generalized"}


def config_of(data_dir, *, resnet=False, model=None, **start):
    """A small network on digits, by default two layers of four heads; three steps an epoch, two epochs."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 2, "num_heads": HEADS, "downsample": 2}
    config = resnet_config(depth=10, width=2, **model or {}) if resnet else attention_config(**small | (model or {}))
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.train.update({"batch_size": 400, "num_epochs": 2, "logger": "none"})
    config.optimizer.warmup_fraction = 0.0
    config.start.update(start)
    return config


def new_network(config, seed=0, spreads=()):
    """A new network, with these spreads of the heads of its layers."""
    network = create_model(config.model, rngs=nnx.Rngs(seed))
    for block, spread in zip(network.blocks, spreads, strict=False):
        block.attention.position.spread[...] = jnp.asarray(spread)
    return network


def parameters(run):
    return split(run.model)[1]


def begun(config, workdir):
    """The parameters that training begins with."""
    return split(initial_network(complete(config), workdir)[1])[1]


@pytest.fixture(scope="module")
def degenerate(tmp_path_factory, data_dir):
    """A finished run some of whose heads are degenerate: one a line, one uniform, one singular."""
    spreads = np.tile(np.eye(2), (2, HEADS, 1, 1))
    spreads[0][0] = np.diag([3.0, 1.0])  # long, but not degenerate
    spreads[0][1] = np.diag([40.0, 1.0])
    spreads[1][0] = np.diag([0.001, 0.001])
    spreads[1][3] = np.ones((2, 2))
    config = complete(config_of(data_dir, model=GENERALISED))
    return write_run(tmp_path_factory.mktemp("first"), config, new_network(config, spreads=spreads))


@pytest.fixture
def first(tmp_path, data_dir):
    """`first(image_shape, num_classes, ...)`: a finished run of such a network, as if its data set were another."""

    def make(image_shape=(8, 8, 1), num_classes=7, *, resnet=False, **model):
        config = config_of(data_dir, resnet=resnet, model=model)
        config.model.update({"image_shape": image_shape, "num_classes": num_classes})
        return write_run(tmp_path / "first", config, create_model(config.model, rngs=nnx.Rngs(5)))

    return make


def test_a_pruned_run_trains_is_restored_and_goes_on_without_the_first_run(degenerate, data_dir, tmp_path, capsys):
    origin, workdir = shutil.copytree(degenerate, tmp_path / "first"), tmp_path / "pruned"
    config = config_of(data_dir, model=GENERALISED, run=str(origin), prune=True)
    config.optimizer.covariance_penalty = 0.01
    before = parameters(load_run(origin))
    pruned, network = initial_network(complete(config), workdir)
    assert list(pruned.model.num_heads) == [3, 2]
    assert list(pruned.start.heads) == [(1, 2), (2, 1), (2, 4)]
    for layer, heads in enumerate([[0, 2, 3], [1, 2]]):
        name = f"blocks.{layer}.attention.position.centre"
        np.testing.assert_array_equal(split(network)[1][name], before[name][np.array(heads)])

    capsys.readouterr()
    loop.run(config, workdir)
    said = capsys.readouterr().out
    assert re.search(r"3 heads of .*first pruned:\n *layer +head +reason", said)
    assert re.search(r"1 +2 +a line: condition number 1600 > 1000\n", said)
    assert re.search(r"2 +1 +uniform: largest eigenvalue 1.0e-06 < 1e-05\n", said)
    assert directory.read_config(workdir).model.num_heads == HEADS  # as it was given
    after = load_run(workdir)
    assert list(after.config.model.num_heads) == [3, 2]
    assert [len(layer) for layer in after.attention()] == [3, 2]
    assert [len(layer["centre"]) for layer in read_positions(workdir)[0]["layers"]] == [3, 2]

    # Step 0: what pruning left, before any training.
    records = records_of(workdir)
    tested = [record for record in records if record["split"] == "test"]
    assert [(record["step"], record["epoch"]) for record in tested] == [(0, 0), (3, 1), (6, 2)]
    test, untrained = sources.load("digits", data_dir).test, load_run(workdir, step=0)
    assert tested[0]["accuracy"] == pytest.approx(untrained.evaluate(test.images, test.labels).accuracy)
    chex.assert_trees_all_equal(parameters(untrained), split(network)[1])

    # The penalty rounds a long head: its condition number, 9, falls far more than by training alone.
    assert 1 < np.linalg.cond(parameters(after)["blocks.0.attention.position.spread"][0]) ** 2 < 8

    shutil.rmtree(origin)
    metadata = workdir / "checkpoints/6/config/metadata"  # the newest checkpoint is damaged
    metadata.write_text(metadata.read_text()[:-9])
    loop.run(config, workdir)
    chex.assert_trees_all_equal(parameters(load_run(workdir)), parameters(after))
    assert [record["step"] for record in read_positions(workdir)] == [0, 3, 6]
    assert records_of(workdir) == records
    config.start.heads = ((1, 2),)
    with pytest.raises(UserError, match=r"start.heads \(\[\] there, \[\[1, 2\]\] here\)"):
        directory.claim(workdir, complete(config))


def test_heads_by_name_need_not_fill_a_grid(data_dir, tmp_path, capsys):
    grid = complete(config_of(data_dir, model={"init": "identity"}))
    origin = str(write_run(tmp_path / "first", grid, new_network(grid)))
    config = config_of(data_dir, model={"init": "identity"}, run=origin, prune=True, heads=((2, 1), (2, 2), (2, 3)))
    assert complete(initial_network(complete(config), tmp_path / "pruned")[0]).model.num_heads == (4, 1)
    said = capsys.readouterr().out
    assert [line.split(maxsplit=2) for line in said.splitlines()[-3:]] == [
        ["2", head, "named in config.start.heads"] for head in "123"
    ]


def test_what_cannot_be_started_from_is_refused(degenerate, data_dir, tmp_path):
    whole = complete(config_of(data_dir, model=GENERALISED))
    whole = str(write_run(tmp_path / "whole", whole, new_network(whole)))
    for model, start, message in (
        ({}, {"heads": ((1, 1), (1, 2), (1, 3), (1, 4))}, "no head would be left in layer 1"),
        ({}, {"heads": ((1, 5),)}, r"\(1, 5\)"),
        ({}, {"heads": ((3, 1),)}, "2 layers"),
        ({"num_layers": 3}, {}, r"another network: config.model.num_layers \(2 there, 3 here\)\nset"),
        ({}, {"run": "pretrained:cifar10"}, "images with 3 channels, here with 1\nsave these with 3, or start from"),
        ({"num_heads": 9}, {}, r"config.model.num_heads \(4 there, 9 here\)"),
        ({"num_heads": (4, 3)}, {}, r"config.model.num_heads \(4 there, \[4, 3\] here\)"),
        ({}, {"run": "/nowhere"}, "/nowhere is not a run directory"),
        ({}, {"run": whole}, "start.prune=True: no head of .*whole is degenerate"),
        ({}, {"run": whole, "prune": False, "reset": True}, "start.reset=True: no head of .*whole"),
    ):
        config = config_of(data_dir, model=GENERALISED | model, **{"run": str(degenerate), "prune": True} | start)
        with pytest.raises(UserError, match=message):
            initial_network(complete(config), tmp_path / "new")


def test_reset_heads_start_again_and_only_they_move_where_the_rest_is_fixed(degenerate, data_dir, tmp_path):
    config = config_of(data_dir, model=GENERALISED, run=str(degenerate), reset=True, freeze="positions,values")
    config.train.num_epochs = 1
    before, fresh = parameters(load_run(degenerate)), begun(config, tmp_path)
    loop.run(config, tmp_path)
    after = parameters(load_run(tmp_path))
    for layer, part in itertools.product((0, 1), ("position.centre", "position.spread", "output.kernel")):
        name = f"blocks.{layer}.attention.{part}"
        heads = [np.split(np.asarray(arrays[name]), HEADS) for arrays in (before, fresh, after)]
        for head, (old, new, trained) in enumerate(zip(*heads, strict=True)):
            if head not in DEGENERATE[layer]:
                np.testing.assert_array_equal(new, old)
                np.testing.assert_array_equal(trained, old)
                continue
            assert np.all(new != old)
            assert np.any(trained != new)
            # Drawn as a new network's, which is the release's: I + N(0, 0.01^2), uniform in +-1/sqrt(N_h D).
            if part == "position.spread":
                assert 0 < np.abs(new - np.eye(2)).max() < 0.05
            elif part == "output.kernel":
                assert 0.9 < np.abs(new).max() * (HEADS * 8) ** 0.5 <= 1
                assert new.std() == pytest.approx((HEADS * 8 * 3) ** -0.5, rel=0.2)
    for name in ("classifier.kernel", "blocks.0.dense.kernel", "blocks.1.attention.output.bias"):
        assert np.any(after[name] != before[name])


def test_another_number_of_classes_has_a_new_head_and_the_encoder_can_stay_frozen(
    first, data_dir, tmp_path, capsys, monkeypatch
):
    """From a run directory, exported weights, and weights of the package."""
    origin, exported = first(), tmp_path / "weights/mine"
    export(load_run(origin), exported)
    monkeypatch.setattr(pretrained, "FOLDER", exported.parent)
    for run in (str(origin), str(exported), "pretrained:mine"):
        config = complete(config_of(data_dir, run=run, freeze="encoder"))
        network = initial_network(config, tmp_path / "tuned")[1]
        assert "a new classifier for 10 classes, before 7" in capsys.readouterr().out
        before, after = parameters(load_run(origin)), split(network)[1]
        assert after["classifier.kernel"].shape == (8, 10)
        encoder = {name for name in before if not name.startswith("classifier.")}
        assert set(frozen_mask(config.start, network)) == encoder
        chex.assert_trees_all_equal(*({name: each[name] for name in encoder} for each in (before, after)))


def test_tables_keep_the_vector_of_every_shift_that_both_know():
    table = jnp.arange(7.0)[:, None] * jnp.ones((1, 2)) - 3  # the vector of shift s is (s, s), from -3 to 3
    for reach in (2, 5):
        shifts = np.arange(-reach + 1, reach)
        np.testing.assert_array_equal(resized_table(table, len(shifts))[:, 0], np.clip(shifts, -3, 3))


@pytest.mark.parametrize("encoding", ["learned", "relative"])
def test_learned_tables_fit_a_larger_picture_and_attend_alike_near_zero(encoding, first, data_dir, tmp_path, capsys):
    origin = first((4, 6, 1), 10, encoding=encoding)
    network = initial_network(
        complete(config_of(data_dir, model={"encoding": encoding}, run=str(origin))), tmp_path / "tuned"
    )[1]
    assert "position tables are cropped or extended around shift zero" in capsys.readouterr().out
    small, large = (
        model.blocks[0].attention.position.position_terms(height, width, jnp.array([0]))
        for model, height, width in ((load_run(origin).model, 2, 3), (network, 4, 4))
    )
    ((small,), (large,)) = small.values(), large.values()
    shown = large[:, 0, 0, :2, :3]  # from the first pixel down and to the right: shifts that both tables know
    np.testing.assert_allclose(shown, small[:, 0, 0], rtol=1e-5, atol=1e-6)


def test_of_other_encodings_a_quadratic_one_takes_any_image_and_a_vector_per_pixel_none(first, data_dir, tmp_path):
    origin = first((32, 16, 1), 10)
    chex.assert_trees_all_equal(
        begun(config_of(data_dir, run=str(origin)), tmp_path / "tuned"), parameters(load_run(origin))
    )
    config = complete(config_of(data_dir, model={"encoding": "absolute_learned"}, run=str(tmp_path / "per_pixel")))
    small = config.copy_and_resolve_references()
    small.model.image_shape = (4, 4, 1)
    write_run(tmp_path / "per_pixel", small, new_network(small))
    with pytest.raises(UserError, match=r"position.position has the shape \(2, 2, 8\) there and \(4, 4, 8\) here"):
        initial_network(config, tmp_path / "tuned")


def test_what_is_frozen_is_named_by_patterns_and_keeps_its_running_statistics(data_dir):
    config = config_of(data_dir, resnet=True, freeze="stem*,blocks.0.*")
    model = create_model(config.model, rngs=nnx.Rngs(0))
    names = list(split(model)[1])
    assert list(frozen_mask(config.start, model)) == [name for name in names if name.startswith(("stem", "blocks.0."))]
    norms = {
        ".".join(map(str, path)): each for path, each in nnx.iter_modules(model) if isinstance(each, nnx.BatchNorm)
    }
    assert norms
    for name, norm in norms.items():
        assert (norm.momentum == 1.0) == name.startswith(("stem", "blocks.0."))
    assert frozen_names([], names) == []
    assert frozen_names(["encoder"], names) == [name for name in names if not name.startswith("classifier")]
    with pytest.raises(UserError, match=r"'blocks\.9\.\*', which fits no parameter"):
        frozen_names(["blocks.0.*", "blocks.9.*"], names)
    with pytest.raises(UserError, match="what leaves a parameter to train"):
        frozen_names(["*"], names)


def test_a_trained_resnet_goes_on_as_attention(first, data_dir, tmp_path):
    """Which computes the same: see the tests of the theorem."""
    origin = first((8, 8, 1), 10, resnet=True)
    config = config_of(data_dir, resnet=True, model={"layers": "attention", "sharpness": 14.0}, run=str(origin))
    taken, model = initial_network(complete(config), tmp_path / "attention")
    assert not any(isinstance(module, nnx.Conv) for _, module in nnx.iter_modules(model))
    np.testing.assert_allclose(model.blocks[0].conv1.attention.position.spread[...], (2 * 14.0) ** 0.5, rtol=1e-6)
    write_run(tmp_path / "attention", taken, model)
    assert split(initial_network(complete(config), tmp_path / "attention")[1])[0] == split(model)[0]
    with pytest.raises(UserError, match=r"config\.model\.layers"):
        initial_network(complete(config_of(data_dir, resnet=True, run=str(tmp_path / "attention"))), tmp_path / "third")


def test_rows_of_the_classifier_are_taken_by_the_names_of_classes(first, data_dir, tmp_path, capsys):
    """The same ten classes in another order, and a class that the first run does not know."""
    place = first(num_classes=10)
    before = parameters(load_run(place))
    config = config_of(data_dir, run=str(place))
    config = complete(config)
    names = (*"987654321", "ten")
    config.dataset.class_names = names
    after = split(initial_network(config, tmp_path / "second")[1])[1]
    said = "the classifier keeps 9 of 10 classes, by name: 9, 8, 7, 6, 5, and 4 more, new for ten"
    assert said in capsys.readouterr().out
    for name in ("classifier.kernel", "classifier.bias"):
        np.testing.assert_array_equal(after[name][..., :9], before[name][..., 9:0:-1])
    assert not np.array_equal(after["classifier.kernel"][:, 9], before["classifier.kernel"][:, 0])
    config.dataset.class_names = tuple("abcdefghij")
    other = split(initial_network(config, tmp_path / "third")[1])[1]
    assert "a new classifier for 10 classes, before 10" in capsys.readouterr().out
    assert not np.array_equal(other["classifier.kernel"], before["classifier.kernel"])
