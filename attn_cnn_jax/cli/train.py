"""What stands behind train.py: flags in, exit status out."""

import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from attn_cnn_jax.config.checks import allowed_values
from attn_cnn_jax.config.fields import unknown_key
from attn_cnn_jax.errors import UserError, says_errors, shortened
from attn_cnn_jax.training.distributed.agreement import Interrupted, say
from attn_cnn_jax.training.distributed.lost_peer import HEARTBEAT_TIMEOUT, LEAVE_TIMEOUT, fails_with_the_others
from attn_cnn_jax.training.loop import run

USAGE = "usage: python train.py --config=configs/NAME.py [--workdir=DIR] [--config.key=value ...]"
OVERRIDE = re.compile(r"--?(config\.[^=]+)(?:=(.*))?", re.DOTALL)


class Override(NamedTuple):
    """One `--config.key=value` of the command line."""

    key: str
    value: str | None  # None: the line has no value


@says_errors
def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns its exit status.

    0 trained; 1 something to put right, in a line or two on standard error; 2 bad flags; 128 + signal
    where a signal stopped the run after its state was saved.
    """
    try:
        values = parse(argv)
    except flags.Error as error:
        print(error, USAGE, sep="\n", file=sys.stderr)
        return 2
    if values.help:
        print(USAGE, values.get_help(), sep="\n")
        return 0
    workdir = Path(values.workdir or Path("runs") / config_name(values["config"].config_filename))
    use_compilation_cache()
    try:
        with fails_with_the_others() if values.multihost else nullcontext():
            if values.multihost:
                connect(values)
            records = run(values.config, workdir, draw_figures)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal
    if "test" in records:  # else a finished run has lost its metrics.jsonl
        say(f"final test accuracy {records['test']['accuracy']:.2%} after step {records['test']['step']}")
    say(f"metrics, checkpoints and TensorBoard events: {workdir}")
    say(f"in Python: attn_cnn_jax.load_run({str(workdir)!r})")
    return 0


def draw_figures(*arguments):
    """Figures for TensorBoard; matplotlib is loaded only if a configuration asks for them."""
    from attn_cnn_jax.analysis.figures import board

    return board.draw(*arguments)


def parse(argv: list[str]) -> flags.FlagValues:
    """Flags and configuration of a command line.

    Raises:
      flags.Error: for flags that don't exist, and arguments that are no flags.
      UserError: for a configuration that can't be loaded, an unknown key, or a value of the wrong type.
    """
    plain, overrides = separate(argv)
    values = define_flags(plain)
    try:
        _, *unexpected = values(plain)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a person's own config file raises
        # What looks like a bad flag, with a traceback for its message, may be a ValueError or TypeError from there.
        if isinstance(error, flags.Error) and not str(error).startswith("flag --config="):
            raise
        cause = error
        while cause.__context__ and "Error whilst parsing config file" in str(cause):
            cause = cause.__context__
        name = next((a.partition("=")[2] for a in plain if a.lstrip("-").startswith("config=")), "the config file")
        raise UserError(f"{name} cannot be loaded: {type(cause).__name__}: {shortened(cause)}") from error
    if values.help:
        return values
    if not values["config"].present:
        raise flags.Error("--config is missing")
    config = load(values)
    for override in overrides:
        check_key(config, override)
    if unexpected:
        raise flags.Error(f"{unexpected[0]!r} is no flag: write --flag=VALUE")
    values = define_flags(argv)
    try:
        values(argv)
    except flags.Error as error:
        for override in overrides:
            if f"--{override.key}={override.value}" in str(error):
                allowed = allowed_values(config, override.key)
                raise UserError(f"{override.key}={shortened(override.value)!r}: allowed is {allowed}") from error
        raise
    return values


def define_flags(argv: list[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    common = {"flag_values": values}
    # sys_argv: where to look for overrides; without it in sys.argv, which need not be the line parsed here.
    config_flags.DEFINE_config_file("config", None, "File that describes the run.", sys_argv=argv, **common)
    flags.DEFINE_string("workdir", None, "Run directory; runs/NAME of the config file by default.", **common)
    limit = HEARTBEAT_TIMEOUT + LEAVE_TIMEOUT
    multihost = f"One of several processes of a run; if one is lost, the others end within {limit} seconds."
    flags.DEFINE_boolean("multihost", False, multihost, **common)
    flags.DEFINE_string("coordinator_address", None, "host:port of process 0, if not detected.", **common)
    flags.DEFINE_integer("num_processes", None, "Number of processes, if not detected.", **common)
    flags.DEFINE_integer("process_id", None, "Number of this process, if not detected.", **common)
    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", **common)
    return values


def separate(argv: list[str]) -> tuple[list[str], list[Override]]:
    """Splits a command line into what is no configuration override, and the overrides."""
    matches = [(argument, OVERRIDE.fullmatch(argument)) for argument in argv]
    overrides = [Override(*match.groups()) for _, match in matches if match]
    return [argument for argument, match in matches if not match], overrides


def load(values: flags.FlagValues) -> ConfigDict:
    try:
        config = values.config
        getattr(config, "lock", None)  # where the file could not be read, any attribute raises, and only now
    except OSError as error:
        name = values["config"].config_filename
        if not Path(name).is_file():
            known = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
            raise UserError(
                f"there is no config file {name or repr(name)}; {'there are ' + known if known else 'give its path'}"
            ) from error
        raise UserError(f"{name} cannot be loaded: {error.__cause__ or error}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{values['config'].config_filename}: get_config() must return an ml_collections.ConfigDict")
    return config


def check_key(config: ConfigDict, override: Override) -> None:
    """UserError unless an override names a key of the configuration."""
    node, path = config, "config"
    for part in override.key.split(".")[1:]:
        if not isinstance(node, ConfigDict) or part not in node:
            known = node.keys() if isinstance(node, ConfigDict) else ()
            raise UserError(unknown_key(f"{path}.{part}", known))
        node, path = node[part], f"{path}.{part}"
    if isinstance(node, ConfigDict):
        shown = path if override.value is None else f"{path}={shortened(override.value)!r}"
        raise UserError(f"{shown}: set one of its keys, {', '.join(f'{path}.{key}' for key in node)}")
    if override.value is None:
        raise UserError(f"{path} has no value: write --{path}=VALUE, where allowed is {allowed_values(config, path)}")


def config_name(filename: str) -> str:
    """`configs/digits.py -> digits`, the run directory's default name."""
    return Path(filename.split(":")[0]).stem


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, unless JAX_COMPILATION_CACHE_DIR names another."""
    if jax.config.jax_compilation_cache_dir is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(cache / "attn_cnn_jax"))


def connect(values: flags.FlagValues) -> None:
    """Joins the other processes of the run (JAX's distributed runtime)."""
    try:
        jax.distributed.initialize(
            values.coordinator_address,
            values.num_processes,
            values.process_id,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"--multihost: {error}\ngive --coordinator_address=HOST:PORT --num_processes=N --process_id=I"
        ) from error
