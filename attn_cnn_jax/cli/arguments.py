"""Parsers and types of arguments that several commands here share; argparse exits 2 on a ValueError."""

import argparse


def documented_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """A parser for `python -m module` whose help is the module's docstring, laid out as it stands."""
    summary, _, details = doc.partition("\n")
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def step(text: str) -> int | str:
    """`latest`, `best`, or a checkpoint's number."""
    return text if text in ("latest", "best") else int(text)


def add_seed(parser: argparse.ArgumentParser) -> None:
    """`--seed`, for a command that looks at one network."""
    parser.add_argument("--seed", type=int, help="which, of a run of several seeds; the first by default")


def at_least_one(text: str) -> int:
    """A positive integer."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def positive(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not value > 0:  # nor NaN
        raise ValueError
    return value


def pixel(text: str) -> tuple[int, int]:
    """`ROW,COLUMN`, both from 0."""
    row, column = (int(part) for part in text.split(","))
    return row, column
