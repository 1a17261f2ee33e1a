"""The paper's formulas as naive Python loops in float64: slow, and plain enough to be checked by eye.

A score function takes one query and one key and returns one number. `scores_of_image` asks it about every
head, query pixel and key pixel. Pixels and shifts are `(row, column)`; the shift is `delta = key - query`.

Axis letters: `h` head, `i j` query row and column, `k l` key row and column, `d` input channel, `o` output
channel. Matrices multiply from the right, `x @ W`, so their shapes are `(in, out)`.
"""

import math

import numpy as np

RELATIVE_TERMS = ("content_content", "content_position", "bias_content", "bias_position")


# Scores of one query pixel and one key pixel


def shift(query, key):
    """`delta = key - query`, rows first."""
    return key[0] - query[0], key[1] - query[1]


def quadratic_score(query, key, centre, spread):
    """Isotropic quadratic, eq. 9: `-s^2 / 2 |delta - Delta|^2`; centre `Delta` (2,), spread `s` a number."""
    delta_row, delta_column = shift(query, key)
    return -(spread**2) / 2 * ((delta_row - centre[0]) ** 2 + (delta_column - centre[1]) ** 2)


def generalized_quadratic_score(query, key, centre, spread):
    """Generalised quadratic: `-1/2 (delta - mu)^T S S^T (delta - mu)`; centre `mu` (2,), `S` (2, 2)."""
    delta = shift(query, key)
    total = 0.0
    for column in range(2):  # (delta - mu)^T S S^T (delta - mu) is the squared length of S^T (delta - mu)
        projection = sum(spread[row][column] * (delta[row] - centre[row]) for row in range(2))
        total += projection**2
    return -0.5 * total


def table_entry(table, delta):
    """The vector for one shift along one axis: a table of `2M - 1` vectors begins with shift `-(M - 1)`."""
    index = delta + len(table) // 2
    if not 0 <= index < len(table):
        raise IndexError(f"shift {delta} is outside a table of {len(table)} vectors")
    return table[index]


def learned_score(query, key, row_table, column_table, row_weights, column_weights):
    """Learned 2-D relative: `w_row . e_row[delta_row] + w_col . e_col[delta_col]`, not scaled.

    Tables `(2M - 1, D)`; weights of one head `(D,)`.
    """
    delta_row, delta_column = shift(query, key)
    row_score = np.dot(row_weights, table_entry(row_table, delta_row))
    return row_score + np.dot(column_weights, table_entry(column_table, delta_column))


def content_score(x_query, x_key, query_weights, query_bias, key_weights, key_bias):
    """Content of one head: `q . k / sqrt(D_h)`; pixels `(d,)`, weights `(d, D_h)`, biases `(D_h,)`."""
    query_vector = x_query @ query_weights + query_bias
    key_vector = x_key @ key_weights + key_bias
    return np.dot(query_vector, key_vector) / math.sqrt(len(query_vector))


def relative_vector(query, key, row_table, column_table):
    """`r_delta = e_row[delta_row] + e_col[delta_col]`, `(D_p,)`, for tables `(2M - 1, D_p)`."""
    delta_row, delta_column = shift(query, key)
    return table_entry(row_table, delta_row) + table_entry(column_table, delta_column)


def relative_score(
    x_query,
    x_key,
    r_delta,
    query_weights,
    key_weights,
    position_weights,
    u,
    v,
    terms=RELATIVE_TERMS,
    scale=None,
):
    """The full relative form of one head, eq. 8: four terms, each there when `terms` names it.

        content_content    x_q W_qry . x_k W_key
        content_position   x_q W_qry . r_delta What_key
        bias_content       u . x_k W_key
        bias_position      v . r_delta What_key

    Pixels `(d,)`, `r_delta` `(D_p,)`, `W_qry` and `W_key` `(d, D_h)`, `What_key` `(D_p, D_h)`, `u` and `v`
    `(D_h,)`. The sum is multiplied by `scale`, `1 / sqrt(D_h)` unless given (eq. 8 as printed has 1).
    """
    values = {
        "content_content": np.dot(x_query @ query_weights, x_key @ key_weights),
        "content_position": np.dot(x_query @ query_weights, r_delta @ position_weights),
        "bias_content": np.dot(u, x_key @ key_weights),
        "bias_position": np.dot(v, r_delta @ position_weights),
    }
    if scale is None:
        scale = 1 / math.sqrt(len(u))
    return scale * sum(values[term] for term in terms)


def absolute_score(x_query, p_query, x_key, p_key, query_weights, key_weights):
    """Absolute positions of one head, eq. 7: `(x_q + p_q) W_qry . (x_k + p_k) W_key / sqrt(D_h)`.

    Pixels and positions `(d,)`, weights `(d, D_h)`.
    """
    query_vector = (x_query + p_query) @ query_weights
    key_vector = (x_key + p_key) @ key_weights
    return np.dot(query_vector, key_vector) / math.sqrt(len(query_vector))


def sinusoidal_positions(height, width, size):
    """Sinusoidal 2-D positions `(height, width, size)`.

    The first half of the channels tells the row, the second the column. Within a half, channels `2n` and
    `2n + 1` are the sine and cosine of `position / 10000^(2n / half)`.
    """
    half = size // 2
    positions = np.zeros((height, width, size))
    for row in range(height):
        for column in range(width):
            for n in range(half // 2):
                wavelength = 10000 ** (2 * n / half)
                positions[row, column, 2 * n] = math.sin(row / wavelength)
                positions[row, column, 2 * n + 1] = math.cos(row / wavelength)
                positions[row, column, half + 2 * n] = math.sin(column / wavelength)
                positions[row, column, half + 2 * n + 1] = math.cos(column / wavelength)
    return positions


# From the score of one pair to the output of a layer


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


def conv2d(image, kernel, bias=None, stride=1, dilation=1, padding=None):
    """Convolution (a correlation, as in every framework) with zeros around the image.

    Picture `(H, W, d)`, kernel `(K_row, K_col, d, o)`, output `(rows, columns, o)`. `padding` is the
    zeros a side, `(rows, columns)`; unless given, `dilation * (K - 1) / 2`, which keeps the size at stride 1
    (odd kernels).
    """
    height, width, _ = image.shape
    kernel_rows, kernel_columns, _, out_channels = kernel.shape
    if padding is None:
        padding = (dilation * (kernel_rows // 2), dilation * (kernel_columns // 2))
    rows = (height + 2 * padding[0] - dilation * (kernel_rows - 1) - 1) // stride + 1
    columns = (width + 2 * padding[1] - dilation * (kernel_columns - 1) - 1) // stride + 1
    output = np.zeros((rows, columns, out_channels))
    for i in range(rows):
        for j in range(columns):
            if bias is not None:
                output[i, j] = bias
            for m in range(kernel_rows):
                for n in range(kernel_columns):
                    row = i * stride + m * dilation - padding[0]
                    column = j * stride + n * dilation - padding[1]
                    if 0 <= row < height and 0 <= column < width:
                        output[i, j] += image[row, column] @ kernel[m, n]
    return output
