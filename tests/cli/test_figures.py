"""`attn-cnn figures`: which files it writes, and what it refuses."""

import json
import shutil
import warnings

import matplotlib
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.figures import training
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources


def test_the_command_writes_all_figures_of_a_run(quadratic_run, tmp_path, capsys):
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["figures", str(quadratic_run), f"--out={tmp_path / 'new' / 'folder'}"]) == 0
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    names = ("scheme_layer2", "curves", "training_layer2", "course", "centres", "maps_4_4", "span_layer2")
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")} | {"training_layer2.gif"}
    assert len(capsys.readouterr().out.splitlines()) == 15
    with Image.open(tmp_path / "new/folder/training_layer2.gif") as animation:
        assert animation.n_frames == 3
    assert dict(matplotlib.rcParams) == before


def test_content_models_have_means_of_two_pixels_and_single_images(content_run, data_dir, tmp_path, capsys):
    flags = ["--figures=maps,pictures", "--images=2", "--pictures=7", f"--out={tmp_path}"]
    assert main(["figures", str(content_run), *flags]) == 0
    names = {f"{kind}_{pixel}.png" for kind in ("maps", "picture_7") for pixel in ("4_4", "2_2")}
    assert {path.name for path in tmp_path.glob("*.png")} == names
    images, labels = sources.load("digits", data_dir).test
    (probabilities,) = load_run(content_run).predict(images[7:8])
    svg = (tmp_path / "picture_7_4_4.svg").read_text()
    assert f"test image 7: {labels[7]}" in svg
    assert f"predicted {probabilities.argmax()} ({probabilities.max():.0%})" in svg
    assert main(["figures", str(content_run), "--figures=pictures", "--pictures=355"]) == 1
    assert capsys.readouterr().err == "image 355: the test split of digits has 0 to 354\n"


def test_curves_need_metrics_alone(quadratic_run, resnet_run, tmp_path, capsys):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "metrics.jsonl").write_text((quadratic_run / "metrics.jsonl").read_text())
    assert main(["figures", str(tmp_path / "kept"), "--figures=curves", f"--out={tmp_path / 'a'}"]) == 0
    assert main(["figures", str(resnet_run), f"--out={tmp_path / 'b'}"]) == 0
    for folder in ("a", "b"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == {"curves.png", "curves.svg"}
    assert main(["figures", str(resnet_run), "--figures=centres", f"--out={tmp_path}"]) == 1
    assert "a resnet has no attention to show" in capsys.readouterr().err


def test_figures_of_a_step_know_nothing_of_later_ones(quadratic_run, tmp_path, monkeypatch):
    run, drawn = shutil.copytree(quadratic_run, tmp_path / "run"), []
    *_, last = (run / "positions.jsonl").read_text().splitlines()
    with (run / "positions.jsonl").open("a") as file:
        file.write(json.dumps(json.loads(last) | {"step": 40, "epoch": 2.0}) + "\n")
    draw = training.draw
    monkeypatch.setattr(training, "draw", lambda records, layer: drawn.extend(records) or draw(records, layer))
    assert main(["figures", str(run), "--step=20", "--figures=training", f"--out={tmp_path}"]) == 0
    assert max(record["step"] for record in drawn) == 20
