"""The paper's self-attention layers a second time, in plain PyTorch: part of the reference in torch_networks.py.

Attention probabilities are one full `(H, W, N_h, H, W)` tensor, applied by `einsum`.

Where each formula is:

- softmax over all keys, head averages, value map of the concatenated heads: `SelfAttention.forward`
- isotropic quadratic, eq. 9, `-s^2 / 2 |delta - Delta|^2`: `QuadraticSelfAttention`
- generalised quadratic, `-1/2 (delta - mu)^T S S^T (delta - mu)`: `GeneralizedQuadraticSelfAttention`
- learned 2-D relative, `w_row . e_row[delta_row] + w_col . e_col[delta_col]`: `LearnedSelfAttention`
- the same plus content, `q . k / sqrt(D_h)`: `LearnedContentSelfAttention`

Axis letters: `b` image, `i j` query row and column, `k l` key row and column, `h` head, `d` channel.
The shift is `delta = key - query`, rows first.
"""

import math

import torch
from torch import nn
from torch.nn import functional


def axis_shifts(size, device):
    """Shifts `key - query` along one axis, `(query, key)` whole numbers."""
    position = torch.arange(size, device=device)
    return position[None, :] - position[:, None]


def over_pixels(by_row, by_column):
    """Something about rows `(i, k, h)` and columns `(j, l, h)`, both to broadcast as `(i, j, h, k, l)`."""
    return by_row.permute(0, 2, 1)[:, None, :, :, None], by_column.permute(0, 2, 1)[None, :, :, None, :]


def offsets_from_centres(x, centres):
    """`delta - Delta_h` for all pixels of images `x` `(b, i, j, d)`: its row and its column part."""
    row = axis_shifts(x.shape[1], x.device)[:, :, None] - centres[:, 0]
    column = axis_shifts(x.shape[2], x.device)[:, :, None] - centres[:, 1]
    return over_pixels(row, column)


class SelfAttention(nn.Module):
    """What all encodings share: softmax of scores, head averages, value map. Subclasses give the scores."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__()
        self.value = nn.Linear(num_heads * hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def scores(self, x):
        """`(i, j, h, k, l)`, or `(b, i, j, h, k, l)` where scores depend on images `x` `(b, i, j, d)`."""
        raise NotImplementedError

    def forward(self, x):
        """Images `(b, i, j, d)` to new images `(b, i, j, d)`.

        Probabilities that do not depend on the image have no axis `b`: one dropout mask serves the batch.
        """
        scores = self.scores(x)
        dropped = self.dropout(functional.softmax(scores.flatten(-2), dim=-1).reshape(scores.shape))
        equation = "ijhkl,bkld->bijhd" if dropped.ndim == 5 else "bijhkl,bkld->bijhd"
        averages = torch.einsum(equation, dropped, x)
        return self.value(averages.flatten(-2))


class QuadraticSelfAttention(SelfAttention):
    """`score_h(delta) = -alpha_h |delta - Delta_h|^2`, `alpha = s^2 / 2`; `Delta` (N_h, 2), `s` (N_h,)."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__(hidden_size, num_heads, dropout)
        self.attention_centers = nn.Parameter(2.0 * torch.randn(num_heads, 2))
        self.attention_spreads = nn.Parameter(1.0 + 0.01 * torch.randn(num_heads))

    def scores(self, x):
        row, column = offsets_from_centres(x, self.attention_centers)
        alpha = self.attention_spreads.square() / 2
        return -alpha[:, None, None] * (row.square() + column.square())


class GeneralizedQuadraticSelfAttention(SelfAttention):
    """`score_h(delta) = -1/2 (delta - mu_h)^T S_h S_h^T (delta - mu_h)`; `mu` (N_h, 2), `S` (N_h, 2, 2)."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__(hidden_size, num_heads, dropout)
        self.attention_centers = nn.Parameter(2.0 * torch.randn(num_heads, 2))
        self.attention_spreads = nn.Parameter(torch.eye(2) + 0.01 * torch.randn(num_heads, 2, 2))

    def scores(self, x):
        row, column = offsets_from_centres(x, self.attention_centers)
        inverse_covariance = self.attention_spreads @ self.attention_spreads.transpose(-1, -2)
        entry = inverse_covariance[:, :, :, None, None]
        return -0.5 * (
            entry[:, 0, 0] * row.square()
            + (entry[:, 0, 1] + entry[:, 1, 0]) * (row * column)
            + entry[:, 1, 1] * column.square()
        )


class LearnedSelfAttention(SelfAttention):
    """`score_h(delta) = w_row^(h) . e_row[delta_row] + w_col^(h) . e_col[delta_col]`, not scaled.

    A table of `M` positions has `2M - 1` vectors of the hidden size; `delta` is at index `delta + M - 1`.
    Names as in the authors' release, where `row` is the position along a row: `row_embeddings` and `head_keys_row`
    are `e_col` and `w_col` of the formula.
    """

    def __init__(self, hidden_size, num_heads, dropout, table_shape):
        super().__init__(hidden_size, num_heads, dropout)
        self.table_shape = table_shape
        rows, columns = table_shape
        self.row_embeddings = nn.Embedding(2 * columns - 1, hidden_size)
        self.col_embeddings = nn.Embedding(2 * rows - 1, hidden_size)
        self.head_keys_row = nn.Linear(hidden_size, num_heads, bias=False)
        self.head_keys_col = nn.Linear(hidden_size, num_heads, bias=False)

    def scores(self, x):
        rows, columns = self.table_shape
        row_vectors = self.col_embeddings(axis_shifts(x.shape[1], x.device) + rows - 1)  # (i, k, d)
        column_vectors = self.row_embeddings(axis_shifts(x.shape[2], x.device) + columns - 1)  # (j, l, d)
        row, column = over_pixels(self.head_keys_col(row_vectors), self.head_keys_row(column_vectors))
        return row + column


class LearnedContentSelfAttention(LearnedSelfAttention):
    """The learned position score plus `q . k / sqrt(D_h)`, where `D_h` is the hidden size for every head."""

    def __init__(self, hidden_size, num_heads, dropout, table_shape):
        super().__init__(hidden_size, num_heads, dropout, table_shape)
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, num_heads * hidden_size)
        self.key = nn.Linear(hidden_size, num_heads * hidden_size)

    def scores(self, x):
        query = self.query(x).unflatten(-1, (self.num_heads, -1))
        key = self.key(x).unflatten(-1, (self.num_heads, -1))
        content = torch.einsum("bijhd,bklhd->bijhkl", query, key) / math.sqrt(query.shape[-1])
        return content + super().scores(x)
