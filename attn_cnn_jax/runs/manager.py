"""Opens the checkpoints of a run directory: where they lie, which stay, and how good each is on the validation split.

That is the part `metrics` of a checkpoint, which Orbax itself writes, and reads of all checkpoints at once.
"""

import json
import logging
import os
import zlib
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import is_folder

log = logging.getLogger(__name__)


def open_checkpoints(workdir: Path, config: ConfigDict | None = None, *, read_only: bool = False) -> "Manager":
    """Opens the checkpoints of a run directory.

    Keeps the last `config.checkpoint.keep_last`, that of step 0 of a run that
    started from another, and, where there is a validation split, the one with the best validation accuracy; never
    chooses on test data.

    In a run of several processes all of them open to write; `read_only`, each reads for itself.
    """
    policies: list[preservation_policy.PreservationPolicy] = []
    if config is not None:
        policies = [preservation_policy.LatestN(config.checkpoint.keep_last)]
        if config.get("start", {}).get("run"):
            policies.append(preservation_policy.CustomSteps([0]))
        if validates(config):
            best = preservation_policy.BestN(
                get_metric_fn=validation_accuracy, n=1, keep_checkpoints_without_metrics=False
            )
            policies.append(best)
    here = jax.process_index()
    # Otherwise Orbax waits for all other processes, which may be at something else.
    alone = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    options = ocp.CheckpointManagerOptions(
        multiprocessing_options=alone if read_only else ocp.options.MultiprocessingOptions(),
        preservation_policy=preservation_policy.AnyPreservationPolicy(policies) if policies else None,
        best_fn=validation_accuracy if config is not None and validates(config) else None,
        read_only=read_only,
        create=not read_only,
        save_interval_steps=0 if read_only else 1,
        cleanup_tmp_directories=not read_only,
    )
    folder = folder_of(workdir, read_only=read_only)
    is_folder(folder)  # Orbax would take what the system fails to show for missing, and not say why
    return Manager(folder, options=options)


def validates(config: ConfigDict) -> bool:
    """Returns whether a run has a validation split, held out of the training set or of the data set's own."""
    return config.dataset.num_validation > 0 or config.dataset.has_validation


def folder_of(workdir: Path, *, read_only: bool = False) -> Path:
    """Returns the folder of the checkpoints without links and `..`; UserError if arrays cannot be saved there.

    TensorStore would resolve `link/..` by its letters, take a backslash for a slash, and read names as UTF-8; Orbax
    looks for the files that it has to join by a pattern, and takes `gs:` for a place in the network. A run that was
    moved below a pattern can be read there.
    """
    folder = Path(os.path.realpath(workdir / "checkpoints"))
    refused = ["\\", "gs:/"] if read_only else ["\\", "gs:/", "*", "?", "["]
    found = next((text for text in refused if text in str(folder)), "")
    if not found and not is_utf8(str(folder)):
        found = "a name that is not UTF-8"
    if found:
        found = "a backslash" if found == "\\" else found
        raise UserError(f"{folder.parent}: checkpoints cannot be saved below {found}; choose another --workdir=DIR")
    return folder


def is_utf8(path: str) -> bool:
    """Returns whether the bytes of a path on the disk are its text in UTF-8."""
    try:
        return os.fsencode(path) == path.encode()
    except UnicodeEncodeError:  # bytes that are no text
        return False


class Manager(ocp.CheckpointManager):
    """Orbax's manager; a checkpoint whose metrics are damaged counts as one without, which cannot be the best."""

    def metrics(self, step: int) -> dict | None:
        """Returns the metrics of a checkpoint, None where it has none, or not those that were saved."""
        try:
            found = super().metrics(step)
            if found is None:
                return None
            if validation_accuracy(found) >= 0 and self._checksum(step) in (None, checksum_of_text(found)):
                return found
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass
        log.warning("the validation accuracy of the checkpoint of step %s in %s is damaged", step, self.directory)
        return None

    def _checksum(self, step: int) -> int | None:
        """Returns the checksum of the metrics of a checkpoint, None where it has none, as those of version 0.1.0."""
        path = Path(self.directory, str(step), "checksums", "metadata")
        return json.loads(path.read_bytes()).get("metrics") if path.exists() else None


def validation_accuracy(metrics: dict, number: int = 0) -> float:
    """Returns the validation accuracy of a checkpoint; of a run of several seeds (seeds.py), that of seed `number`."""
    accuracy = metrics["validation_accuracy"]
    return accuracy[number] if isinstance(accuracy, list) else accuracy


def checksum_of_text(value: dict | None) -> int:
    """Returns the CRC-32 of plain values, by what they look like in JSON."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())
