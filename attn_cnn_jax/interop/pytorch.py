"""Reads checkpoints of the authors' PyTorch release as runs, and writes runs as such checkpoints.

The architecture follows from names and shapes; how the network was trained is not in such a file, so that the
run's configuration has the paper's values there. The run is one to look at, and to start from with
--config.start.run=RUN. The release normalises CIFAR-100 by the statistics of CIFAR-10, this package by its own:
predictions of such a network differ a little. Needs PyTorch: pip install "attn-cnn-jax[torch]".
"""

import json
import math
import os
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.files import replacing, write_atomically
from attn_cnn_jax.interop.architecture import listed
from attn_cnn_jax.interop.convert import Checkpoint, check_release_has, state_dict, to_run
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics

# What the release keeps beside weights and follows from shapes.
BUFFERS = ("attention_mask", ".relative_indices", ".self.R")


def import_checkpoint(path: str | Path, out: str | Path) -> str:
    """Writes the run directory `out` with the network in a checkpoint of the release.

    Args:
      path: the file.
      out: a directory that does not exist yet; it appears whole or not at all.

    Returns:
      What the network is, in words.

    Raises:
      UserError: if PyTorch is not installed, `out` exists, or the file is damaged or holds another network.
    """
    out = Path(out)
    refuse_existing(out)
    checkpoint = read_checkpoint(Path(path))
    config, state = to_run(checkpoint)
    step = int(state.step)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            run = Path(folder) / "run"
            run.mkdir()
            directory.claim(run, config)
            if checkpoint.test_accuracy is not None and checkpoint.epoch is not None:
                record = {"step": step, "epoch": checkpoint.epoch + 1.0, "split": "test"}
                record["accuracy"] = checkpoint.test_accuracy
                write_atomically(run / "metrics.jsonl", json.dumps(record) + "\n")
            with checkpoints.open_checkpoints(run, config) as manager:
                checkpoints.save(manager, step, state, config, {"loss": [], "accuracy": []})
            os.rename(run, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out=RUN") from error
    return describe(config, step)


def export_run(workdir: str | Path, path: str | Path, step: int | str = "latest") -> None:
    """Writes a checkpoint of a run as a file that the release loads.

    Args:
      workdir: the run directory.
      path: a file that does not exist yet.
      step: which checkpoint, as in `load_run`.

    Raises:
      UserError: if PyTorch is not installed, `path` exists, or the release has no such network.
    """
    torch, path = import_torch(), Path(path)
    refuse_existing(path)
    run = load_run(workdir, step)
    check_release_has(run)
    arrays = state_dict(run)
    tests = (record for record in read_metrics(Path(workdir) / "metrics.jsonl") if record["split"] == "test")
    tested = next((record for record in tests if record["step"] == run.step), None)
    content = {
        "epoch": tested and round(tested["epoch"]) - 1,
        "test_accuracy": tested and tested["accuracy"],
        "model_state_dict": OrderedDict((name, torch.tensor(array)) for name, array in arrays.items()),
    }
    try:
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot write {path}: {error}; choose another --out=FILE") from error


def import_torch():
    """Returns the module `torch`; UserError where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            'PyTorch is not installed, and its files cannot be read without: pip install "attn-cnn-jax[torch]"'
        ) from error
    return torch


def refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise UserError(f"--out={path} exists already: choose another, or remove it")


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a file of the release without running code from it; see `Checkpoint`."""
    torch = import_torch()
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if zipfile.is_zipfile(path):  # torch.load does not compare the checksums that its files have
            with zipfile.ZipFile(path) as archive:
                if part := archive.testzip():
                    raise ValueError(f"the checksum of {part} is not the one saved")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types, as files can be broken in many ways
        reason = shortened(error)
        if "weights_only" in reason:  # torch's advice there is to run what the file asks for
            reason = "it holds something else than arrays and numbers"
        raise UserError(f"{path} is damaged or no file of torch.save: {reason}") from None
    state = content.get("model_state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(array, torch.Tensor) for array in state.values()):
        found = listed(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise UserError(
            f"{path} is no checkpoint of the authors' release, whose keys are epoch, test_accuracy and "
            f"model_state_dict, arrays by name\nit holds {found}"
        )
    if all(name.startswith("module.") for name in state):  # saved from within torch.nn.DataParallel
        state = {name.removeprefix("module."): array for name, array in state.items()}
    exact = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
    if wrong := [name for name, array in state.items() if array.dtype not in exact and not derived(name)]:
        raise UserError(f"{listed(wrong)}: allowed are arrays of float32, or of a type that float32 holds exactly")
    arrays = {
        name: (array if array.dtype == torch.int64 else array.float()).numpy()
        for name, array in state.items()
        if not derived(name)
    }
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise UserError(f"{path} holds numbers that are not finite, in {listed(broken)}: take an earlier checkpoint")
    epoch, accuracy = (as_number(content.get(key)) for key in ("epoch", "test_accuracy"))
    return Checkpoint(arrays, None if epoch is None else int(epoch), accuracy)


def derived(name: str) -> bool:
    return name.endswith(BUFFERS)


def as_number(value: Any) -> float | None:
    """Returns a finite number, or a tensor that holds one; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def describe(config: ConfigDict, step: int) -> str:
    """What was imported, for the person who typed the command."""
    model = config.model
    if model.name == "resnet":
        network = f"ResNet-{model.depth}"
    else:
        heads = ", ".join(map(str, dict.fromkeys(heads_by_layer(model))))
        content = " and content" if model.content else ""
        network = (
            f"{model.encoding}{content}, {model.num_layers} layers, {heads} heads, hidden size {model.hidden_size}"
        )
    return f"{network}, {model.num_classes} classes, pictures as in {config.dataset.name}, step {step}"
