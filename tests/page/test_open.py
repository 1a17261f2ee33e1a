"""A safetensors export that is brought to the page opens there; other files get a clear line."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.runs import weights
from tests.page.conftest import random_run
from tests.support import networks

pytestmark = pytest.mark.slow


def brought(page, *paths):
    """Brings files; returns the line that the page says of them, "" where it has opened the network."""
    page.run("void ($('error').textContent = $('title').textContent = '')")
    page.find("#file").send_keys("\n".join(map(str, paths)))
    page.wait(lambda: page.run("$('error').textContent || $('title').textContent"))
    page.ready()
    return page.run("$('error').textContent")


def exported(run, folder):
    folder.mkdir()
    weights.write(folder, run)
    return folder / weights.FILE


def test_exports_open_and_answer_as_in_jax(open_page, tmp_path):
    page = open_page()
    runs = {name: load_pretrained(name) for name in ("digits", "cifar10")}
    runs["gated"] = random_run(2, encoding="quadratic_generalized", content=True, gate=True, head_size=4)
    for name, run in runs.items():
        assert brought(page, exported(run, tmp_path / name)) == ""
        shape = tuple(run.config.model.image_shape)
        assert page.run("data.pictures.length") == 12  # those that were there, of its size now
        pixels = np.array(page.run("Array.from(bytesOf(data.pictures[0].image))"), np.uint8).reshape(1, *shape)
        expected = np.asarray(networks.logits_of(run.model, run.normalised(pixels))[0])
        np.testing.assert_allclose(page.logits(), expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
        assert len(page.all(".head")) == sum(block.attention.num_heads for block in run.model.blocks)
        assert run.config.dataset.name in page.find("#facts").text
        page.run("choose({ head: [0, 1], off: new Set(['0,1']) })")
        page.ready()
        assert np.abs(np.subtract(page.logits(), expected)).max() > 1e-3


def test_what_does_not_open_says_why(open_page, tmp_path):
    page, path = open_page(), exported(load_pretrained("digits"), tmp_path / "good")
    header, arrays = weights.read_arrays(path)
    save_file(arrays, tmp_path / "older.safetensors", {"step": "1"})
    assert "bring config.json" in brought(page, tmp_path / "older.safetensors")
    (tmp_path / "text.safetensors").write_text("no network")
    assert "damaged, or no safetensors file" in brought(page, tmp_path / "text.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-400])
    assert "damaged, or no safetensors file" in brought(page, tmp_path / "cut.safetensors")
    learned = exported(random_run(2, encoding="learned"), tmp_path / "learned")
    assert "has learned in it" in brought(page, learned)
    arrays.pop("classifier.kernel")
    save_file(arrays, tmp_path / "part.safetensors", header)
    assert "has no classifier.kernel" in brought(page, tmp_path / "part.safetensors")
    (tmp_path / "notes.txt").write_text("no image")
    assert "no image and no safetensors export" in brought(page, tmp_path / "notes.txt")
    assert page.run("data.pictures.length") == 12  # what was there is there still
    assert brought(page, tmp_path / "older.safetensors", tmp_path / "good" / "config.json") == ""
