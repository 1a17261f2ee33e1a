"""Services that metrics go to beside metrics.jsonl and TensorBoard: Weights & Biases, Trackio.

Each is an extra of its own and is configured as it documents: `WANDB_MODE=offline` keeps W&B's records on this machine,
where Trackio's are in any case (`TRACKIO_DIR`). A resumed run goes on in the same record there, whose id is a file of
the run directory.
"""

import hashlib
import importlib
import secrets
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.checkpoints import steps_in

PROJECT = "attn-cnn-jax"
FILE = "logger_id"  # in the run directory


class Logger:
    """Sends nothing; the others send records of metrics, as metrics.jsonl has them."""

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Sends the numbers of a step, by names such as `test/accuracy`."""

    def close(self) -> None:
        """Ends the record; what was sent before is kept."""


class Service(Logger):
    """Sends to a module with `init`, `log` and `finish`, as W&B has them and Trackio too."""

    def __init__(self, module: Any, **options: Any):
        """Opens the record.

        Args:
          module: `wandb` or `trackio`.
          **options: of its `init`.
        """
        self._module = module
        self._module.init(project=PROJECT, **options)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._module.log(numbers, step=step)

    def close(self) -> None:
        self._module.finish()


def module_of(name: str) -> Any:
    """Returns the module of a service, None for what needs none; UserError where its package is not installed."""
    if name in ("none", "tensorboard"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"config.train.logger={name!r} needs a package that is not installed ({error.name}): "
            f'pip install -e ".[{name}]"'
        ) from error


def create_logger(name: str, config: ConfigDict, workdir: Path) -> Logger:
    """Returns the logger that `config.train.logger` names.

    Args:
      name: "tensorboard", "none", "wandb" or "trackio".
      config: of the run, which is sent along.
      workdir: the run directory, which exists; its name is that of the record.

    Raises:
      UserError: if the service's package is not installed, or it cannot begin.
    """
    module = module_of(name)
    if module is None:
        return Logger()
    workdir = workdir.absolute()
    identity = identity_of(workdir)
    options: dict[str, Any] = {"config": config.to_dict(), "resume": "allow"}
    if name == "wandb":
        settings = module.Settings(silent=True)
        options |= {"name": workdir.name, "id": identity, "dir": str(workdir), "settings": settings}
    else:  # Trackio goes on by name
        options |= {"name": f"{workdir.name}-{identity[:6]}", "embed": False}
    try:
        return Service(module, **options)
    except Exception as error:  # each has its own, for no key, no network, no room
        raise UserError(
            f"config.train.logger={name!r} cannot begin: {shortened(error)}\n"
            "see that package's documentation, or set config.train.logger=none"
        ) from error


def identity_of(workdir: Path) -> str:
    """Returns the id of a run's record, which is drawn as the run begins and kept in its directory.

    Not the path alone: another run may lie there, in another container or after this one was removed.
    """
    try:
        return (workdir / FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        pass
    if steps_in(workdir):  # begun by an earlier version
        return hashlib.blake2b(str(workdir).encode(), digest_size=8).hexdigest()
    identity = secrets.token_hex(8)
    write_atomically(workdir / FILE, identity + "\n")
    return identity
