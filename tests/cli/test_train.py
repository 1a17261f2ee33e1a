"""attn-cnn train: seeds, flags, what the help lists and what a run ends with; refusals are in tests/bad_input."""

import statistics

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.config.base import flatten, schema_of
from attn_cnn_jax.errors import command_line
from attn_cnn_jax.runs.metrics import last_records

SMALL = (
    "--config=digits",
    "--config.dataset.name=digits",
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.optimizer.name=sgd",  # compiles sooner
    "--config.optimizer.learning_rate=0.05",
    "--config.train.batch_size=80",
    "--config.train.num_epochs=1",
    "--config.train.logger=none",
)


@pytest.fixture
def command(data_dir):
    """Runs `attn-cnn train` on a small network: `command(*arguments) -> exit status`."""
    return lambda *arguments: main(["train", *SMALL, f"--config.dataset.data_dir={data_dir}", *map(str, arguments)])


def test_each_seed_is_a_run_and_the_same_command_ends_with_mean_and_deviation_again(
    command, tmp_path, one_device, capsys
):
    """Also the run of one seed is one that the command for one run continues; it ends with commands that look at it."""
    assert command(f"--workdir={tmp_path}", "--seeds=3-4") == 0
    folders = [tmp_path / f"seed_{n}" for n in (3, 4)]
    assert sorted(tmp_path.iterdir()) == folders
    assert [load_run(folder).config.seed for folder in folders] == [3, 4]
    tests = [last_records(folder)["test"] for folder in folders]
    assert tests[0]["loss"] != tests[1]["loss"]
    accuracies = [test["accuracy"] for test in tests]
    capsys.readouterr()
    assert command(f"--workdir={tmp_path}", "--seeds=3,4") == 0
    out = capsys.readouterr().out
    assert out.count("is already trained to the end") == 2
    mean, deviation = statistics.mean(accuracies), statistics.stdev(accuracies)
    assert f"test accuracy of 2 seeds: {mean:.2%} ± {deviation:.2%}" in out
    assert out.splitlines()[-1].endswith(command_line("compare", *folders))

    assert command(f"--workdir={folders[1]}", "--config.seed=4") == 0
    lines = capsys.readouterr().out.splitlines()
    counted = f"{accuracies[1]:.2%} ({tests[1]['right']} of {tests[1]['count']})"
    assert f"final test accuracy {counted} after step 18" in lines
    assert f"in Python: attn_cnn_jax.load_run({str(folders[1])!r})" in lines
    assert any(line.endswith(command_line("page", folders[1])) for line in lines)


def test_the_help_lists_every_key_with_its_default_and_what_is_allowed(capsys):
    assert main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for base in (attention_config, resnet_config):
        for key, field in flatten(schema_of(base())).items():
            assert f"config.{key} {field.default!r}"[:40] in text
            assert field.allowed.split(",")[0] in text
