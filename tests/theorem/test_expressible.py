"""What encodings can express: each claim against the patterns that random parameters of the encoding make."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import reference
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import encoding_class
from attn_cnn_jax.models.encodings.lookhere import CORNERS
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.theorem.expressible import KERNELS, expresses

pytestmark = pytest.mark.usefixtures("float64")
SIZE, HEADS = 5, 48
SHIFTS = kernel_shifts((SIZE, SIZE))
RANK = {"alibi": 6, "alibi_manhattan": 5, "kerple": 9, "fire": 9, "lookhere": 19, "pape_ri": 13, "content": 1}


def patterns(encoding):
    """Attention of the middle query of 5x5 equal pixels, `(h, 25)`, of heads with random parameters."""
    sizes = {"image_shape": (SIZE, SIZE, 8), "downsample": 1, "num_layers": 1, "hidden_size": 8, "num_heads": HEADS}
    model = create_model(attention_config(**sizes, encoding=encoding, dtype="float64").model, rngs=nnx.Rngs(0))
    skeleton, parameters, rest = split(model.blocks[0].attention)
    rng, moved = np.random.default_rng(0), dict(parameters)
    for name, array in parameters.items():
        if name.endswith("slope"):  # of ALiBi and LookHere: any, not those of the paper
            moved[name] = jnp.asarray(rng.uniform(0, 2, array.shape))
        elif encoding == "lookhere":  # all heads in quadrants
            moved[name] = jnp.asarray(np.resize(CORNERS, array.shape), jnp.float64)
        else:
            moved[name] = array + jnp.asarray(rng.normal(size=array.shape))
    layer = join(skeleton, moved, rest)
    attention = reference.evaluate(layer.probabilities, np.ones((1, SIZE, SIZE, 8)))
    return attention.reshape(-1, *(SIZE,) * 4)[:, SIZE // 2, SIZE // 2].reshape(-1, SIZE**2)


@pytest.mark.parametrize("encoding", sorted(KERNELS))
def test_random_heads_span_what_an_encoding_is_said_to_express(encoding):
    """Least squares over the encoding's own patterns and the kernel said to be nearest leave the same residual."""
    heads, kernel = patterns(encoding), np.random.default_rng(1).normal(size=(SIZE, SIZE, 2, 3))
    rows = kernel.reshape(SIZE**2, -1)
    left, singular, _ = np.linalg.svd(heads.T, full_matrices=False)
    rank = int(np.sum(singular > 1e-11 * singular[0]))
    fitted = left[:, :rank] @ (left[:, :rank].T @ rows)
    assert rank == RANK.get(encoding, SIZE**2)
    np.testing.assert_allclose(fitted, expresses(encoding).nearest(kernel).reshape(rows.shape), atol=1e-3)


def test_kernels_within_reach_are_what_the_words_say():
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 2))
    for encoding in ("alibi", "kerple", "fire", "pape_ri"):
        near = expresses(encoding).nearest(kernel)
        np.testing.assert_allclose(near, near[::-1, ::-1], atol=1e-12)
    np.testing.assert_allclose(near, (kernel + kernel[::-1, ::-1]) / 2)  # equal at opposite shifts
    np.testing.assert_allclose(expresses("rope").nearest(kernel), kernel)
    np.testing.assert_allclose(expresses("content").nearest(kernel), np.broadcast_to(kernel.mean((0, 1)), kernel.shape))
    # LookHere lacks one of nine: the rows' second derivative less the columns'.
    lost = (kernel - expresses("lookhere").nearest(kernel))[..., 0, 0]
    np.testing.assert_allclose(lost, lost[0, 1] * np.array([[0, 1, 0], [-1, 0, -1], [0, 1, 0]]), atol=1e-12)
    with pytest.raises(UserError, match="not registered"):
        expresses("alibbi")
    assert all(encoding_class(name) for name in KERNELS)
