"""What mirroring would do to images of one's own: whether mirrored images look like those of another class."""

import itertools
import math

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

from attn_cnn_jax.data.sets import Split

MOST = 800  # images that are looked at
SIDE = 16  # pixels to which images are averaged
CLEAR = 3.0  # standard deviations by which mirroring has to change the count of right classes


def line_on_mirroring(train: Split) -> str:
    """A line on training with mirrored images: a warning where mirroring clearly changes the class of images.

    A network that is trained on mirrored images cannot tell, as it takes both sides for one class. So an image is
    given the class of the one most like it among the others, as it is and mirrored.
    """
    straight, mirrored = nearest_is_right(train)
    lost, won = int((straight & ~mirrored).sum()), int((mirrored & ~straight).sum())
    if lost - won > CLEAR * math.sqrt(lost + won):  # McNemar's test
        shares = f"{straight.mean():.0%} of {len(straight)} images, and {mirrored.mean():.0%} of them mirrored"
        found = f"mirrored images look like another class: the most similar image has the class of {shares}"
        return f"warning: {found}; augmentation mirrors half of the images: set config.augment.flip=False"
    wrong = "where sides matter, as in arrows, text or digits, set config.augment.flip=False"
    return f"augmentation mirrors half of the images: {wrong}"


def nearest_is_right(split: Split) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Whether the most similar other image has the class of an image, as it is and mirrored, for at most MOST.

    Most similar is the one of the highest correlation in grey over shifts of up to an eighth of the side.
    """
    chosen = np.unique(np.linspace(0, len(split.labels) - 1, MOST).round().astype(int))
    images = np.stack([small(split.images[n : n + 1][0]) for n in chosen])
    labels, flat = np.asarray(split.labels)[chosen], images.reshape(len(chosen), -1)

    def right(queries: Float[np.ndarray, "n h w"]) -> Bool[np.ndarray, " n"]:
        rows, columns = (range(-(size // 8), size // 8 + 1) for size in queries.shape[1:])
        best = np.full((len(queries), len(queries)), -np.inf, np.float32)
        for shift in itertools.product(rows, columns):
            np.maximum(best, np.roll(queries, shift, (1, 2)).reshape(len(queries), -1) @ flat.T, out=best)
        np.fill_diagonal(best, -np.inf)  # an image itself
        return labels[best.argmax(axis=1)] == labels

    return right(images), right(images[:, :, ::-1])


def small(image: np.ndarray) -> Float[np.ndarray, "h w"]:
    """An image in grey, averaged to at most SIDE pixels a side, of mean 0 and length 1."""
    grey = Image.fromarray(image.mean(axis=-1, dtype=np.float32))
    share = min(1.0, SIDE / max(grey.size))
    width, height = (max(1, round(share * size)) for size in grey.size)
    pixels = np.asarray(grey.resize((width, height), Image.Resampling.BOX))
    pixels = pixels - pixels.mean()
    return pixels / max(float(np.linalg.norm(pixels)), 1e-6)
