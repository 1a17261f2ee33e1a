"""Measure loss and accuracy of a network on the test images of its data set.

Every image counts once; balanced accuracy is the mean over classes. --by-class adds a table by class, --out a
confusion matrix as CSV and figure. --mirrored adds a line of its own: there an image is classified by the mean of its
logits and those of its mirror image, which is not the accuracy that training records. --keep writes what was measured
into the run's metrics.jsonl, in the place of a record of the same step.
"""

import argparse
import csv
import io
import json
import sys
from pathlib import Path

import numpy as np

from attn_cnn_jax.analysis.figures import confusion, style
from attn_cnn_jax.analysis.test_images import check_count, dataset_of, load_dataset, other_data
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one
from attn_cnn_jax.data.image_files import as_image, fit
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import columns, say
from attn_cnn_jax.runs import environment, metrics
from attn_cnn_jax.runs.by_class import ByClass
from attn_cnn_jax.runs.checkpoints import steps_in
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "runs/digits"
COLUMNS = {
    "test images": "{images}",
    "accuracy": "{accuracy:.2%}",
    "balanced": "{balanced_accuracy:.2%}",
    "right": "{right:,} of {count:,}",
    "loss (nats)": "{loss:.4f}",
}

BY_CLASS = {
    "class": "{class}",
    "right": "{right:,} of {count:,}",
    "accuracy": "{accuracy:.2%}",
    "most often taken for": "{taken_for} ({times:,})",
}


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--size")
    which = "evaluate the first N test images only"
    parser.add_argument("--images", type=at_least_one, metavar="N", help=which)
    parser.add_argument("--mirrored", action="store_true", help="also with every image's mirror image")
    parser.add_argument("--keep", action="store_true", help="write the result into the run's metrics.jsonl")
    parser.add_argument("--by-class", action="store_true", help="also by class: right, count, most frequent confusion")
    which = "write the confusion matrix there, as confusion.csv, .png and .svg"
    parser.add_argument("--out", type=as_path, metavar="DIR", help=which)
    parser.add_argument("--json", action="store_true", help="print JSON: a list with one object per line")


def run(args: argparse.Namespace) -> None:
    needs = "--keep needs a run directory with checkpoints, all test images and their own size"
    if args.keep and (args.images or args.size):
        args.refuse(needs)
    run = load_run(args.run, args.step)
    if args.keep and not steps_in(args.run):
        args.refuse(needs)
    dataset = dataset_of(run, args.data_dir) if args.keep else load_dataset(run, args.data_dir)
    if args.keep and (different := other_data(run, dataset)):
        raise UserError(f"--keep: {different}")
    images, labels = dataset.test
    if args.images:
        check_count(dataset, args.images)
    images, labels = images[: args.images], labels[: args.images]
    if args.size:
        run = run.at_size(args.size)
        images = np.stack([fit(as_image(image), args.size) for image in images])
    evaluation = run.evaluate(images, labels)
    if args.out:
        names = evaluation.class_names or [str(k) for k in range(len(evaluation.confusion))]
        paths = [*style.save(confusion.draw(evaluation.confusion, names), args.out, "confusion")]
        paths.append(args.out / "confusion.csv")
        matrix = [["class", *names]]  # a class, too, may be called so
        matrix += [[name, *row] for name, row in zip(names, evaluation.confusion.tolist(), strict=True)]
        csv.writer(text := io.StringIO(), lineterminator="\n").writerows(matrix)
        write_atomically(paths[-1], text.getvalue())
        say("\n".join(map(str, paths)), sys.stderr)
    if args.keep:
        keep(as_path(args.run), run.step, evaluation)
    resized = "resized to {}x{}".format(*args.size) if args.size else ""
    lines = [as_line(resized or "as they are", evaluation, args.by_class)]
    if args.mirrored:
        mirrored = run.evaluate(images, labels, mirrored=True)
        both = f"{resized}, " * bool(resized) + "with their mirror images"
        lines.append(as_line(both, mirrored, args.by_class))
    if args.json:
        say(json.dumps(lines))
        return
    say(columns(lines, COLUMNS, left=len(COLUMNS)))
    for line in lines if args.by_class else ():
        rows = [row | {"times": row["times"] or None} for row in line["by_class"]]
        say(f"\n{line['images']}, by class:\n{columns(rows, BY_CLASS, left=len(BY_CLASS))}")


def as_line(images: str, evaluation: ByClass, by_class: bool) -> dict:
    numbers = {name: getattr(evaluation, name) for name in ("accuracy", "balanced_accuracy", "right", "count", "loss")}
    return {"images": images} | numbers | ({"by_class": evaluation.by_class} if by_class else {})


def keep(workdir: Path, step: int, evaluation: ByClass) -> None:
    """Puts a test result into metrics.jsonl in the place of the record of its step; says what was there.

    UserError if the run has no such record, whose epoch is needed.
    """
    path = workdir / metrics.FILE
    records = metrics.read_metrics(path)
    places = [n for n, record in enumerate(records) if (record["step"], record["split"]) == (step, "test")]
    if not places:
        raise UserError(f"{path} has no test record of step {step}: --keep replaces one that training wrote")
    before = records[places[-1]]
    numbers = {name: getattr(evaluation, name) for name in ("right", "count", "loss", "accuracy", "balanced")}
    records[places[-1]] = before | {name: value for name, value in numbers.items() if value is not None}
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records))
    environment.note(workdir, step, "evaluated")
    say(f"{path}: {metrics.accuracy_in_words(records[places[-1]])} at step {step}, before {before['accuracy']:.2%}")
