"""Files of the authors' PyTorch release: read as a run of a given configuration, and written from a run.

PyTorch keeps a linear map as `(out, in)` and a convolution as `(out, in, row, column)`; here they are `(in, out)` and
`(row, column, in, out)`. The release normalises CIFAR-100 by the statistics of CIFAR-10, this package by its own:
predictions of such a network differ a little. Needs PyTorch: pip install -e ".[torch]".
"""

import io
import json
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.config.network import abstract_model, head_size
from attn_cnn_jax.data.sets import SPECS
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.files import new_folder, write_atomically
from attn_cnn_jax.models.resnet import BLOCKS
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.training.optimizer import create_optimizer, matrices

BATCHES = "num_batches_tracked"  # steps, as PyTorch's batch norm counts them
# What the release keeps beside weights and follows from shapes.
BUFFERS = ("attention_mask", ".relative_indices", ".self.R", BATCHES)
PREFIXES = ("module.", "_orig_mod.")  # of networks within torch.nn.DataParallel or torch.compile

CENTRED = {"centre": "attention_centers", "spread": "attention_spreads"}
# The encodings that the release has, by their names in `config.model.encoding`.
ENCODINGS = {
    "quadratic": CENTRED,
    "quadratic_generalized": CENTRED,
    # The release counts positions along a row where it says `row`: its row tables score shifts between columns.
    "learned": {
        "tables.row": "col_embeddings.weight",
        "tables.column": "row_embeddings.weight",
        "row_weight": "head_keys_col.weight",
        "column_weight": "head_keys_row.weight",
    },
}
ATTENTION = {
    "embedding": "features_upscale",
    "attention.output": "attention.self.value",
    "dense": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
    "classifier": "classifier",
    "attention.content.query": "attention.self.query",
    "attention.content.key": "attention.self.key",
}
for encoding in ENCODINGS.values():
    ATTENTION |= {f"attention.position.{ours}": f"attention.self.{name}" for ours, name in encoding.items()}
RESNET = {
    "stem": "conv1",
    "stem_norm": "bn1",
    **{f"conv{n}": f"conv{n}" for n in (1, 2, 3)},
    **{f"norm{n}": f"bn{n}" for n in (1, 2, 3)},
    "shortcut": "shortcut.0",
    "shortcut_norm": "shortcut.1",
    "classifier": "linear",
}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def to_pytorch(arrays: Mapping[str, AnyArray], *, blocks_a_stage: tuple[int, ...] | None = None) -> dict:
    """Renames and transposes arrays by our names (parameters, statistics or gradients) as the release has them.

    `blocks_a_stage` is that of a ResNet, such as `(2, 2, 2, 2)`; None for an attention network.
    """
    return {pytorch_name(name, blocks_a_stage): transposed(name, np.asarray(x)) for name, x in arrays.items()}


def pytorch_name(name: str, blocks_a_stage: tuple[int, ...] | None) -> str:
    """Returns the release's name: `blocks.0.dense.kernel -> encoder.layer.0.attention.output.dense.weight`."""
    prefix, rest = "", name
    if match := re.match(r"blocks\.(\d+)\.(.*)", name):
        block, rest = int(match[1]), match[2]
        prefix = f"encoder.layer.{block}."
        if blocks_a_stage is not None:  # of stages of two, block 3 is in stage 2 number 1
            places = [(stage, n) for stage, count in enumerate(blocks_a_stage, start=1) for n in range(count)]
            prefix = "layer{}.{}.".format(*places[block])
    if rest in ATTENTION:
        return prefix + ATTENTION[rest]
    module, _, leaf = rest.rpartition(".")
    return f"{prefix}{(ATTENTION if blocks_a_stage is None else RESNET)[module]}.{LEAVES[leaf]}"


def transposed(name: str, x: np.ndarray, *, back: bool = False) -> np.ndarray:
    """Returns one of our arrays in PyTorch's order of axes, or with `back` the other way; `name` is ours."""
    if not name.endswith(".kernel"):
        return x
    return x.T if x.ndim == 2 else x.transpose((2, 3, 1, 0) if back else (3, 2, 0, 1))


def stages(model: ConfigDict) -> tuple[int, ...] | None:
    """Returns the number of blocks in each stage of a ResNet; None for an attention network."""
    return BLOCKS[model.depth] if model.name == "resnet" else None


