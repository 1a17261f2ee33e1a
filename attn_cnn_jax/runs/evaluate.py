"""The one evaluation: of training, `Run`, commands and benchmarks.

Linear maps are merged once, outside the program; one jitted program takes a batch of uint8 images to float32 logits;
the last batch is padded and cut. Right answers are counted, and the loss is summed in double precision, on the host.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Int, Num
from ml_collections import ConfigDict

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import Arrays, Images, Labels, Shape
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import Spec
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs import selfcheck

Logits = Float[np.ndarray, "b classes"]


UNEQUAL = 1.5  # times as many images as the rarest class, from which on the most frequent one hides it

CHECKED: dict[Any, jax.stages.Compiled] = {}  # programs that passed the self-check, by the shapes of their arguments


@dataclass(frozen=True)
class Evaluation:
    """What a network makes of some images."""

    right: int  # images whose own class is the most probable one
    count: int  # of all images
    loss: float  # mean cross-entropy, nats
    balanced: float | None = None  # mean over classes of the share that is right; None for like numbers of images

    @property
    def accuracy(self) -> float:
        """Share of the images, 0 to 1."""
        return self.right / self.count


class Numbers(NamedTuple):
    """What the program of a network needs to know beside its arrays; hashable."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str
    precision: str


class Placement(NamedTuple):
    """Where arrays and images are put: by default on one device, in training over a mesh (`training.mesh`)."""

    platform: str | None = None  # of the devices; None for JAX's default
    whole: Callable[[Any], Any] = jax.device_put  # of arrays that every device holds
    batch: Callable[[np.ndarray], jax.Array] = jax.device_put  # of the images of a batch, to the devices that share it
    result: Any = None  # the sharding of the logits
    devices: int = 1  # that share a batch evenly


HERE = Placement()

# What a program returns of the logits and intermediates of a network.
PARTS: dict[str, Callable[[jax.Array, dict[str, Any]], Any]] = {
    "logits": lambda logits, _: logits.astype(jnp.float32),
    "attention": lambda _, intermediates: [layer["attention"] for layer in intermediates["layers"]],
    "everything": lambda logits, intermediates: {"logits": logits} | intermediates,
}


def numbers_of(config: ConfigDict, spec: Spec) -> Numbers:
    """Returns the numbers of a run's network."""
    precision = config.train.matmul_precision
    return Numbers(tuple(spec.mean), tuple(spec.std), config.model.dtype, precision)


@functools.lru_cache(maxsize=64)
def program(part: str, skeleton: Skeleton, numbers: Numbers, platform: str | None, result: Any) -> compiling.Program:
    """Returns the jitted `program(arrays, images)`: one of PARTS of uint8 images; one for all networks of a structure.

    `arrays` are the parameters and statistics of the network that `split` took apart.
    """

    def function(arrays: tuple[Arrays, Arrays], images: Images) -> Any:
        x = normalise(images, numbers.mean, numbers.std, jnp.dtype(numbers.dtype))
        network: Any = join(skeleton, *arrays)
        return PARTS[part](*(for_platform(network, platform) if platform else network)(x))

    sharded = {} if result is None else {"out_shardings": result}
    return compiling.jit(in_precision(numbers.precision, function), platform=platform, **sharded)


def predictor(
    model: nnx.Module, config: ConfigDict, spec: Spec, shape: Shape, batch_size: int, at: Placement = HERE
) -> Callable[[Callable[[Any], Images], int], Iterator[Logits]]:
    """Returns `logits(read, count)`, which yields the float32 logits of `count` images, batch by batch.

    `read(indices)` gives images, uint8 `(b, H, W, C)`, of which `shape` is `(H, W, C)`. Batches are of `batch_size`,
    rounded up to what the devices share evenly; one is read while another is computed. Raises UserError if the program
    does not pass the self-check.
    """
    size = -(-batch_size // at.devices) * at.devices
    numbers = numbers_of(config, spec)
    skeleton, *parts = split(merged(model, shape))
    arrays = at.whole(tuple(parts))
    of_structure = program("logits", skeleton, numbers, at.platform, at.result)
    key = of_structure, size, shape, tuple((x.shape, x.dtype) for x in jax.tree.leaves(arrays))

    def unmerged(x: Any) -> jax.Array:
        network: Any = model if at.platform is None else for_platform(model, at.platform)
        return network(normalise(x, numbers.mean, numbers.std, jnp.dtype(numbers.dtype)))[0]

    def check(compiled: Future[jax.stages.Compiled]) -> bool:
        images = selfcheck.noise(size, shape)
        if (known := selfcheck.expected(unmerged, images)) is None:
            return False
        batch = at.batch(selfcheck.repeated(images, size))
        found = np.asarray(compiled.result()(arrays, batch))[: len(images)]
        tolerance = selfcheck.allowed(numbers.dtype, numbers.precision, at.platform)
        selfcheck.compare("the logits of noise", found, known, tolerance)
        return True

    if key not in CHECKED:
        lowered = of_structure.lower(arrays, at.batch(np.zeros((size, *shape), np.uint8)))
        CHECKED[key] = selfcheck.checked(lowered, check)
    call = CHECKED[key]

    def logits(read: Callable[[Any], Images], count: int) -> Iterator[Logits]:
        waiting: jax.Array | None = None
        for start in range(0, count, size):
            images = read(np.minimum(np.arange(start, start + size), count - 1))
            following = call(arrays, at.batch(np.asarray(images)))
            if waiting is not None:
                yield np.asarray(waiting)
            waiting = following
        if waiting is not None:
            yield np.asarray(waiting)[: count - start]

    return logits


def probabilities(logits: Logits) -> Logits:
    """Returns the softmax of logits, float32, computed in double precision."""
    wide = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return (wide / wide.sum(axis=1, keepdims=True)).astype(np.float32)


def scores(logits: Logits, labels: Labels) -> tuple[Bool[np.ndarray, " b"], Float[np.ndarray, " b"]]:
    """Returns of every image whether the first choice is right, and its cross-entropy (nats) in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    own = wide[np.arange(len(labels)), labels]
    return logits.argmax(axis=1) == labels, np.log(np.exp(wide).sum(axis=1)) - own


def total(parts: Iterator[Logits], labels: Labels) -> Evaluation:
    """Returns the evaluation of images whose logits come in batches, every image counted once."""
    correct, loss, start = list[np.ndarray](), 0.0, 0
    for logits in parts:
        right, losses = scores(logits, np.asarray(labels[start : start + len(logits)]))
        correct.append(right)
        loss, start = loss + float(losses.sum()), start + len(logits)
    right = np.concatenate(correct)
    return Evaluation(int(right.sum()), start, loss / start, balanced(right, np.asarray(labels[:start])))


def balanced(right: Bool[np.ndarray, " b"], labels: Labels) -> float | None:
    """Returns the mean over classes of the share of their images that is right; None below UNEQUAL."""
    counts = np.bincount(labels)
    if counts.max() < UNEQUAL * counts[counts > 0].min():
        return None
    return mean_of_classes(np.bincount(labels, weights=right), counts)


def mean_of_classes(right: Num[np.ndarray, " k"], counts: Int[np.ndarray, " k"]) -> float:
    """Returns the mean over classes that have images of the share of each that is right."""
    there = counts > 0
    return float((right[there] / counts[there]).mean())
