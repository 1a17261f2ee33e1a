"""Runs that start from another run: pruned, reset, with parts fixed, resumed without the first run."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import loop, start
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state

pytestmark = pytest.mark.usefixtures("one_device")

HEADS = 4
DEGENERATE = {0: {1}, 1: {0, 3}}  # layers and heads from 0


def small_config(data_dir, **more):
    """Two layers of four heads on digits; three steps an epoch."""
    config = attention_config(
        encoding="quadratic_generalized",
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=HEADS,
        downsample=2,
    ).to_dict()
    config["dataset"] |= {"name": "digits", "data_dir": str(data_dir)}
    config["train"] |= {"batch_size": 400, "num_epochs": 2, "logger": "none"}
    config["optimizer"] |= {"warmup_fraction": 0.0}
    for path, value in more.items():
        section, _, key = path.partition("__")
        config[section][key] = value
    return complete(directory.from_json(directory.json.dumps(config)))


@pytest.fixture(scope="module")
def first(tmp_path_factory, data_dir):
    """A finished run some of whose heads are degenerate: one a line, one uniform, one singular."""
    workdir = tmp_path_factory.mktemp("first")
    config = small_config(data_dir)
    network = create_model(config.model, rngs=nnx.Rngs(0))
    spreads = [np.array(block.attention.position.spread[...]) for block in network.blocks]
    spreads[0][0] = np.diag([3.0, 1.0])  # long, but not degenerate
    spreads[0][1] = np.diag([40.0, 1.0])
    spreads[1][0] = np.diag([0.001, 0.001])
    spreads[1][3] = np.ones((2, 2))
    for block, spread in zip(network.blocks, spreads, strict=True):
        block.attention.position.spread[...] = jnp.asarray(spread)
    _, state = initial_state(network, create_optimizer(config.optimizer, lambda step: 0.1))
    directory.claim(workdir, config)
    with checkpoints.saving(workdir, config) as manager:
        checkpoints.save(manager, 6, state, config, {"loss": [], "accuracy": []})
    return workdir


def parameters(run):
    return split(run.model)[1]


def test_a_pruned_run_trains_is_restored_and_goes_on_without_the_first_run(first, data_dir, tmp_path, capsys):
    origin = tmp_path / "first"
    shutil.copytree(first, origin)
    config = small_config(data_dir, start__run=str(origin), start__prune=True)
    before = load_run(origin)
    begun, network, _ = start.begin(config, tmp_path / "pruned")
    assert list(begun.model.num_heads) == [3, 2]
    assert list(begun.start.heads) == [(1, 2), (2, 1), (2, 4)]
    kept = [[0, 2, 3], [1, 2]]
    for layer, heads in enumerate(kept):
        name = f"blocks.{layer}.attention.position.centre"
        np.testing.assert_array_equal(split(network)[1][name], parameters(before)[name][np.array(heads)])

    once = config.copy_and_resolve_references()
    loop.run(once, tmp_path / "pruned")
    said = capsys.readouterr().out
    assert re.search(r"3 heads of .*first pruned:\n *layer +head +reason", said)
    assert re.search(r"1 +2 +a line: condition number 1600 > 1000\n", said)
    assert re.search(r"2 +1 +uniform: largest eigenvalue 1.0e-06 < 1e-05\n", said)
    assert re.search(r"2 +4 +a line: condition number \S+ > 1000\n", said)
    written = json.loads((tmp_path / "pruned" / "start.json").read_text())
    assert [(row["layer"], row["head"]) for row in written["pruned"]] == [(1, 2), (2, 1), (2, 4)]
    assert written["given"] == {"model.num_heads": 4, "start.heads": []}
    assert directory.read_config(tmp_path / "pruned").model.num_heads == [3, 2]
    assert main(["summary", str(tmp_path / "pruned")]) == 0
    said = capsys.readouterr().out
    assert "pruned: 5 heads, 3 pruned: 1 of 4 in layer 1, 2 of 4 in layer 2\n" in said
    after = load_run(tmp_path / "pruned")
    assert after.step == 6
    assert list(after.config.model.num_heads) == [3, 2]
    assert [len(layer) for layer in after.attention()] == [3, 2]
    assert [len(layer["centre"]) for layer in read_positions(tmp_path / "pruned")[0]["layers"]] == [3, 2]

    # Step 0: what pruning left, before any training.
    records = [record for record in read_metrics(tmp_path / "pruned" / "metrics.jsonl") if record["split"] == "test"]
    assert [(record["step"], record["epoch"]) for record in records] == [(0, 0), (3, 1), (6, 2)]
    test = sources.load("digits", data_dir).test
    right = load_run(tmp_path / "pruned", step=0).predict(test.images).argmax(axis=1) == test.labels
    assert records[0]["accuracy"] == pytest.approx(right.mean())
    for name, array in split(network)[1].items():
        np.testing.assert_array_equal(parameters(load_run(tmp_path / "pruned", step=0))[name], array)

    shutil.rmtree(origin)
    shutil.rmtree(tmp_path / "pruned" / "checkpoints" / "6")  # as if stopped in the second epoch
    loop.run(config, tmp_path / "pruned")
    again = load_run(tmp_path / "pruned")
    for name, array in parameters(after).items():
        np.testing.assert_array_equal(parameters(again)[name], array)
    assert [record["step"] for record in read_positions(tmp_path / "pruned")] == [0, 3, 6]
    again = [record for record in read_metrics(tmp_path / "pruned" / "metrics.jsonl") if record["split"] == "test"]
    assert again == records


def test_heads_that_are_left_of_a_grid_need_not_fill_one(data_dir):
    pruned = {"start__run": "x", "start__prune": True, "start__heads": ((1, 2),)}
    grid = {"model__encoding": "quadratic", "model__init": "identity"}
    config = start.resolved(small_config(data_dir, **pruned, **grid), (3, HEADS), {0: {1}})
    assert complete(config).model.num_heads == (3, HEADS)
    assert config.start.heads == ((1, 2),)


def test_a_run_that_prunes_or_resets_nothing_is_refused(first, data_dir, tmp_path):
    pruned = small_config(data_dir, start__run=str(first), start__prune=True, train__num_epochs=1)
    loop.run(pruned, tmp_path / "pruned")
    for key in ("prune", "reset"):
        config = small_config(data_dir, start__run=str(tmp_path / "pruned"), **{f"start__{key}": True})
        with pytest.raises(UserError, match=f"start.{key}=True: no head of .*pruned is degenerate"):
            loop.run(config, tmp_path / "again")
        assert not (tmp_path / "again").exists()


def test_a_run_stopped_before_its_first_checkpoint_starts_again(first, data_dir, tmp_path):
    """Then config.json states the heads that were left, and the command those that were given."""
    config = small_config(data_dir, start__run=str(first), start__prune=True, train__num_epochs=1)
    loop.run(config, tmp_path)
    expected = read_metrics(tmp_path / "metrics.jsonl")
    shutil.rmtree(tmp_path / "checkpoints")
    loop.run(config, tmp_path)
    strip = lambda records: [{k: v for k, v in r.items() if k != "images_per_second"} for r in records]  # noqa: E731
    assert strip(read_metrics(tmp_path / "metrics.jsonl")) == strip(expected)
    config = small_config(data_dir, start__run=str(first), start__prune=True, start__heads=((1, 2),))
    with pytest.raises(UserError, match=r"start.heads \(\[\] there, \[\[1, 2\]\] here\)"):
        loop.run(config, tmp_path)


def test_reset_heads_start_again_and_only_they_move_where_the_rest_is_fixed(first, data_dir, tmp_path):
    config = small_config(data_dir, start__run=str(first), start__reset=True, start__freeze="positions,values")
    before = parameters(load_run(first))
    begun = split(start.begin(config, tmp_path)[1])[1]
    loop.run(config, tmp_path)
    after = parameters(load_run(tmp_path))
    # Drawn as a new network's, which is the release's: N(0, 2^2), I + N(0, 0.01^2), uniform in +-1/sqrt(N_h D).
    for layer, heads in DEGENERATE.items():
        new = {name: begun[f"blocks.{layer}.attention.{name}"] for name in ("position.spread", "output.kernel")}
        maps = np.concatenate([np.split(np.asarray(new["output.kernel"]), HEADS)[head] for head in heads])
        bound = (HEADS * 8) ** -0.5
        assert 0.95 * bound < np.abs(maps).max() <= bound
        assert maps.std() == pytest.approx(bound / 3**0.5, rel=0.15)
        for head in heads:
            assert 0 < np.abs(np.asarray(new["position.spread"][head]) - np.eye(2)).max() < 0.05
    for layer in (0, 1):
        for part in ("position.centre", "position.spread", "output.kernel"):
            name = f"blocks.{layer}.attention.{part}"
            heads = [np.split(np.asarray(arrays[name]), HEADS) for arrays in (before, begun, after)]
            for head, (old, new, trained) in enumerate(zip(*heads, strict=True)):
                if head in DEGENERATE[layer]:
                    assert np.all(new != old)
                    assert np.any(trained != new)
                else:
                    np.testing.assert_array_equal(new, old)
                    np.testing.assert_array_equal(trained, old)
    for name in ("classifier.kernel", "blocks.0.dense.kernel", "blocks.1.attention.output.bias"):
        assert np.any(after[name] != before[name])


def test_the_penalty_rounds_the_heads(first, data_dir, tmp_path):
    """The condition number of a long head, 9, falls by far more than training without the penalty moves it."""
    config = small_config(
        data_dir, start__run=str(first), start__prune=True, optimizer__covariance_penalty=0.01, train__num_epochs=1
    )
    loop.run(config, tmp_path)
    spread = np.asarray(parameters(load_run(tmp_path))["blocks.0.attention.position.spread"][0])
    assert 1 < np.linalg.cond(spread) ** 2 < 8


def test_heads_by_name_for_any_encoding(first, data_dir, tmp_path):
    config = small_config(data_dir, start__run=str(first), start__prune=True, start__heads=((2, 1), (2, 2), (2, 3)))
    begun, _, heads = start.begin(config, tmp_path)
    assert list(begun.model.num_heads) == [4, 1]
    assert [row["reason"] for row in heads] == ["named in config.start.heads"] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start__heads": ((1, 1), (1, 2), (1, 3), (1, 4))}, "no head would be left in layer 1"),
        ({"start__heads": ((1, 5),)}, r"\(1, 5\)"),
        ({"start__heads": ((3, 1),)}, "2 layers"),
        ({"model__num_layers": 3}, r"another network: config.model.num_layers \(2 there, 3 here\)\nset"),
        ({"model__hidden_size": 16}, "config.model.hidden_size \\(8 there, 16 here\\)"),
        ({"model__num_heads": 9}, "config.model.num_heads \\(4 there, 9 here\\)"),
        ({"model__num_heads": (4, 3)}, "config.model.num_heads \\(4 there, \\[4, 3\\] here\\)"),
        ({"start__run": "/nowhere"}, "/nowhere is not a run directory"),
    ],
)
def test_what_cannot_be_started_from_is_refused(first, data_dir, tmp_path, changes, message):
    config = small_config(data_dir, **{"start__run": str(first), "start__prune": True} | changes)
    with pytest.raises(UserError, match=message) as caught:
        start.begin(config, tmp_path)
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start__prune": True}, "start.prune=True: allowed is False without a run"),
        ({"start__run": "x", "start__prune": True, "start__reset": True}, "start.reset=True"),
        ({"start__run": "x", "start__heads": ((1, 1),)}, "start.heads"),
        ({"start__run": "x", "start__prune": True, "start__heads": ((0, 1),)}, "counted from 1"),
        ({"start__run": "x", "start__prune": True, "start__heads": (1, 2)}, "counted from 1"),
        ({"start__run": "x", "start__prune": True, "model__content": True}, "with content, a head without a position"),
        ({"start__run": "x", "start__freeze": "positions", "model__encoding": "relative"}, "start.freeze='positions'"),
        ({"optimizer__covariance_penalty": 1.0, "model__encoding": "quadratic"}, "covariance_penalty=1.0"),
    ],
)
def test_configurations_without_sense_are_refused(data_dir, changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        small_config(data_dir, **changes)


def test_runs_of_versions_without_these_keys_still_load(data_dir, tmp_path):
    config = small_config(data_dir)
    _, state = initial_state(create_model(config.model, rngs=nnx.Rngs(0)), create_optimizer(config.optimizer, abs))
    values = config.to_dict()
    del values["start"], values["optimizer"]["covariance_penalty"]
    old = directory.from_json(directory.json.dumps(values))
    directory.claim(tmp_path, old)
    with checkpoints.saving(tmp_path, old) as manager:
        checkpoints.save(manager, 6, state, old, {"loss": [], "accuracy": []})
    loaded = load_run(tmp_path).config
    assert loaded.start.run == ""
    assert loaded.optimizer.covariance_penalty == 0


def test_a_damaged_newest_checkpoint_does_not_stop_a_pruned_run(first, data_dir, tmp_path):
    config = small_config(data_dir, start__run=str(first), start__prune=True)
    begun, network, _ = start.begin(config, tmp_path)
    _, state = initial_state(network, create_optimizer(config.optimizer, abs))
    with checkpoints.saving(tmp_path, begun) as manager:
        for step in (0, 3):
            checkpoints.save(manager, step, state, begun, {"loss": [], "accuracy": []})
    (metadata,) = (tmp_path / "checkpoints" / "3").glob("config/metadata")
    metadata.write_text(metadata.read_text()[:-9])
    assert list(start.begin(config, tmp_path)[0].model.num_heads) == [3, 2]


def test_positions_are_those_of_the_parameters_or_of_the_central_pixel(data_dir, tmp_path):
    from attn_cnn_jax.models.attention import moments
    from attn_cnn_jax.runs.positions import create_recorder

    for encoding, content in (("quadratic", False), ("learned", True), ("absolute_learned", False)):
        config = small_config(data_dir, model__encoding=encoding, model__content=content)
        skeleton, arrays, _ = split(create_model(config.model, rngs=nnx.Rngs(1)))
        workdir = tmp_path / encoding
        workdir.mkdir()
        create_recorder(config, skeleton, workdir, 0)(0, 0.0, arrays)
        records = read_positions(workdir)
        if encoding == "absolute_learned":
            assert records == []
            continue
        for n, layer in enumerate(records[0]["layers"]):
            if encoding == "quadratic":
                expected = arrays[f"blocks.{n}.attention.position.centre"]
            else:  # positions alone: the same parameters without content
                alone = small_config(data_dir, model__encoding=encoding)
                network = create_model(alone.model, rngs=nnx.Rngs(2))
                position = network.blocks[n].attention.position
                position.row_weight[...] = arrays[f"blocks.{n}.attention.position.row_weight"]
                position.column_weight[...] = arrays[f"blocks.{n}.attention.position.column_weight"]
                position.tables.row[...] = arrays[f"blocks.{n}.attention.position.tables.row"]
                position.tables.column[...] = arrays[f"blocks.{n}.attention.position.tables.column"]
                attention = network.attention(alone.model.image_shape)[n][:, 2, 2]
                expected = moments.centre_of_mass(np.asarray(attention)) - 2
                np.testing.assert_allclose(layer["covariance"], moments.covariance(attention), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(layer["centre"], expected, rtol=1e-4, atol=1e-4)


def test_positions_after_a_crash_have_no_half_line_and_no_step_twice(data_dir, tmp_path):
    from attn_cnn_jax.runs.positions import FILE, create_recorder

    config = small_config(data_dir)
    skeleton, arrays, _ = split(create_model(config.model, rngs=nnx.Rngs(1)))
    record = create_recorder(config, skeleton, tmp_path, 0)
    for step in (0, 3, 6):
        record(step, step / 3, arrays)
    whole = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(whole[:-20])
    assert [line["step"] for line in read_positions(tmp_path)] == [0, 3]
    record = create_recorder(config, skeleton, tmp_path, 3)
    record(6, 2.0, jax.tree.map(np.asarray, arrays))
    assert (tmp_path / FILE).read_text() == whole
