"""Train a network as a configuration describes it.

The run directory then holds checkpoints, metrics.jsonl and TensorBoard events. The same command on the same run
directory continues where it stopped. --config takes a file, or the name of one of the files in configs/.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from textwrap import fill

from ml_collections import ConfigDict

from attn_cnn_jax.cli.arguments import Parser, as_path, integers, matching
from attn_cnn_jax.cli.configs import add_config, load_config, run_name
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.config.base import RESNET, flatten, schema_of
from attn_cnn_jax.errors import command_line
from attn_cnn_jax.output import table, with_deviation
from attn_cnn_jax.runs.metrics import accuracy_in_words
from attn_cnn_jax.training import HEARTBEAT_TIMEOUT

EXAMPLE = "--config=digits --workdir=runs/short --config.train.num_epochs=2"


def _address(text: str) -> str:
    if not 0 < int(text.rpartition(":")[2]) < 2**16:
        raise ValueError
    return text


address = matching(r".+:\d+", _address, "HOST:PORT, such as 10.0.0.1:1234")


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `train`; the help ends with the configuration keys."""
    add_config(parser)
    parser.add_argument("--workdir", type=as_path, metavar="DIR", help="run directory; runs/NAME by default")
    which = "train one run per seed in turn, in DIR/seed_0, DIR/seed_1 and so on"
    parser.add_argument("--seeds", type=integers, metavar="0-4", help=which)
    several = parser.add_argument_group("several processes").add_argument
    which = f"one of several processes; if one is lost, the others end within {HEARTBEAT_TIMEOUT} s"
    several("--multihost", action="store_true", help=which)
    which = "where process 0 listens, if JAX does not detect it"
    several("--coordinator-address", type=address, metavar="HOST:PORT", help=which)
    several("--num-processes", type=int, metavar="N", help="how many, if JAX does not detect it")
    several("--process-id", type=int, metavar="I", help="number of this process, from 0")
    parser.epilog = keys_in_words()


def run(args: argparse.Namespace) -> None:
    """Trains; raises SystemExit(128 + signal) where a signal stopped the run once its state was saved."""
    if args.seeds and any(word.lstrip("-").startswith("config.seed") for word in args.overrides):
        args.refuse("--seeds sets config.seed: leave out --config.seed")
    several = args.coordinator_address, args.num_processes, args.process_id
    if several != (None, None, None) and not args.multihost:
        args.refuse("--coordinator-address, --num-processes and --process-id need --multihost")
    config = load_config(args.config, args.overrides)
    workdir = args.workdir or Path("runs") / run_name(args.config)
    from attn_cnn_jax.training.hosts import connect, ends_with_the_others

    with ends_with_the_others() if args.multihost else nullcontext():
        if args.multihost:
            connect(*several)
        if args.seeds:
            train_seeds(config, workdir, args.seeds)
        else:
            train(config, workdir)


def train(config: ConfigDict, workdir: Path) -> float | None:
    """Trains, and says how the run ended and where it is; returns its test accuracy, None if metrics.jsonl is lost."""
    from attn_cnn_jax.training import loop
    from attn_cnn_jax.training.hosts import say

    test = loop.run(config, workdir).get("test")
    if test:
        say(f"final test accuracy {accuracy_in_words(test)} after step {test['step']}")
    say(f"metrics, checkpoints and TensorBoard events: {workdir}")
    say(f"in Python: attn_cnn_jax.load_run({str(workdir)!r})")
    if config.model.name == "attention":
        say(f"an interactive page: {command_line('page', workdir)}")
    say(f"figures: {command_line('figures', workdir)}")
    return test["accuracy"] if test else None


def train_seeds(config: ConfigDict, workdir: Path, numbers: list[int]) -> None:
    """Trains one run per seed in `workdir/seed_N`, and says mean and standard deviation of their test accuracies."""
    from attn_cnn_jax.training.hosts import say

    accuracies = {}
    for number in numbers:
        place = workdir / f"seed_{number}"
        say(f"seed {number}: {place}")
        config.seed = number
        accuracies[place] = train(config, place)
    known = [accuracy for accuracy in accuracies.values() if accuracy is not None]
    if len(known) > 1:
        say(f"test accuracy of {len(known)} seeds: {with_deviation(known, '{:.2%}')} (mean and standard deviation)")
    say(f"table and curves: {command_line('compare', *accuracies)}")


def keys_in_words() -> str:
    """Returns the tables of configuration keys for the help."""
    text, ours = [], schema_of(attention_config())
    for title, schema in (
        ("Keys and defaults of an attention network; files in configs/ may set others:", ours),
        ("Keys of a ResNet (configs/resnet18.py) instead of config.model above:", {"model": RESNET}),
    ):
        # tabulate's own maxcolwidths turns the text False into True.
        rows = [
            (f"config.{key}", fill(repr(field.default), 30), fill(field.allowed, 60))
            for key, field in flatten(schema).items()
        ]
        text += [title, table(rows, ("key", "default", "allowed"), left=3)]
    return "\n\n".join(text)
