"""The table of encodings from kept runs, and that each of its rows can be trained."""

import json

import numpy as np
import pytest

from attn_cnn_jax.config import validate
from attn_cnn_jax.errors import UserError
from benchmarks import encodings, records, tricks


def test_every_row_can_be_trained_and_differs_from_all_others():
    models = []
    for row in encodings.ROWS:
        config = encodings.configured(row, 0, 1, 0.004)
        validate(config)
        models.append(json.dumps(config.model.to_dict(), sort_keys=True))
    assert len(set(models)) == len(models) == len(set(map(tricks.name_of, encodings.ROWS)))


def test_the_table_has_the_best_learning_rate_and_means_over_seeds(tmp_path):
    with pytest.raises(UserError, match="--minutes"):
        encodings.rows(tmp_path)
    speeds = dict.fromkeys(encodings.ROWS, 500.0) | {"pape": 250.0}
    budget = {"minutes": 10, "images_per_second": speeds}  # 300,000 images, of PaPE half as many
    (tmp_path / encodings.BUDGET).write_text(json.dumps(budget))

    def keep(place, accuracy, config, **measured):
        found = [{"step": 1, "epoch": 1, "split": "test", "loss": 1.0, "accuracy": accuracy}]
        records.write(tmp_path / "pape" / place, config.to_dict(), found)
        (tmp_path / "pape" / place / encodings.MEASURED).write_text(json.dumps(measured))

    for epochs, accuracies in ((3, (60.0, 62.0)), (6, (70.0,))):
        for seed, accuracy in enumerate(accuracies):
            heads = {"within": [20 + 2 * seed, 30], "residual": [0.5, 0.6]}
            keep(
                f"epochs_{epochs}/seed_{seed}",
                accuracy / 100,
                encodings.configured("pape", seed, epochs, 0.004),
                **({"sizes": {"48": 50.0, "64": 40.0}} | heads if epochs == 6 else {}),
            )
    reached = dict(zip(encodings.RATES, (40.0, 50.0, 30.0, 20.0), strict=True))
    (tmp_path / "pape" / encodings.SEARCH).write_text(json.dumps({"validation": reached}))
    (row,) = encodings.rows(tmp_path)
    name, rate, _, _, *cells = row.values()
    assert (name, rate) == ("`pape`", 0.004)
    assert cells == ["250", 3, "61.0 ± 1.4", "70.0", "50.0", "40.0", "20, 30", "0.50, 0.60", "all"]
    (axes,) = encodings.draw(tmp_path).axes
    assert [text.get_text() for text in axes.texts] == ["pape"]
    # Milliseconds; after as many epochs as the first row has.
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[4.0, 70.0]])
