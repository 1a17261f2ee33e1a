"""Attention learns a convolution: one quadratic layer, from a random start, trained to be a random 3x3 convolution.

By the theorem nine heads can be a 3x3 convolution; does gradient descent get there? Teacher: a convolution with normal
weights. Student: one layer of self-attention with the quadratic encoding, initialised as in the paper. Images are
normal noise, new in every step; loss and error are of interior queries, which no border touches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import Activations, Arrays
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.variables import Skeleton, join, split

SIZE = 12  # rows and columns of the images
MARGIN = 3  # pixels from the border to the first query that counts
CHANNELS = 8  # of input and output
BATCH_SIZE = 32
LEARNING_RATE = 0.02  # of Adam, to zero along a half cosine
RECORDS = 100  # in the course of one training


class Training(NamedTuple):
    """A training from its first step to its last, `n` records.

    Attributes:
      step: `(n,)`, from 0.
      error: `(n,)`, `|student - teacher| / |teacher|` on the images of that step; the teacher has no bias.
      centre, spread: `(n, h, 2)` pixels, row first; `(n, h)`, one over pixels.
      layer, final_error: the student as it ended, and its error on 256 other images.
    """

    step: np.ndarray
    error: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    layer: SelfAttention
    final_error: float


def random_kernel(seed: int, kernel_size: int = 3, channels: int = CHANNELS) -> Float[np.ndarray, "r t d o"]:
    """Returns a kernel `(K, K, D, D)` of normal weights, whose output has variance 1 for inputs of variance 1."""
    kernel = np.random.default_rng(seed).normal(size=(kernel_size, kernel_size, channels, channels))
    return (kernel / np.sqrt(kernel_size**2 * channels)).astype(np.float32)


def learn_convolution(
    kernel: Float[np.ndarray, "r t d o"], num_heads: int, *, seed: int = 0, num_steps: int = 3000
) -> Training:
    """Trains a layer of attention to be a convolution; a function of its arguments alone.

    Args:
      kernel: of the teacher, `(K, K, D, D)`.
      num_heads: `N_h` of the student.
      seed: of its initial values and of the images.
      num_steps: of Adam; rounded up to a multiple of `RECORDS`.
    """
    rngs = nnx.Rngs(seed)
    size = kernel.shape[2]
    student = SelfAttention(Quadratic(num_heads, rngs=rngs), num_heads=num_heads, hidden_size=size, rngs=rngs)
    skeleton, parameters, _ = split(student)
    steps = -(-num_steps // RECORDS)
    teacher = jnp.asarray(kernel)
    key = image_key(seed)
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps * RECORDS))
    state, records = optimizer.init(parameters), []
    for n in range(RECORDS):
        before = parameters
        numbers = n * steps + jnp.arange(steps)
        parameters, state, errors = _train(skeleton, optimizer, teacher, key, parameters, state, numbers)
        records.append((n * steps, errors[0], before))
    final = float(relative_error(skeleton, parameters, teacher, noise(jax.random.fold_in(key, 2**31), 256, size)))
    records.append((steps * RECORDS, final, parameters))
    step, error, at = zip(*records, strict=True)
    layer = join(skeleton, parameters, {})
    assert isinstance(layer, SelfAttention)
    centre, spread = (np.array([of[f"position.{name}"] for of in at]) for name in ("centre", "spread"))
    return Training(np.array(step), np.array(error, np.float64), centre, spread, layer, final)


def image_key(seed: int) -> Array:
    """Returns the key of the images; from the seed's own key the student's start is drawn."""
    return jax.random.fold_in(jax.random.key(seed), 2**31)


def noise(key: Array, count: int, channels: int) -> Activations:
    """Returns images of normal noise, `(b, SIZE, SIZE, d)`."""
    return jax.random.normal(key, (count, SIZE, SIZE, channels))


def relative_error(
    skeleton: Skeleton, parameters: Arrays, kernel: Float[Array, "r t d o"], x: Activations
) -> Float[Array, ""]:
    """Returns `|student - teacher| / |teacher|` over interior queries."""
    layout = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
    difference = join(skeleton, parameters, {})(x) - expected
    inner = slice(MARGIN, SIZE - MARGIN)
    return jnp.linalg.norm(difference[:, inner, inner].ravel()) / jnp.linalg.norm(expected[:, inner, inner].ravel())


@compiling.jit(static_argnums=(0, 1))
def _train(skeleton, optimizer, kernel, key, parameters, state, numbers):
    def step(carry, number):
        parameters, state = carry
        x = noise(jax.random.fold_in(key, number), BATCH_SIZE, kernel.shape[2])

        def loss(parameters):
            error = relative_error(skeleton, parameters, kernel, x)
            return error**2, error

        gradients, error = jax.grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return (optax.apply_updates(parameters, updates), state), error

    (parameters, state), errors = jax.lax.scan(step, (parameters, state), numbers)
    return parameters, state, errors
