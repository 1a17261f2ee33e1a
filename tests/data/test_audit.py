"""What `prepare` says: values and levels of each kind of file, identical images; a range of 16-bit files."""

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.image_files import Unreadable, open_image
from attn_cnn_jax.data.sets import Source
from tests.support.own_pictures import png, random_picture, write_folder

TEN_BITS = np.arange(1024, dtype=np.uint16).reshape(32, 32)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_a_range_keeps_all_levels_of_ten_bits(tmp_path, suffix):
    """Of 1,024 values 0 to 65,535 leave five levels; the range of the file leaves all, rounded to nearest."""
    Image.fromarray(TEN_BITS).save(path := tmp_path / f"a.{suffix}")
    assert len(np.unique(open_image(path, 1, None))) == 5
    found = np.asarray(open_image(path, 1, None, value_range=(0, 1023)))
    np.testing.assert_array_equal(found, np.round(TEN_BITS * (255 / 1023)))
    cut = np.asarray(open_image(path, 1, None, value_range=(100, 355)))
    np.testing.assert_array_equal(cut, np.clip(TEN_BITS.astype(int) - 100, 0, 255))
    assert open_image(path, 1, None).info == {"stored": "16 bits of grey", "range": (0, 1023)}


def test_a_range_is_refused_for_16_bits_of_which_pillow_gives_8_and_leaves_8_bits_alone(tmp_path):
    random_picture(0, (4, 4), "L").save(path := tmp_path / "a.png")
    np.testing.assert_array_equal(open_image(path, 1), open_image(path, 1, value_range=(0, 1023)))
    assert open_image(path).info["stored"] == "8 bits of grey"
    (tmp_path / "b.png").write_bytes(png((1, 1), b"\0" + bytes(6), depth=16, kind=2))
    assert open_image(tmp_path / "b.png").info["stored"] == "16 bits of colour"
    with pytest.raises(Unreadable, match="which is for grey"):
        open_image(tmp_path / "b.png", value_range=(0, 1023))


def test_prepare_says_values_levels_and_takes_a_range(tmp_path, capsys):
    for n in range(8):
        (tmp_path / "own" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.roll(TEN_BITS, n)).save(tmp_path / "own" / "ab"[n % 2] / f"{n}.png")
    command = ["prepare", "folder", f"--path={tmp_path / 'own'}", f"--data-dir={tmp_path}"]
    assert main(command) == 0
    said = "16 bits of grey, 8 images: values 0 to 1023, 5 of 256 levels left; where files hold fewer bits"
    assert said in capsys.readouterr().out
    assert main([*command, "--range=0-1023"]) == 0
    assert "values 0 to 1023, 256 of 256 levels left\n" in capsys.readouterr().out
    data = sources.read(Source("folder", str(tmp_path / "own"), value_range=(0, 1023)), tmp_path)
    assert len(np.unique(data.train.images[0])) == 256
    assert main([*command, "--range=0-511"]) == 0
    assert "values beyond 0 to 511, config.dataset.range, are cut" in capsys.readouterr().out
    assert main([*command, "--range=9-9"]) == 1
    assert "config.dataset.range=(9, 9): allowed is (low, high)" in capsys.readouterr().err


def test_identical_images_are_named_across_splits_and_classes(tmp_path):
    """Equal are pixels, not files: one of both is a JPEG's PNG copy under another name."""
    root = write_folder(tmp_path / "own", splits=("train", "test"))
    Image.open(root / "train/cat/cat_1.png").save(root / "test/cat/other.webp", lossless=True)
    Image.open(root / "train/cat/cat_2.png").save(root / "train/dog/seen.png")
    notes = sources.load(Source("folder", str(root)), tmp_path).notes
    across, under = (note for note in notes if "identical" in note)
    names = f"{root}/train/cat/cat_1.png = {root}/test/cat/other.webp"
    assert across.startswith(f"1 identical images are in more than one split: {names}; remove one")
    assert under.startswith("1 identical images are under more than one class")
    assert f"{root}/train/cat/cat_2.png = {root}/train/dog/seen.png" in under
    clean = write_folder(tmp_path / "clean", splits=("train", "test"))
    assert not [n for n in sources.load(Source("folder", str(clean)), tmp_path).notes if "identical" in n]
