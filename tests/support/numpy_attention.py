"""The paper's self-attention as naive Python loops in float64: slow, and plain enough to be checked by eye.

Scores of one query and one key are in tests/models/test_encodings.py. Matrices multiply from
the right, `x @ W`, so their shapes are `(in, out)`; pixels are `(row, column)`.
"""

import numpy as np


def scores_of_image(score, num_heads, height, width):
    """`score(head, query, key)` for every head, query pixel and key pixel: `(h, i, j, k, l)`."""
    scores = np.zeros((num_heads, height, width, height, width))
    for h, i, j, k, l in np.ndindex(scores.shape):  # noqa: E741
        scores[h, i, j, k, l] = score(h, (i, j), (k, l))
    return scores


def softmax_over_keys(scores):
    """Softmax over all keys `(k, l)` of each head and query; `(h, i, j, k, l)` to the same shape."""
    probabilities = np.zeros_like(scores)
    for h, i, j in np.ndindex(scores.shape[:3]):
        exponentials = np.exp(scores[h, i, j] - scores[h, i, j].max())
        probabilities[h, i, j] = exponentials / exponentials.sum()
    return probabilities


def mhsa(probabilities, image, weights, bias):
    """`sum_h sum_k a_h(q, k) X_k W^(h) + b`: probabilities `(h, i, j, k, l)`, image `(k, l, d)`, weights `(h, d, o)`.

    The output is `(i, j, o)`.
    """
    _, height, width = probabilities.shape[:3]
    output = np.zeros((height, width, len(bias))) + bias
    for h, i, j, k, l in np.ndindex(probabilities.shape):  # noqa: E741
        output[i, j] += probabilities[h, i, j, k, l] * image[k, l] @ weights[h]
    return output
