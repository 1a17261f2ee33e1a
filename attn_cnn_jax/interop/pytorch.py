"""Reads checkpoints of the authors' PyTorch release as runs, and writes runs as such checkpoints.

The architecture follows from names and shapes; how the network was trained is not in such a file, so that the
run's configuration has the paper's values there. The run is one to look at, and to start from with
--config.start.run=RUN. The release normalises CIFAR-100 by the statistics of CIFAR-10, this package by its own:
predictions of such a network differ a little. Needs PyTorch: pip install "attn-cnn-jax[torch]".
"""

from collections import OrderedDict
from pathlib import Path

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import replacing
from attn_cnn_jax.interop.convert import check_release_has, state_dict, to_run
from attn_cnn_jax.interop.imported import describe, refuse_existing, write_run
from attn_cnn_jax.interop.release_file import import_torch, read_checkpoint
from attn_cnn_jax.runs.run import Run


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
    record = None
    if checkpoint.test_accuracy is not None and checkpoint.epoch is not None:
        record = {"step": step, "epoch": checkpoint.epoch + 1.0, "split": "test"}
        record["accuracy"] = checkpoint.test_accuracy
    write_run(out, config, state, record)
    return describe(config, step)


def write_release(run: Run, path: Path) -> None:
    """Writes the network of a run as a file that the release loads.

    Raises:
      UserError: if PyTorch is not installed, `path` cannot be written, or the release has no such network.
    """
    torch = import_torch()
    check_release_has(run)
    epoch = round(run.test["epoch"]) - 1 if run.test else -1  # the release counts from 0
    content = {
        "step": run.step,  # what the release's epochs are depends on its batch size; it ignores this
        "epoch": epoch if epoch >= 0 else None,
        "test_accuracy": run.test and run.test["accuracy"],
        "model_state_dict": OrderedDict((name, torch.tensor(array)) for name, array in state_dict(run).items()),
    }
    try:
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot write {path}: {error}; choose another --out=FILE") from error
