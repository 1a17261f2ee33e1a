"""Runs that start from another run: pruned, reset, with parts fixed, resumed without the first run."""

import itertools
import re
import shutil

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.positions import create_recorder, read_positions
from attn_cnn_jax.training import loop, start
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state
from tests.support.digits_run import records_of, write_run

pytestmark = pytest.mark.usefixtures("one_device")

HEADS = 4
DEGENERATE = {0: {1}, 1: {0, 3}}  # layers and heads from 0


def small_config(data_dir, **more):
    """Two layers of four heads on digits; three steps an epoch."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 2, "num_heads": HEADS, "downsample": 2}
    config = attention_config(encoding="quadratic_generalized", **small).to_dict()
    config["dataset"] |= {"name": "digits", "data_dir": str(data_dir)}
    config["train"] |= {"batch_size": 400, "num_epochs": 2, "logger": "none"}
    config["optimizer"] |= {"warmup_fraction": 0.0}
    for path, value in more.items():
        section, _, key = path.partition("__")
        config[section][key] = value
    return complete(directory.from_json(directory.json.dumps(config)))


def with_spreads(config, spreads=()):
    """A new network with these spreads of the heads of its layers."""
    network = create_model(config.model, rngs=nnx.Rngs(0))
    for block, spread in zip(network.blocks, spreads, strict=False):
        block.attention.position.spread[...] = jnp.asarray(spread)
    return network


@pytest.fixture(scope="module")
def first(tmp_path_factory, data_dir):
    """A finished run some of whose heads are degenerate: one a line, one uniform, one singular."""
    spreads = np.tile(np.eye(2), (2, HEADS, 1, 1))
    spreads[0][0] = np.diag([3.0, 1.0])  # long, but not degenerate
    spreads[0][1] = np.diag([40.0, 1.0])
    spreads[1][0] = np.diag([0.001, 0.001])
    spreads[1][3] = np.ones((2, 2))
    config = small_config(data_dir)
    return write_run(tmp_path_factory.mktemp("first"), config, with_spreads(config, spreads))


def parameters(run):
    return split(run.model)[1]


def test_a_pruned_run_trains_is_restored_and_goes_on_without_the_first_run(first, data_dir, tmp_path, capsys):
    origin, workdir = shutil.copytree(first, tmp_path / "first"), tmp_path / "pruned"
    config = small_config(data_dir, start__run=str(origin), start__prune=True, optimizer__covariance_penalty=0.01)
    before = parameters(load_run(origin))
    begun, network = start.begin(config, workdir)
    assert list(begun.model.num_heads) == [3, 2]
    assert list(begun.start.heads) == [(1, 2), (2, 1), (2, 4)]
    for layer, heads in enumerate([[0, 2, 3], [1, 2]]):
        name = f"blocks.{layer}.attention.position.centre"
        np.testing.assert_array_equal(split(network)[1][name], before[name][np.array(heads)])

    capsys.readouterr()
    loop.run(config.copy_and_resolve_references(), workdir)
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
    test, begun = sources.load("digits", data_dir).test, load_run(workdir, step=0)
    assert tested[0]["accuracy"] == pytest.approx((begun.predict(test.images).argmax(axis=1) == test.labels).mean())
    chex.assert_trees_all_equal(parameters(begun), split(network)[1])

    # The penalty rounds a long head: its condition number, 9, falls far more than by training alone.
    assert 1 < np.linalg.cond(parameters(after)["blocks.0.attention.position.spread"][0]) ** 2 < 8

    shutil.rmtree(origin)
    shutil.rmtree(workdir / "checkpoints" / "6")  # stopped in the second epoch
    loop.run(config, workdir)
    chex.assert_trees_all_equal(parameters(load_run(workdir)), parameters(after))
    assert [record["step"] for record in read_positions(workdir)] == [0, 3, 6]
    assert records_of(workdir) == records
    config.start.heads = ((1, 2),)
    with pytest.raises(UserError, match=r"start.heads \(\[\] there, \[\[1, 2\]\] here\)"):
        loop.run(config, workdir)


def test_a_damaged_newest_checkpoint_does_not_stop_a_pruned_run(first, data_dir, tmp_path):
    config = small_config(data_dir, start__run=str(first), start__prune=True)
    begun, network = start.begin(config, tmp_path)
    _, state = initial_state(network, create_optimizer(config.optimizer, abs))
    with checkpoints.saving(tmp_path, begun) as manager:
        for step in (0, 3):
            checkpoints.save(manager, step, state, begun, {"loss": [], "accuracy": []})
    (metadata,) = (tmp_path / "checkpoints" / "3").glob("config/metadata")
    metadata.write_text(metadata.read_text()[:-9])
    assert list(start.begin(config, tmp_path)[0].model.num_heads) == [3, 2]


def test_heads_by_name_need_not_fill_a_grid(data_dir, tmp_path, capsys):
    grid = {"model__encoding": "quadratic", "model__init": "identity"}
    config = small_config(data_dir, **grid)
    origin = write_run(tmp_path / "first", config, with_spreads(config))
    named = {"start__run": str(origin), "start__prune": True, "start__heads": ((2, 1), (2, 2), (2, 3))}
    begun, _ = start.begin(small_config(data_dir, **named, **grid), tmp_path / "pruned")
    assert complete(begun).model.num_heads == (4, 1)
    said = capsys.readouterr().out
    assert [line.split(maxsplit=2) for line in said.splitlines()[-3:]] == [
        ["2", head, "named in config.start.heads"] for head in "123"
    ]


def test_what_cannot_be_started_from_is_refused(first, data_dir, tmp_path):
    whole = str(write_run(tmp_path / "whole", small_config(data_dir), with_spreads(small_config(data_dir))))
    for changes, message in (
        ({"start__heads": ((1, 1), (1, 2), (1, 3), (1, 4))}, "no head would be left in layer 1"),
        ({"start__heads": ((1, 5),)}, r"\(1, 5\)"),
        ({"start__heads": ((3, 1),)}, "2 layers"),
        ({"model__num_layers": 3}, r"another network: config.model.num_layers \(2 there, 3 here\)\nset"),
        ({"model__num_heads": 9}, "config.model.num_heads \\(4 there, 9 here\\)"),
        ({"model__num_heads": (4, 3)}, "config.model.num_heads \\(4 there, \\[4, 3\\] here\\)"),
        ({"start__run": "/nowhere"}, "/nowhere is not a run directory"),
        ({"start__run": whole}, "start.prune=True: no head of .*whole is degenerate"),
        ({"start__run": whole, "start__prune": False, "start__reset": True}, "start.reset=True: no head of .*whole"),
    ):
        config = small_config(data_dir, **{"start__run": str(first), "start__prune": True} | changes)
        with pytest.raises(UserError, match=message):
            start.begin(config, tmp_path / "new")


def test_reset_heads_start_again_and_only_they_move_where_the_rest_is_fixed(first, data_dir, tmp_path):
    config = small_config(data_dir, start__run=str(first), start__reset=True, start__freeze="positions,values")
    config.train.num_epochs = 1
    before = parameters(load_run(first))
    begun = split(start.begin(config, tmp_path)[1])[1]
    loop.run(config, tmp_path)
    after = parameters(load_run(tmp_path))
    for layer, part in itertools.product((0, 1), ("position.centre", "position.spread", "output.kernel")):
        name = f"blocks.{layer}.attention.{part}"
        heads = [np.split(np.asarray(arrays[name]), HEADS) for arrays in (before, begun, after)]
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


def test_positions_are_those_of_the_parameters_or_of_the_central_pixel(data_dir, tmp_path):
    for encoding, content in (("quadratic", False), ("learned", True)):
        config = small_config(data_dir, model__encoding=encoding, model__content=content)
        skeleton, arrays, _ = split(create_model(config.model, rngs=nnx.Rngs(1)))
        workdir = tmp_path / encoding
        workdir.mkdir()
        create_recorder(config.model, skeleton, workdir, 0)(0, 0.0, arrays)
        for n, layer in enumerate(read_positions(workdir)[0]["layers"]):
            if encoding == "quadratic":
                expected = arrays[f"blocks.{n}.attention.position.centre"]
            else:  # positions alone: the same parameters without content
                alone = small_config(data_dir, model__encoding=encoding)
                network = create_model(alone.model, rngs=nnx.Rngs(2))
                skeleton, own, statistics = split(network)
                network = join(skeleton, own | {name: arrays[name] for name in own}, statistics)
                attention = network.attention(alone.model.image_shape)[n][:, 2, 2]
                expected = moments.centre_of_mass(np.asarray(attention)) - 2
                np.testing.assert_allclose(layer["covariance"], moments.covariance(attention), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(layer["centre"], expected, rtol=1e-4, atol=1e-4)