def import_release(path: Path, config: ConfigDict, out: Path) -> int:
    """Writes the run directory `out`, whole or not at all, with the network in a file of the release; returns its step.

    The file is of `torch.save`: the release's checkpoint, or a bare dictionary of its arrays. The configuration is
    complete and describes the network: UserError where the file is damaged or holds another one.
    """
    content = read(path)
    network = abstract_model(config.model)
    parameters, statistics = from_release(path, arrays_of(path, content), split(network)[1:], stages(config.model))
    step, epoch, accuracy = (as_number(content.get(key)) for key in ("step", "epoch", "test_accuracy"))
    spec = SPECS.get(config.dataset.name)
    if step is None and epoch is not None and spec is not None:  # the release does not count steps
        step = (epoch + 1) * (spec.train_examples // config.train.batch_size)
    step = int(step) if step is not None and 0 <= step < 2**31 else 0
    optimizer = create_optimizer(config.optimizer, lambda step: 0.0, shaped=matrices(network)).init(parameters)
    state = checkpoints.TrainState(jnp.int32(step), parameters, statistics, optimizer)
    with new_folder(out) as folder:
        directory.claim(folder, config)
        if accuracy is not None and epoch is not None:
            record = {"step": step, "epoch": epoch + 1.0, "split": "test", "accuracy": accuracy}
            write_atomically(folder / "metrics.jsonl", json.dumps(record) + "\n")
        with checkpoints.saving(folder, config) as manager:
            checkpoints.save(manager, step, state, config, {"loss": [], "accuracy": []})
    return step


def read(path: Path) -> dict:
    """Returns what `torch.save` wrote, without running code from it; UserError for a damaged file or something else."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        message = 'PyTorch is not installed, and its files cannot be read without: pip install -e ".[torch]"'
        raise UserError(message) from error
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if part := archive.testzip():  # torch.load does not compare the checksums that its files have
                    raise ValueError(f"the checksum of {part} is not the one saved")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types, as files can be broken in many ways
        reason = shortened(error)
        if "weights_only" in reason:  # torch's advice there is to run what the file asks for
            reason = "it holds something else than arrays and numbers"
        raise UserError(f"{path} is damaged or no file of torch.save: {reason}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}: allowed are arrays by name")
    return content


def arrays_of(path: Path, content: dict) -> dict[str, Any]:
    """Returns PyTorch's arrays by the release's names, without prefixes and buffers; UserError if there are none."""
    state = content.get("model_state_dict", content)
    if not isinstance(state, dict) or not all(
        hasattr(x, "resolve_neg") and isinstance(n, str) for n, x in state.items()
    ):
        raise UserError(
            f"{path} holds {listed([shortened(name) for name in content])}: allowed are arrays by name, or a "
            "checkpoint of the authors' release with epoch, test_accuracy and model_state_dict"
        )
    for prefix in PREFIXES * 2:  # one within the other, in any order
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): array for name, array in state.items()}
    return {name: array for name, array in state.items() if not name.endswith(BUFFERS)}


def from_release(
    path: Path, tensors: dict[str, Any], groups: Sequence[dict[str, Any]], blocks_a_stage: tuple[int, ...] | None
) -> list[dict[str, Any]]:
    """Returns groups of arrays by our names, in the types of `groups`, such as float32 for float16 and float64.

    UserError, with the names, for arrays that are missing, unknown, of another shape, not dense, or not finite.
    """
    expected = {ours: array for group in groups for ours, array in group.items()}
    names = {ours: pytorch_name(ours, blocks_a_stage) for ours in expected}
    shapes = {name: transposed(ours, np.empty(expected[ours].shape, np.bool_)).shape for ours, name in names.items()}
    problems = {
        "missing": [name for name in shapes if name not in tensors],
        "of another shape": [
            f"{name} {tuple(tensors[name].shape)} in place of {shape}"
            for name, shape in shapes.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ],
        "unknown": sorted(tensors.keys() - shapes.keys()),
    }
    if any(problems.values()):
        text = "; ".join(f"{what}: {listed(list(map(shortened, of)))}" for what, of in problems.items() if of)
        raise UserError(f"{path} is not the network of --config; change --config or --config.model.KEY=VALUE\n{text}")
    arrays = {}
    for ours, name in names.items():
        try:
            array = tensors[name].detach().resolve_neg().double().numpy()
        except (RuntimeError, TypeError, NotImplementedError) as error:  # sparse, quantised, meta
            raise UserError(f"{path}: {name} is no dense array of numbers: {shortened(error)}") from error
        if not np.isfinite(array).all():
            raise UserError(f"{path}: {name} has numbers that are not finite: take an earlier checkpoint")
        arrays[ours] = jnp.asarray(transposed(ours, array, back=True), expected[ours].dtype)
    return [{ours: arrays[ours] for ours in group} for group in groups]


def as_number(value: Any) -> float | None:
    """Returns a finite number, or the one in a tensor; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def check_release_has(model: ConfigDict) -> None:
    """Raises UserError unless the release can load the network that `config.model` describes."""
    lacking = {"layers": model.name == "resnet" and model.layers != "convolution"}
    if model.name != "resnet":
        size, learned = head_size(model), model.encoding == "learned"
        lacking = {
            "encoding": model.encoding not in ENCODINGS,
            "gate": model.gate,
            "window": model.window not in (0, model.downsample),
            "block": model.block != "post_norm",
            "content": model.content and not learned,
            "head_size": size < model.hidden_size or (model.content and size != model.hidden_size),
            "image_shape": learned and model.image_shape[0] != model.image_shape[1],  # its tables have one size
        }
    if which := next((key for key, lacks in lacking.items() if lacks), None):
        raise UserError(
            f"config.model.{which}={model[which]!r}: the authors' release has no such network; it has quadratic "
            "encodings, learned relative ones of square images, heads of the hidden size, "
            "squares of pixels that do not overlap, post-norm blocks, and ResNets"
        )


def write_release(run: Run, path: Path) -> None:
    """Writes the network of a run as a file that the release loads; UserError if it has no such network."""
    import torch  # pyright: ignore[reportMissingImports]

    check_release_has(run.config.model)
    parameters, statistics = split(run.model)[1:]
    arrays = to_pytorch(parameters | statistics, blocks_a_stage=stages(run.config.model))
    for name in [name for name in arrays if name.endswith("running_mean")]:
        arrays[name.replace("running_mean", BATCHES)] = np.int64(run.step)
    epoch = round(run.test_record["epoch"]) - 1 if run.test_record else -1  # the release counts from 0
    content = {
        "step": run.step,  # what the release's epochs are depends on its batch size; it ignores this
        "epoch": epoch if epoch >= 0 else None,
        "test_accuracy": run.test_record and run.test_record["accuracy"],
        "model_state_dict": OrderedDict((name, torch.tensor(array)) for name, array in arrays.items()),
    }
    file = io.BytesIO()
    torch.save(content, file)
    write_atomically(path, file.getvalue())
