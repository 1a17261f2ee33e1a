"""What is known of a run before it starts, from its programs as they are compiled for a target."""

from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.compilation.estimate import Estimate, estimate_program
from attn_cnn_jax.compilation.programs import Lengths, known_spec, lower
from attn_cnn_jax.compilation.targets import Target, mesh_of
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.training.limits import check_counts
from attn_cnn_jax.training.plan import implementations

LARGEST = 12  # operations that are listed
GIB = 2**30


def create(config: ConfigDict, target: Target) -> dict[str, Any]:
    """Returns the report as plain values, ready for JSON.

    Keys: `target`, `devices`, `device_kind`, `batch_size`, `dtype`; `attention`, the implementations in training and
    in evaluation, None without attention; `memory`, bytes per device in training by what they are for; `step` and
    `evaluation`, see `plain`; `steps`, `evaluations`, and `run_seconds` of all of them; `left_out`, values by key of
    the configuration that the programs do without.

    Args:
      config: complete.
      target: from `targets.parse`.

    Raises:
      UserError: if the compiler is missing, or the memory is too small for training or for evaluation.
    """
    mesh = mesh_of(target)
    check_counts(config, known_spec(config).train_examples)
    lowered = lower(config, mesh)
    training, memory = compiled(lowered.training, "a step", "batch_size", config, target)
    evaluation, _ = compiled(lowered.evaluation, "evaluation", "eval_batch_size", config, target)
    step = estimate_program(training, target.chip, mesh.size, one_step=True)
    whole = estimate_program(evaluation, target.chip, mesh.size)
    steps, evaluations = Lengths.of(config)
    return {
        "target": target.name,
        "devices": mesh.size,
        "device_kind": mesh.devices.flat[0].device_kind,
        "batch_size": config.train.batch_size,
        "dtype": config.model.dtype,
        "attention": attention(config, mesh, target),
        "memory": memory | {"available": target.chip.memory},
        "step": plain(step),
        "evaluation": plain(whole),
        "steps": steps,
        "evaluations": evaluations,
        "run_seconds": steps * step.total + evaluations * whole.total,
        "left_out": left_out(config),
    }


def left_out(config: ConfigDict) -> dict[str, Any]:
    """Values by key of a configuration that `programs.lower` leaves out."""
    found = {"start.run": config.start.run, "augment.half_size_until": config.augment.half_size_until}
    return {key: value for key, value in found.items() if value}


def memory_of(program: jax.stages.Compiled) -> dict[str, int]:
    """Bytes per device that a compiled program needs: its arguments, temporaries, and all together."""
    sizes: Any = program.memory_analysis()
    outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes  # the state is updated in place
    arguments, temporaries = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    return {"arguments": arguments, "temporaries": temporaries, "needed": arguments + temporaries + outputs}


def compiled(
    lowered: jax.stages.Lowered, what: str, key: str, config: ConfigDict, target: Target
) -> tuple[jax.stages.Compiled, dict[str, int]]:
    """Compiles a program; returns it, and the bytes that it needs.

    Args:
      lowered: the program.
      what: it is, in words.
      key: of `config.train`, the size of its batches.
      config: of the run.
      target: what it is compiled for.

    Raises:
      UserError: if the memory of a device is too small.
    """
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):  # compilers for TPUs refuse, those for GPUs do not
            raise too_large(what, key, config, target) from error
        raise
    memory = memory_of(program)
    if memory["needed"] > target.chip.memory:
        raise too_large(what, key, config, target, memory["needed"])
    return program, memory


def too_large(what: str, key: str, config: ConfigDict, target: Target, needed: int | None = None) -> UserError:
    """The error that says that a program does not fit."""
    size = f"needs {needed / GIB:,.1f} GiB per device" if needed else "needs more memory"
    return UserError(
        f"{what} of config.train.{key}={config.train[key]} {size}: {target.name} has "
        f"{target.chip.memory / GIB:,.1f} GiB\n"
        f"lower config.train.{key}, take more devices, or config.model.dtype=bfloat16"
    )


def attention(config: ConfigDict, mesh: Mesh, target: Target) -> list[str] | None:
    """Names of the attention implementations that run in training and in evaluation; None where there is no choice."""
    network = abstract_model(config.model)
    if not isinstance(network, AttentionClassifier):
        return None
    return implementations(config, mesh, for_platform(network, target.platform))


def plain(result: Estimate) -> dict[str, Any]:
    """An estimate as plain values.

    Keys: `seconds`; `by_kind`, seconds and number of operations by kind; `bytes`, `flops`; `collectives`, bytes by
    kind; `largest`, the longest operations, alike ones together.
    """
    return {
        "seconds": result.total,
        "by_kind": {name: {"seconds": result.seconds[name], "count": result.counts[name]} for name in result.seconds},
        "bytes": result.bytes,
        "flops": result.flops,
        "collectives": result.collectives,
        "largest": [{"operation": o, "count": n, "seconds": s} for o, n, s in result.largest[:LARGEST]],
    }
