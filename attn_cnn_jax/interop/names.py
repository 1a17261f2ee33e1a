"""Which array of a network here is which array of a PyTorch network of the authors' release.

PyTorch keeps a linear map as `(out, in)` and a convolution as `(out, in, row, column)`; here they are
`(in, out)` and `(row, column, in, out)`.
"""

import re
from collections.abc import Mapping

import numpy as np

from attn_cnn_jax.arrays import AnyArray

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
    **{
        f"attention.position.{ours}": f"attention.self.{name}"
        for encoding in ENCODINGS.values()
        for ours, name in encoding.items()
    },
}

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
    """Renames and transposes arrays (parameters, statistics or gradients) as the release has them, in NumPy.

    Args:
      arrays: by our names, such as `blocks.0.dense.kernel`.
      blocks_a_stage: of a ResNet, e.g. `(2, 2, 2, 2)`; None for an attention network.
    """
    return {pytorch_name(name, blocks_a_stage): transposed(name, np.asarray(x)) for name, x in arrays.items()}


def pytorch_name(name: str, blocks_a_stage: tuple[int, ...] | None) -> str:
    """Returns the release's name: `blocks.0.dense.kernel -> encoder.layer.0.attention.output.dense.weight`."""
    table, prefix, rest = ATTENTION if blocks_a_stage is None else RESNET, "", name
    if match := re.match(r"blocks\.(\d+)\.(.*)", name):
        block, rest = int(match[1]), match[2]
        if blocks_a_stage is None:
            prefix = f"encoder.layer.{block}."
        else:  # of stages of two, block 3 is in stage 2 number 1
            places = [(stage, n) for stage, count in enumerate(blocks_a_stage, start=1) for n in range(count)]
            prefix = "layer{}.{}.".format(*places[block])
    if rest in table:
        return prefix + table[rest]
    module, _, leaf = rest.rpartition(".")
    return f"{prefix}{table[module]}.{LEAVES[leaf]}"


def transposed(name: str, x: np.ndarray, *, back: bool = False) -> np.ndarray:
    """Returns one of our arrays in PyTorch's order of axes, or with `back` the other way; `name` is ours."""
    if not name.endswith(".kernel"):
        return x
    return x.T if x.ndim == 2 else x.transpose((2, 3, 1, 0) if back else (3, 2, 0, 1))
