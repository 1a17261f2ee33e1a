"""Types of the command-line arguments that several commands here take; argparse exits 2 on a ValueError."""


def step(text: str) -> int | str:
    """`latest`, `best`, or a checkpoint's number."""
    return text if text in ("latest", "best") else int(text)


def at_least_one(text: str) -> int:
    """A positive integer."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def pixel(text: str) -> tuple[int, int]:
    """`ROW,COLUMN`, both from 0."""
    row, column = (int(part) for part in text.split(","))
    return row, column
