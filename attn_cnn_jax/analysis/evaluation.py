"""Loss and accuracy of a run on pictures with labels, also with every picture's mirror image beside it."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.data.stored import Stored
from attn_cnn_jax.runs.run import Run

AT_ONCE = 5000  # pictures in memory, of a set that is not


class Evaluation(NamedTuple):
    """What a network makes of some pictures.

    Attributes:
      right: how many of them have their own class as the most probable one.
      count: how many there are.
      loss: mean cross-entropy, nats.
    """

    right: int
    count: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Share of the pictures, 0 to 1."""
        return self.right / self.count


def evaluate(run: Run, pictures: Split | Stored, *, mirrored: bool = False) -> Evaluation:
    """Returns loss and accuracy of a run's network.

    Args:
      run: the run.
      pictures: with their labels.
      mirrored: classify by the mean of the logits of a picture and of its mirror image.

    Raises:
      UserError: for pictures of another shape than the network takes.
    """
    count, right, loss = len(pictures.labels), 0, 0.0
    for start in range(0, count, AT_ONCE):
        images, labels = pictures.at(np.arange(start, min(start + AT_ONCE, count)))
        logits = run.logits(images)
        if mirrored:
            logits = (logits + run.logits(images[:, :, ::-1])) / 2
        right += int((logits.argmax(axis=1) == labels).sum())
        loss -= float(log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels].sum())
    return Evaluation(right, count, loss / count)
