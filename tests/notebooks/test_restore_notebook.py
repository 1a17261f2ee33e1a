"""notebooks/restore_a_run.ipynb runs from top to bottom on a run that was trained; the assertions in its cells hold."""

import re
from pathlib import Path

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training.loop import run
from tests.support.notebooks import check_kept_outputs, execute, pictures_of, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "restore_a_run.ipynb"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, one_device_in_module):
    config = attention_config(
        hidden_size=16, intermediate_size=16, num_layers=2, num_heads=4, downsample=2, attention_dropout=0.0
    )
    config.dataset.name, config.dataset.data_dir = "digits", str(tmp_path_factory.mktemp("data"))
    config.augment.update({"crop_padding": 0, "flip": False})
    config.train.update({"batch_size": 48, "num_epochs": 4, "eval_every_epochs": 4, "logger": "none"})
    folder = tmp_path_factory.mktemp("run")
    run(config, folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_restore_notebook_runs(workdir, tmp_path):
    notebook = execute(NOTEBOOK, tmp_path, RUN=str(workdir))
    text = text_of(notebook)
    lost = re.search(r"most is lost without head \d of layer \d: ([\d.]+)% -> ([\d.]+)%", text)
    assert float(lost[1]) > 30  # it learned something, and a head matters
    assert float(lost[1]) > float(lost[2])
    assert re.search(r"[1-9]\d* of 355 predictions change", text)
    assert pictures_of(notebook) == 6


def test_restore_notebook_is_saved_with_the_outputs_of_its_sources():
    assert pictures_of(check_kept_outputs(NOTEBOOK)) == 6
