"""Whether mirroring destroys classes is found before training, and said."""

import numpy as np
from PIL import Image, ImageDraw

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import mirror
from attn_cnn_jax.data.audit import lines_on_training
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.data.sources import load

WARNING = "warning: mirrored images look like another class"


def arrow(rng, *, right, size=32):
    """An arrow to one side, on a background of any colour, at another place each time."""
    image = Image.new("RGB", (size, size), tuple(rng.integers(0, 256, 3).tolist()))
    (left, y), tip = rng.uniform(0.1, 0.3, 2) * size + (0, 0.2 * size), rng.uniform(0.7, 0.9) * size
    points = [(left, y), (tip, y), (tip - 6, y - 5), (tip, y), (tip - 6, y + 5)]
    ImageDraw.Draw(image).line(points, fill=tuple(rng.integers(0, 256, 3).tolist()), width=2)
    return np.asarray(image if right else image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


def arrows(count):
    rng = np.random.default_rng(0)
    labels = np.arange(count, dtype=np.int32) % 2
    return Split(np.stack([arrow(rng, right=bool(label)) for label in labels]), labels)


def test_arrows_and_digits_are_warned_of_and_what_has_no_sides_is_not(data_dir):
    digits = load("digits", data_dir).train
    for split in (arrows(16), arrows(96), digits.at(range(100)), digits):
        assert mirror.line_on_mirroring(split).startswith(WARNING)
    images = np.concatenate([arrows(96).images, 255 - arrows(96).images[:, ::-1]])
    both = np.arange(192, dtype=np.int32) // 96  # up side down in other colours: a class has arrows to both sides
    for split in (Split(images, both), Split(images, np.random.default_rng(0).permutation(both))):
        assert mirror.line_on_mirroring(split).startswith("augmentation mirrors half of the images: where sides matter")


def test_the_nearest_image_is_that_of_a_loop_over_images_and_shifts():
    """Of 5x16 pixels, which are not averaged: shifts of no row and two columns."""
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 16, 3), np.uint8)
    labels = np.arange(7, dtype=np.int32) % 3
    unit = [image.mean(axis=-1) - image.mean() for image in images]
    unit = [image / np.linalg.norm(image) for image in unit]
    for found, turned in zip(mirror.nearest_is_right(Split(images, labels)), (1, -1), strict=True):
        for n, image in enumerate(unit):
            likeness = [
                -1 if n == k else max((np.roll(image[:, ::turned], by, axis=1) * other).sum() for by in range(-2, 3))
                for k, other in enumerate(unit)
            ]
            assert found[n] == (labels[np.argmax(likeness)] == labels[n])


def test_training_and_preparing_say_so(tmp_path, capsys):
    """With the preset for own images, whose batch size fits 26 of 32 images; unless augmentation mirrors none."""
    split = arrows(32)
    np.savez(tmp_path / "own.npz", images=split.images, labels=split.labels)
    assert main(["prepare", "npz", f"--path={tmp_path / 'own.npz'}", f"--data-dir={tmp_path}"]) == 0
    assert WARNING in capsys.readouterr().out
    sgd = "--config.optimizer.name=sgd"  # compiles sooner
    network = ["--config.model.num_layers=1", "--config.model.hidden_size=8", "--config.model.head_size=0", sgd]
    own = ["--config.dataset.name=npz", f"--config.dataset.path={tmp_path / 'own.npz'}", "--config.train.num_epochs=1"]
    place = [f"--config.dataset.data_dir={tmp_path}", f"--workdir={tmp_path / 'run'}", "--config.augment.flip=True"]
    assert main(["train", "--config=own_images", *network, *own, *place]) == 0
    said = capsys.readouterr().out
    assert WARNING in said
    assert "26 training images: batch size 8, number of epochs 1\n" in said
    config = (run := load_run(tmp_path / "run")).config
    assert run.step == 3
    config.augment.flip = False
    assert WARNING not in "".join(lines_on_training(config, split))
