"""Reads a file of the authors' PyTorch release: runs no code from it, takes memory of a few times its size at most.

Whoever wrote the file, what is read is arrays of numbers within bounds, or UserError says what the file holds instead.
"""

import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.interop.architecture import listed

BATCHES = "num_batches_tracked"  # steps, as PyTorch's batch norm counts them
# What the release keeps beside weights and follows from shapes.
BUFFERS = ("attention_mask", ".relative_indices", ".self.R")
# Bytes of all arrays in float32, per byte of the file: 2 where it holds float16; layers may share their tables.
MOST_GROWTH = 4
MOST_STEPS = 2**31 - 1  # an int32 counts them


class Checkpoint(NamedTuple):
    """A file of the release.

    Attributes:
      arrays: NumPy arrays by the release's names, float32 but for counts.
      epoch: the last epoch, from 0; None where the file has none.
      test_accuracy: after it, from 0 to 1; None where the file has none.
      step: how many steps the network has trained; None where the file does not say. The release does not.
    """

    arrays: dict[str, np.ndarray]
    epoch: int | None
    test_accuracy: float | None
    step: int | None


def import_torch():
    """Returns the module `torch`; UserError where it is not installed."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            'PyTorch is not installed, and its files cannot be read without: pip install "attn-cnn-jax[torch]"'
        ) from error
    return torch


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a file of the release; see `Checkpoint`.

    Raises:
      UserError: if PyTorch is not installed, or the file is not there, damaged, or holds something else.
    """
    torch = import_torch()
    content = load(torch, path)
    state = content.get("model_state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(array, torch.Tensor) for array in state.values()):
        found = listed(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise UserError(
            f"{path} is no checkpoint of the authors' release, whose keys are epoch, test_accuracy and "
            f"model_state_dict, arrays by name\nit holds {found}"
        )
    if unnamed := [name for name in state if not isinstance(name, str)]:
        raise UserError(f"{path} has arrays under {listed(map(repr, unnamed))}: allowed are names")
    if all(name.startswith("module.") for name in state):  # saved from within torch.nn.DataParallel
        state = {name.removeprefix("module."): array for name, array in state.items()}
    state = {name: array for name, array in state.items() if not name.endswith(BUFFERS)}
    check_kinds(torch, state)
    size, needed = path.stat().st_size, sum(4 * array.numel() for array in state.values())
    if needed > MOST_GROWTH * size:
        raise UserError(
            f"{path} has {size:,} bytes, its arrays would take {needed:,}: allowed is {MOST_GROWTH} times the file's "
            "size, as numbers that repeat are saved one by one"
        )
    arrays = {name: to_numpy(torch, array) for name, array in state.items()}
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise UserError(f"{path} holds numbers that are not finite, in {listed(broken)}: take an earlier checkpoint")
    epoch, accuracy, step = (as_number(content, key) for key in ("epoch", "test_accuracy", "step"))
    for name, value, most in (("epoch", epoch, MOST_STEPS), ("test_accuracy", accuracy, 1), ("step", step, MOST_STEPS)):
        if value is not None and not 0 <= value <= most:
            raise UserError(f"{path} has {name}={value:g}: allowed is 0 to {most:,}")
    return Checkpoint(arrays, None if epoch is None else int(epoch), accuracy, None if step is None else int(step))


def load(torch, path: Path) -> Any:
    """Returns what `torch.save` wrote, without running code from it; UserError for a file that is damaged or packed."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch.save packs nothing: a file that unpacks to more than its size is none of it.
                if (unpacked := sum(entry.file_size for entry in archive.infolist())) > path.stat().st_size:
                    raise ValueError(f"its parts would unpack to {unpacked:,} bytes")
                if part := archive.testzip():  # torch.load does not compare the checksums that its files have
                    raise ValueError(f"the checksum of {part} is not the one saved")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types, as files can be broken in many ways
        reason = shortened(error)
        if "weights_only" in reason:  # torch's advice there is to run what the file asks for
            reason = "it holds something else than arrays and numbers"
        raise UserError(f"{path} is damaged or no file of torch.save: {reason}") from None


def check_kinds(torch, state: dict[str, Any]) -> None:
    """Raises UserError, with the names, unless all are arrays that lie in memory number by number, of types allowed."""
    exact = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
    if wrong := [name for name, array in state.items() if array.dtype not in exact]:
        raise UserError(f"{listed(wrong)}: allowed are arrays of float32, or of a type that float32 holds exactly")
    dense = lambda array: array.layout == torch.strided and array.device.type == "cpu" and not array.is_nested  # noqa: E731
    if wrong := [name for name, array in state.items() if not dense(array)]:
        raise UserError(
            f"{listed(wrong)}: allowed are dense arrays, with their numbers (no sparse, nested or meta ones)"
        )


def to_numpy(torch, array: Any) -> np.ndarray:
    """Returns a tensor, or a parameter of a module, as a NumPy array: float32, integers as int64."""
    array = array.detach().resolve_neg()
    return (array if array.dtype == torch.int64 else array.float()).numpy()


def as_number(content: dict, key: str) -> float | None:
    """Returns a finite number, or the one in a tensor, of a checkpoint's key; None for anything else."""
    value: Any = content.get(key)
    try:
        number = float(value)
    except OverflowError:
        return math.inf  # an integer that no float holds
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None
