"""The least time of a run: the FLOPs of its matrix products over the peak of the devices. Arithmetic alone."""

from typing import NamedTuple

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.config import complete
from attn_cnn_jax.config.network import factorises
from attn_cnn_jax.data.sets import SPECS, Spec
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.step import crop_size

GIB = 2**30


class Chip(NamedTuple):
    """One device."""

    memory: int  # bytes
    # FLOPs per second of matrix products, of bfloat16, of float32 as JAX multiplies by default (TF32 on GPUs, one pass
    # of bfloat16 on TPUs), and of float32 at the highest precision.
    peak: dict[str, float]


# Peaks by the makers' data sheets, of dense products; float32 at the highest precision is six passes on a TPU.
CHIPS = {
    "h100": Chip(84_978_434_048, {"bfloat16": 989.4e12, "float32": 494.7e12, "highest": 66.9e12}),
    "v5e": Chip(16 * GIB, {"bfloat16": 197e12, "float32": 197e12, "highest": 197e12 / 6}),
    "v6e": Chip(32 * GIB, {"bfloat16": 918e12, "float32": 918e12, "highest": 918e12 / 6}),
}


def known_spec(config: ConfigDict) -> Spec:
    """Returns what is known of the data set of a configuration without the data; UserError where it is not."""
    if config.dataset.name not in SPECS:
        allowed = f"one of {', '.join(SPECS)}, whose number and size of images are known without the data"
        raise UserError(f"config.dataset.name={config.dataset.name!r}: to compile, allowed is {allowed}")
    return SPECS[config.dataset.name]


class Bound(NamedTuple):
    """The least that a run takes, in seconds: the matrix products of its steps at the peak of all devices."""

    step: float  # of a training step
    run: float  # of all steps; evaluations, which come on top, are left out
    steps: int  # how many a run has, by the official sizes of its data set
    flops: int  # of a training step, all devices together


def bound(config: ConfigDict, chip: str, devices: int = 1) -> Bound:
    """Returns the lower bound of the time of a run on `devices` chips, a key of CHIPS, that share each batch.

    A backward pass multiplies twice as much as a forward pass. Averages are left out where attention can be computed
    from a row and a column softmax: no probability is dropped, and it factorises. Maps to queries and keys count as
    GPUs and TPUs are given them, merged (`Flops.merged`), and crops as in the first epoch.
    UserError for a chip or a data set that is not known, or a configuration that is not allowed.
    """
    spec = known_spec(config)
    config = complete(config)
    if chip not in CHIPS:
        raise UserError(f"chip={chip!r}: allowed are {', '.join(CHIPS)}")
    highest = config.model.dtype == "float32" and config.train.matmul_precision == "highest"
    rate = devices * CHIPS[chip].peak["highest" if highest else config.model.dtype]
    model = config.model
    drops = model.name == "attention" and model.attention_dropout > 0 and model.attention_dropout_on == "probabilities"
    by_axis = model.name == "attention" and factorises(model)
    cropped = ConfigDict(model.to_dict() | {"image_shape": (*crop_size(config, 0), model.image_shape[2])})
    flops = count_flops(cropped)
    steps = config.train.num_epochs * ((spec.train_examples - config.dataset.num_validation) // config.train.batch_size)
    of_step = 3 * config.train.batch_size * (flops.linear if by_axis and not drops else flops.merged)
    return Bound(of_step / rate, steps * of_step / rate, steps, of_step)
