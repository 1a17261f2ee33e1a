"""The command `attn-cnn SUBCOMMAND ...`, also `python -m attn_cnn_jax SUBCOMMAND ...` and `train.py`.

A subcommand's module is imported only when it is called, so that `attn-cnn --help` does not wait for JAX.
"""

import difflib
import gc
import importlib
import os
import signal
import sys
from inspect import cleandoc
from pathlib import Path
from typing import NoReturn

from attn_cnn_jax.cli.arguments import Parser, import_file, separate
from attn_cnn_jax.errors import command_line, exits_with_messages
from attn_cnn_jax.output import say, silence_echoes
from attn_cnn_jax.program_cache import keep_programs
from attn_cnn_jax.runs.pretrained import existing

SUBCOMMANDS = {
    "train": "train a network, or continue a stopped training run",
    "prepare": "prepare a data set, also from an archive on a machine without network",
    "evaluate": "measure loss and accuracy on the test images",
    "predict": "classify image files",
    "figures": "draw the paper's figures of a run",
    "heads": "print a table of what every head attends to",
    "page": "write an interactive page of what every head attends to",
    "convolution": "measure how well convolutions replace the attention layers",
    "inspect": "say how convolutional the attention of any network is",
    "compile": "compile for a GPU or TPU that is not here: memory, least time",
    "selftest": "check that this machine and this jaxlib compute right",
    "summary": "count parameters and FLOPs of configurations and runs",
    "compare": "compare runs in a table; group seeds of one configuration",
    "export": "write a network as safetensors, StableHLO, ONNX, or for the authors' PyTorch release",
    "import": "make a run of a checkpoint of the authors' PyTorch release",
}
USAGE = """usage: attn-cnn SUBCOMMAND ...

Self-attention that learns to look like a convolution (arXiv 1911.03584).

{}

attn-cnn SUBCOMMAND --help describes a subcommand.

example:
  {}"""


def run(*subcommand: str, program: str = "") -> NoReturn:
    """Runs the command line of this process, after `subcommand`, and exits with its status.

    Help and errors name the command `program`, by default `attn-cnn SUBCOMMAND`.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is ignored, as by nohup
        # Ctrl-C ends the process at once and without a traceback; training handles it itself, and saves first.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in [name for name in os.environ if name.startswith("JAX_TRANSFER_GUARD")]:
        del os.environ[name]  # of the user's own programs: commands copy between host and device as they need
    os.environ["MPLBACKEND"] = "agg"  # files are drawn, no screen: not the backend of a notebook that runs the command
    gc.set_threshold(100_000, 50, 100)  # from 700: a tenth of the imports' time went into looking for garbage
    silence_echoes()
    status = main([*subcommand, *sys.argv[1:]], program)
    gc.freeze()  # else Python, to end, looks for garbage in all that was imported: 0.7 s
    sys.exit(status)


@exits_with_messages
def main(argv: list[str], program: str = "") -> int:
    """Runs a command line, the subcommand first, and returns its exit status.

    That is 0 for success; 1 for an error that the user can fix, printed in one or two lines; 2 for bad flags;
    128 + signal where a signal stopped training after the state was saved.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<12} {line}" for name, line in SUBCOMMANDS.items())
        say(USAGE.format(lines, command_line("train", "--config=digits")))
        return 0 if argv else 2
    name, *words = argv
    if name not in SUBCOMMANDS:
        close = difflib.get_close_matches(name, SUBCOMMANDS, n=1, cutoff=0.5)
        advice = f"did you mean {close[0]}?" if close else f"allowed first is one of {', '.join(SUBCOMMANDS)}"
        say(f"attn-cnn: unknown subcommand {name!r}: {advice}", sys.stderr)
        return 2
    module = importlib.import_module(f"attn_cnn_jax.cli.{name if name != 'import' else 'import_'}")
    summary, _, details = (module.__doc__ or "").partition("\n")
    parser = Parser(prog=program or f"attn-cnn {name}", description=summary)
    module.add_arguments(parser)
    example = f"example:\n  {command_line(name, *module.EXAMPLE.split())}"
    parser.epilog = "\n\n".join(part for part in (cleandoc(details), parser.epilog, example) if part)
    try:
        overrides, words = separate(words) if parser.takes_overrides else ([], words)
        args = parser.parse_args(words)
        for file in args.load:
            import_file(file)
        args.overrides, args.refuse = overrides, parser.error  # the latter for what only a subcommand can check
        if isinstance(folder := getattr(args, "run", None), Path):
            existing(folder)  # before what reads it is imported
        keep_programs()
        module.run(args)
        return 0
    except SystemExit as stop:  # argparse has printed help, or what is wrong with the flags
        return stop.code if isinstance(stop.code, int) else 1
