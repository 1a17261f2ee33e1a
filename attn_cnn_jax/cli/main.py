"""The command `attn-cnn SUBCOMMAND ...`, also `python -m attn_cnn_jax SUBCOMMAND ...`.

A subcommand's module is imported only when it is called, so that `attn-cnn --help` does not wait for JAX.
"""

import difflib
import importlib
import re
import sys
from inspect import cleandoc

from attn_cnn_jax.cli.arguments import Parser, import_file, separate
from attn_cnn_jax.errors import command_line, says_errors

SUBCOMMANDS = {
    "train": "train a network, or continue a stopped training run",
    "prepare": "prepare a data set, also from an archive on a machine without network",
    "evaluate": "measure loss and accuracy on the test pictures",
    "predict": "classify picture files",
    "figures": "draw the paper's figures of a run",
    "heads": "print a table of what every head attends to",
    "page": "write an interactive page of what every head attends to",
    "convolution": "measure how well convolutions replace the attention layers",
    "compile": "compile for a GPU or TPU that is not here: memory, estimated time",
    "summary": "count parameters and FLOPs of configurations and runs",
    "compare": "compare runs in a table; group seeds of one configuration",
    "export": "write a network as safetensors, StableHLO, ONNX, or for the authors' PyTorch release",
    "import": "make a run of exported weights, or of a checkpoint of the authors' PyTorch release",
}
HELP = ("-h", "--help", "help")


@says_errors
def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the arguments without the program's name; None for those of this process.

    Returns:
      0 success; 1 an error that the user can fix, printed in one or two lines; 2 bad flags; 128 + signal where a
      signal stopped training after the state was saved.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELP:
        print(usage())
        return 0 if argv else 2
    name, *arguments = argv
    if name not in SUBCOMMANDS:
        print(f"attn-cnn: unknown subcommand {name!r}: {suggestion(name)}", file=sys.stderr)
        return 2
    return start(name, arguments)


@says_errors
def start(name: str, arguments: list[str], program: str | None = None) -> int:
    """Parses the arguments of one subcommand and runs it; returns the exit status as `main` does.

    Args:
      name: a key of SUBCOMMANDS.
      arguments: what follows the subcommand on the command line.
      program: how help and errors name the command; `attn-cnn NAME` by default.
    """
    module = importlib.import_module(f"attn_cnn_jax.cli.{name if name != 'import' else 'import_'}")
    summary, _, details = (module.__doc__ or "").partition("\n")
    parser = Parser(prog=program or f"attn-cnn {name}", description=summary)
    module.add_arguments(parser)
    example = f"example:\n  {command_line(name, *module.EXAMPLE.split())}"
    parser.epilog = "\n\n".join(part for part in (cleandoc(details), parser.epilog, example) if part)
    # `--data_dir` is read as `--data-dir`: scripts of earlier versions have both spellings.
    arguments = [re.sub(r"^--\w+(?==|$)", lambda flag: flag[0].replace("_", "-"), word) for word in arguments]
    try:
        overrides, arguments = separate(arguments) if parser.takes_overrides else ([], arguments)
        args = parser.parse_args(arguments)
        for file in args.load:
            import_file(file)
        args.overrides, args.refuse = overrides, parser.error  # the latter for what only a subcommand can check
        return module.run(args)
    except SystemExit as stop:  # argparse has printed help, or what is wrong with the flags
        return stop.code if isinstance(stop.code, int) else 1


def usage() -> str:
    """Returns the table of subcommands."""
    lines = [f"  {name:<12} {line}" for name, line in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: attn-cnn SUBCOMMAND ...",
            "",
            "Self-attention that learns to look like a convolution (arXiv 1911.03584).",
            "",
            *lines,
            "",
            "attn-cnn SUBCOMMAND --help describes a subcommand.",
            "",
            f"example:\n  {command_line('train', '--config=digits')}",
        ]
    )


def suggestion(name: str) -> str:
    """Returns what to type instead of an unknown subcommand."""
    if name.startswith("-"):
        return f"name the subcommand first, such as {command_line('train', '--config=digits')}"
    close = difflib.get_close_matches(name, SUBCOMMANDS, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"allowed are {', '.join(SUBCOMMANDS)}"
