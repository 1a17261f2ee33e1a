"""attn-cnn summary: its rows, overrides, and how it refuses."""

import shutil

import pytest

from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.cli.summary import TABLE_1
from attn_cnn_jax.config import complete
from attn_cnn_jax.runs.directory import to_json

QUADRATIC = ["93.8%", "12,086,844", "12.1M", "6.18B", "6.2B", "9.01B"]


@pytest.fixture
def summary(capsys):
    """`summary(*arguments)`: printed rows by name, their cells split at blanks."""

    def rows(*arguments):
        assert main(["summary", *map(str, arguments)]) == 0
        header, *lines = capsys.readouterr().out.splitlines()
        beside = (" was measured before version 0.4", ", effective heads of ")
        lines = [line for line in lines if not any(text in line for text in beside)]
        assert all(len(line) == len(header) for line in lines)
        return {line.split()[0]: line.split()[1:] for line in lines}

    return rows


def test_command_without_arguments_prints_table_1_then_the_other_configs(summary, quadratic_run, tmp_path, monkeypatch):
    """A configuration has no accuracy though a run has its name."""
    shutil.copytree(quadratic_run, tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    rows = summary()
    assert list(rows)[:4] == list(TABLE_1)
    assert rows["quadratic"] == QUADRATIC
    assert rows["learned_rel_content"] == ["87.1%", "29,601,882", "29.5M", "15.0B", "15B", "20.7B"]
    assert rows["many_heads"] == ["18,806,970", "9.62B", "14.6B"]
    assert rows["digits"] == ["174,619", "22.0M", "36.2M"]
    assert set(rows) == set(known_configs()) - {"own_images"}


def test_the_papers_networks_are_known_by_what_they_are(summary, tmp_path):
    """In a file of any name, and in a run however it computes."""
    text = "from attn_cnn_jax.config import attention_config\ndef get_config():\n    return attention_config({})\n"
    for name, arguments in {"mine": "", "quadratic": "num_heads=4"}.items():
        (tmp_path / f"{name}.py").write_text(text.format(arguments))
    overrides = ["--config.model.dtype=bfloat16", "--config.model.implementation=dense"]
    (tmp_path / "config.json").write_text(to_json(complete(load_config("quadratic", overrides))))
    rows = summary(tmp_path / "mine.py", tmp_path / "quadratic.py", tmp_path)
    assert rows[str(tmp_path / "mine.py")] == rows[str(tmp_path)] == QUADRATIC
    assert len(rows[str(tmp_path / "quadratic.py")]) == 3


def test_runs_have_their_test_accuracy_and_a_folder_of_seeds_stands_for_its_runs(
    summary, quadratic_run, tmp_path, capsys
):
    for name in ("seed_0", "seed_10"):
        shutil.copytree(quadratic_run, tmp_path / name)
    rows = summary(tmp_path, "pretrained:digits")
    assert rows["pretrained:digits"][:2] == ["99.44%", "174,619"]
    for run in (tmp_path / "seed_0", tmp_path / "seed_10"):
        assert rows[str(run)][0] == "60.00%"  # the last test record; not a network of Table 1
    shutil.rmtree(tmp_path / "seed_10")  # the folder of one seed stands for it, with its heads
    assert main(["summary", str(tmp_path)]) == 0
    assert f"{tmp_path}: layer 2, effective heads of " in capsys.readouterr().out


def test_overrides_change_the_network_that_is_counted(summary, quadratic_run, capsys):
    """A head adds a centre, a spread and a map of 400 x 400 channels per layer; a class of CIFAR-100 its logit."""
    override = "--config.model.num_heads=(9, 9, 9, 9, 9, 10)"
    assert main(["summary", str(quadratic_run), override]) == 1
    assert "overrides change configurations" in capsys.readouterr().err
    for change, more in ((override, 400 * 400 + 3), ("--config.dataset.name=cifar100", 90 * (400 + 1))):
        assert int(summary("quadratic", change)["quadratic"][0].replace(",", "")) - 12_086_844 == more
