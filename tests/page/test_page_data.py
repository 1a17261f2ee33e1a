"""What the page is given, without a browser: attention computed from the embedded data is the model's."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.export import export
from attn_cnn_jax.models.encodings import Content
from attn_cnn_jax.page.build import check, page_data, render
from attn_cnn_jax.page.network import reason_not_to_compute
from attn_cnn_jax.page.scores import CONTENT, MOST_EPOCHS, recorded_epochs, recorded_parameters
from attn_cnn_jax.runs.load import load_run
from tests.page.conftest import GRID, NETWORKS, SIZE


def test_a_page_is_one_file_without_addresses(pages):
    for name in NETWORKS:
        text = pages(name).read_text()
        assert not re.findall(r"""(?:src|href)=["'](?!data:|#|\$\{)""", text)
        assert "http" not in text.replace("http-equiv", "")
        assert text.count("</script>") == 3  # the data and two scripts: no name closes one


def test_texts_that_html_or_the_template_would_read_are_left_alone(runs):
    title = "<!-- PAGE --> </script><!-- & <script> <!-- STYLE --> \u2028 é"
    page = render(page_data(runs["learned"], SIZE, title=title))
    text = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert not re.search(r"[<>&\u2028]", text)
    assert json.loads(text)["title"] == title


def record(step, heads=2, **layer):
    layer = {"centre": [[step, 0.0]] * heads, "spread": [1.0] * heads} | layer
    return {"step": step, "epoch": step / 10, "layers": [layer]}


def test_training_ends_with_the_checkpoint():
    assert recorded_epochs([], 20, [2], "position") == []
    records = [record(0), record(10), record(20)]
    history = recorded_epochs(records, 20, [2], "position")
    assert [entry["epoch"] for entry in history] == [0, 1, 2]
    position = {"term": "position", "kind": "quadratic", "centre": [[10, 0.0]] * 2, "spread": [1.0] * 2}
    assert history[1]["layers"][0]["position"] == position
    assert history[-1]["layers"][0]["position"]["centre"] == [[20, 0.0]] * 2
    between = recorded_epochs(records, 25, [2], "position")
    assert [entry["epoch"] for entry in between] == [0, 1, 2, 2.5]
    assert "layers" not in between[-1]
    assert recorded_epochs(records, 20, [3], "position") == []  # of a network with other heads
    history = recorded_epochs([record(step) for step in range(0, 10_010, 10)], 10_000, [2], "position")
    assert (len(history), history[0]["epoch"], history[-1]["epoch"]) == (MOST_EPOCHS + 1, 0, 1000)  # thinned


def test_history_goes_with_the_weights(tmp_path, runs):
    """What a run recorded up to a step is in its export, and the page of the export plays it."""
    out = tmp_path / "exported"
    export(runs["quadratic"], out)
    assert load_run(out).positions == runs["quadratic"].positions
    assert [entry["epoch"] for entry in page_data(load_run(out), SIZE, title="")["epochs"]] == [1, 2, 3]


def test_recorded_moments_become_a_gaussian_with_them():
    covariance = np.array([[[2.0, 0.5], [0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    found = recorded_parameters({"centre": [[1, 2], [0, 0]], "covariance": covariance.tolist()})
    spread = np.array(found["spread"])
    assert found["kind"] == "gaussian"
    np.testing.assert_allclose(np.linalg.inv(spread[0] @ spread[0].T), covariance[0], atol=5e-3)
    assert np.all(np.isfinite(spread[1]))


def test_a_run_that_diverged_is_refused(quadratic):
    model = nnx.clone(quadratic.model)
    model.blocks[0].attention.position.centre[...] *= jnp.nan
    with pytest.raises(UserError, match="not finite"):
        check(dataclasses.replace(quadratic, model=model), SIZE)


def doubled(self, projections, query_rows):
    return {name: 2 * term for name, term in Content.content_terms(self, projections, query_rows).items()}


def test_networks_that_the_page_cannot_run_are_explained(runs, monkeypatch):
    assert reason_not_to_compute(runs["quadratic"], GRID) is None
    assert "too much for a browser" in reason_not_to_compute(runs["quadratic"], (100, 100))
    assert reason_not_to_compute(runs["landmark"], GRID) is None  # position scores are enough
    # Content of one's own is run where the table has it.
    model, other = nnx.clone(runs["learned_content"].model), type("Other", (Content,), {"content_terms": doubled})
    model.blocks[1].attention.content = other(2, 16, 16, rngs=nnx.Rngs(0))
    run = dataclasses.replace(runs["learned_content"], model=model)
    assert reason_not_to_compute(run, GRID) == "its encoding Other is not in attn_cnn_jax.page.scores.CONTENT"
    monkeypatch.setitem(CONTENT, other, CONTENT[Content])
    assert reason_not_to_compute(run, GRID) is None
