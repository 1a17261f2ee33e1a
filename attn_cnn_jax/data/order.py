"""The order in which training visits the pictures: a function of the seed and the epoch."""

import contextlib
import functools

import jax
import numpy as np
from jaxtyping import Array, Int


def epoch_order(seed: int, epoch: int | Int[Array, ""], num_pictures: int) -> Int[Array, " n"]:
    """Returns the order in which an epoch visits the training set: a permutation of `num_pictures` indices."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), epoch)
    return jax.random.permutation(key, num_pictures)


@functools.lru_cache(maxsize=2)  # the last batches of an epoch are read together with the first of the next
def order_on_host(seed: int, epoch: int, num_pictures: int) -> Int[np.ndarray, " n"]:
    """Returns `epoch_order`, computed by the processor where JAX has it: sorting takes memory of a device."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS names others alone
            stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        return np.asarray(epoch_order(seed, epoch, num_pictures))
