"""attn-cnn summary: its rows, overrides, and how it refuses."""

import shutil

import pytest

from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.cli.summary import TABLE_1
from attn_cnn_jax.config import complete
from attn_cnn_jax.runs.directory import to_json


def config_file(path, arguments="", statement="pass"):
    """Writes a configuration file of an attention network and returns its path as text."""
    path.write_text(
        "from attn_cnn_jax.config import attention_config\n\n\ndef get_config():\n"
        f"    config = attention_config({arguments})\n    {statement}\n    return config\n"
    )
    return str(path)


def table(capsys):
    """Printed rows by name, their cells split at two blanks or more."""
    header, *lines = capsys.readouterr().out.splitlines()
    assert all(len(line) == len(header) for line in lines)
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_command_without_arguments_prints_table_1_then_the_other_configs(capsys, quadratic_run, tmp_path, monkeypatch):
    """A configuration has no accuracy though a run has its name."""
    shutil.copytree(quadratic_run, tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert main(["summary"]) == 0
    rows = table(capsys)
    assert list(rows)[:4] == list(TABLE_1)
    assert rows["learned_rel_content"] == ["87.1%", "29,601,882", "29.5M", "15.0B", "15B", "20.7B"]
    assert rows["many_heads"] == ["18,806,970", "9.62B", "14.6B"]
    assert rows["digits"] == ["174,619", "22.0M", "36.2M"]
    assert set(rows) == set(known_configs())


def test_command_takes_any_config_file_and_knows_the_papers_networks_by_what_they_are(capsys, tmp_path):
    same, other = config_file(tmp_path / "mine.py"), config_file(tmp_path / "quadratic.py", "num_heads=4")
    hundred = config_file(tmp_path / "hundred.py", statement="config.dataset.name = 'cifar100'")
    assert main(["summary", same, other, hundred]) == 0
    rows = table(capsys)
    assert rows[same] == ["93.8%", "12,086,844", "12.1M", "6.18B", "6.2B", "9.01B"]
    assert len(rows[other]) == 3
    assert rows[hundred][0] == f"{12_086_844 + 90 * (400 + 1):,}"


def test_a_run_has_its_test_accuracy_beside_the_papers(capsys, quadratic_run):
    assert main(["summary", str(quadratic_run), "quadratic", "pretrained:digits"]) == 0
    rows = table(capsys)
    assert rows["pretrained:digits"][:2] == ["98.03%", "174,619"]
    assert rows[str(quadratic_run)][0] == "60.00%"  # the last test record; not a network of Table 1
    assert rows["quadratic"][0] == "93.8%"


@pytest.mark.parametrize("overrides", [[], ["--config.model.dtype=bfloat16", "--config.model.implementation=dense"]])
def test_a_run_of_the_papers_network_is_known_however_it_computes(capsys, tmp_path, overrides):
    (tmp_path / "config.json").write_text(to_json(complete(load_config("quadratic", overrides))))
    assert main(["summary", str(tmp_path)]) == 0
    assert table(capsys)[str(tmp_path)] == ["93.8%", "12,086,844", "12.1M", "6.18B", "6.2B", "9.01B"]


def test_overrides_change_the_network_that_is_counted(capsys):
    """A head of the paper's base network adds a centre, a spread and a map of 400 x 400 channels per layer."""
    override = "--config.model.num_heads=(9, 9, 9, 9, 9, 10)"
    assert main(["summary", override]) == 2
    assert "name the CONFIG that it changes" in capsys.readouterr().err
    assert main(["summary", "quadratic", override]) == 0
    more = int(table(capsys)["quadratic"][0].replace(",", ""))
    assert more - 12_086_844 == 400 * 400 + 3
