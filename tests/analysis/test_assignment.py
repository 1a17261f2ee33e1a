"""The assignment of heads to shifts, against SciPy's."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from attn_cnn_jax.analysis.assignment import largest_assignment


def test_the_sum_is_the_largest_there_is():
    rng = np.random.default_rng(0)
    for shape in ((9, 9), (3, 7), (7, 3), (1, 1), (16, 9), (9, 25)) * 5:
        for gain in (rng.random(shape), rng.integers(0, 3, shape).astype(float)):  # the latter has ties
            found = largest_assignment(gain)
            columns = np.flatnonzero(found >= 0)
            assert len(columns) == len({*found[columns]}) == min(shape)
            best = gain[linear_sum_assignment(gain, maximize=True)].sum()
            np.testing.assert_allclose(gain[found[columns], columns].sum(), best)
