"""Holds compiled programs against NumPy in double precision before a number of theirs is used.

Of noise, up to eight images repeated to a whole batch: logits before the first evaluation, loss and gradient before the
first training step. A program that passed is not checked again: kept in the user's cache folder by its text, jaxlib,
device, processor, flags and options.
"""

import contextlib
import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attn_cnn_jax import reference
from attn_cnn_jax.errors import UserError, command_line, shortened
from attn_cnn_jax.files import cache_folder
from attn_cnn_jax.output import say
from attn_cnn_jax.runs import environment

MOST_IMAGES = 8
# Of one rounding: a result is allowed a thousand of them, as of a chain of some hundred products and sums that each
# lose one and layer norms that magnify; those measured are below ten. Gradients add up as many again.
ROUNDINGS, GRADIENTS = 1000, 10
MOST, MOST_OF_GRADIENTS = 0.1, 0.3  # that any rounding may explain
SMALL = 1e-3  # share of the whole gradient below which an array's own size says nothing


def noise(batch_size: int, image_shape: tuple[int, ...]) -> np.ndarray:
    """Returns uint8 images of uniform noise, all different: the most that divide the batch evenly, at most eight."""
    count = max(n for n in range(1, MOST_IMAGES + 1) if batch_size % n == 0)
    return np.random.default_rng(0).integers(0, 256, (count, *image_shape), np.uint8)


def repeated(images: np.ndarray, batch_size: int) -> np.ndarray:
    """Returns a batch of some images, each as often."""
    return np.resize(images, (batch_size, *images.shape[1:]))


def allowed(dtype: str, precision: str, platform: str | None) -> float:
    """Returns the largest relative difference that rounding explains, for products in a precision of JAX."""
    platform = platform or jax.default_backend()
    bits = 24  # of float32; float64 is no better, as logits are float32
    if platform != "cpu" and precision not in ("highest", "float32"):
        bits = 11 if platform == "gpu" else 8  # of TF32, or bfloat16
    if dtype == "bfloat16":
        bits = 8
    return min(ROUNDINGS * 2.0**-bits, MOST)


def checked(
    lowered: jax.stages.Lowered, check: Callable[[Future[jax.stages.Compiled]], bool | None]
) -> jax.stages.Compiled:
    """Compiles a program and runs its check, unless it passed here before: see `once`.

    While XLA compiles, NumPy computes what the check expects; so it is given what will be the program. What is kept
    is the text before compilation: a program that comes from the cache has another one afterwards.
    """
    with ThreadPoolExecutor(1) as beside:
        compiled = beside.submit(lowered.compile)
        once(lowered.as_text(), functools.partial(check, compiled))
        return compiled.result()


def once(text: str, check: Callable[[], bool | None]) -> None:
    """Runs a check unless a program of this text has passed it here before; keeps that it has.

    A check that returns False could not be made: that is not kept, and said again next time.
    """
    place = kept(text)
    if place is not None and place.exists():
        return
    if check() is not False and place is not None:
        with contextlib.suppress(OSError):  # no cache folder: checked again next time
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()


def kept(text: str) -> Path | None:
    """Returns the file that says that a program passed; None where there is no home folder.

    None too for a run of several processes: all of them have to run a check, or none.
    """
    if jax.process_count() > 1:
        return None
    here = json.dumps(environment.describe(), sort_keys=True)
    name = hashlib.sha256(f"{here}\n{text}".encode()).hexdigest()
    cache = cache_folder()
    return None if cache is None else cache / "checked" / name


def compare(what: str, computed: Any, expected: Any, tolerance: float) -> None:
    """Raises UserError unless two arrays agree: the largest difference, relative to the largest value."""
    computed, expected = np.asarray(computed, np.float64), np.asarray(expected, np.float64)
    scale = np.abs(expected).max() or 1.0
    refuse_unless(what, float(np.abs(computed - expected).max() / scale), tolerance)


def compare_gradients(
    computed: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float, *, kinks: bool = False
) -> None:
    """Raises UserError, naming the worst array, unless gradients by name agree: in norm, each relative to its own.

    `kinks` says that the network has ReLUs: one whose input is within a rounding of zero changes the gradient by its
    whole share, which can be a few percent of an array's.
    """
    norms = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    floor = SMALL * math.sqrt(sum(norm**2 for norm in norms.values())) or 1.0
    errors = {
        name: float(np.linalg.norm(np.asarray(computed[name], np.float64) - value)) / (norms[name] + floor)
        for name, value in expected.items()
    }
    most = min(GRADIENTS * tolerance, MOST_OF_GRADIENTS)
    worst = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name])
    refuse_unless(f"the gradient of {worst}", errors[worst], MOST_OF_GRADIENTS if kinks else most)


def refuse_unless(what: str, error: float, tolerance: float) -> None:
    """Raises UserError for an error, relative, that rounding does not explain; NaN too."""
    if error <= tolerance:
        return
    raise UserError(
        f"the self-check failed: {what} differ by {error:.2g} from its value in double precision, allowed is "
        f"{tolerance:.2g}, on {environment.in_words(environment.describe())}\n"
        f"numbers computed here would be wrong: see {command_line('selftest')}, and install another jaxlib"
    )


def expected(function: Callable, *args: Any) -> Any:
    """Returns what NumPy makes of a function; None, and a line that says so, where it cannot follow it."""
    try:
        with jax.transfer_guard("allow"):
            return reference.evaluate(function, *args)
    except Exception as error:  # an operation of another library's may do anything on a CPU
        say(f"not self-checked, as NumPy cannot follow this network: {shortened(error)}", sys.stderr)
        return None
