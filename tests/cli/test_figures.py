"""`attn-cnn figures`: which files it writes, and what it refuses."""

import warnings

import matplotlib
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.images import images_at
from attn_cnn_jax.cli.main import main


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


def test_one_command_draws_figures_6_to_10(content_run, tmp_path, capsys):
    """By default: means for the central pixel and another one, and three pictures; any others by index."""
    assert main(["figures", str(content_run), "--figures=maps,pictures", "--images=2", f"--out={tmp_path / 'a'}"]) == 0
    pixels = ("4_4", "2_2")
    expected = {f"maps_{q}.png" for q in pixels} | {f"picture_{n}_{q}.png" for n in range(3) for q in pixels}
    assert {path.name for path in (tmp_path / "a").glob("*.png")} == expected
    arguments = ["--figures=pictures", "--pictures=7,354", "--query=0,7", f"--out={tmp_path / 'b'}"]
    assert main(["figures", str(content_run), *arguments]) == 0
    expected = {f"picture_{n}_0_7.png" for n in (7, 354)}
    assert {path.name for path in (tmp_path / "b").glob("*.png")} == expected
    run = load_run(content_run)
    images, labels, names = images_at(run, [7])
    (probabilities,) = run.predict(images)
    best = probabilities.argmax()
    title = f"test image 7: {names[labels[0]]}\npredicted {names[best]} ({probabilities[best]:.0%})"
    svg = (tmp_path / "b/picture_7_0_7.svg").read_text()
    assert all(line in svg for line in title.splitlines())
    assert main(["figures", str(content_run), "--figures=pictures", "--pictures=355"]) == 1
    assert capsys.readouterr().err == "image 355: the test split of digits has 0 to 354\n"


def test_curves_need_metrics_alone(quadratic_run, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "metrics.jsonl").write_text((quadratic_run / "metrics.jsonl").read_text())
    assert main(["figures", str(tmp_path / "kept"), "--figures=curves", f"--out={tmp_path}"]) == 0
    assert (tmp_path / "curves.png").is_file()


def test_a_resnet_has_curves_alone(resnet_run, tmp_path, capsys):
    assert main(["figures", str(resnet_run), f"--out={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "curves.svg"}
    assert main(["figures", str(resnet_run), "--figures=centres", f"--out={tmp_path}"]) == 1
    assert "allowed is --figures=curves" in capsys.readouterr().err
