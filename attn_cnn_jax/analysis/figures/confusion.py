"""A confusion matrix: rows are classes, columns what they are taken for, in shares of each row."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.output import printable

MOST_NUMBERS = 20  # classes up to which every number is written


def draw(matrix: Int[np.ndarray, "k k"], class_names: Sequence[str]) -> Figure:
    """Returns the figure; rows without images are white."""
    count, names = len(matrix), [printable(name) for name in class_names]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    with style.styled():
        side = max(2.4, min(0.28 * count + 1, 9))
        figure = style.create_figure(side, side)
        axes = figure.subplots()
        axes.imshow(shares, cmap=style.ATTENTION, vmin=0, vmax=1, gid="confusion")
        if count <= MOST_NUMBERS:
            for row, column in np.argwhere(matrix):
                dark = shares[row, column] > 0.5
                text = {"ha": "center", "va": "center", "fontsize": 5, "color": "white" if dark else "black"}
                axes.text(column, row, f"{matrix[row, column]}", **text)
            axes.set_xticks(range(count), names, rotation=90)
            axes.set_yticks(range(count), names)
        axes.set(xlabel="predicted class", ylabel="class")
    return figure
