"""Prepare a data set.

Downloads CIFAR-10 or CIFAR-100 as tensorflow-datasets does, or imports a local copy of the official archive (binary
or python layout) for machines without network. digits comes with scikit-learn and needs no network.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.preparation import archives, store
from attn_cnn_jax.errors import UserError

EXAMPLE = "digits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=sorted(sources.SPECS), help="the data set")
    parser.add_argument("--archive", metavar="PATH", help="import this copy of the official archive of CIFAR")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR or ~/tensorflow_datasets")
    parser.add_argument("--replace", action="store_true", help="prepare it again even if it is there")


def run(args: argparse.Namespace) -> int:
    if args.archive is not None and args.name == "digits":
        return args.refuse("digits comes with scikit-learn and takes no --archive")
    prepare(args.name, args.archive, args.data_dir, replace=args.replace)
    return 0


def prepare(
    name: str,
    archive: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    replace: bool = False,
    say: Callable[[str], object] = print,
) -> sources.Dataset:
    """Prepares a data set and reads it back.

    Args:
      name: "cifar10", "cifar100" or "digits".
      archive: path of an official archive of CIFAR, or None to download.
      data_dir: where to; None is tfds's default, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      replace: prepare it again even if it is there.
      say: called with a line of text at each stage.

    Returns:
      The data set, as `sources.load` returns it.

    Raises:
      UserError: see `archives.read`, `store.prepare` and `sources.load`.
    """
    folder = store.folder(name, data_dir)
    content = None
    if archive is not None:
        say(f"Reading {archive}")
        content = archives.read(archive, name)
        verdict = "the official archive" if content.official else "not the official archive"
        say(f"SHA-256 {content.sha256}: {verdict} ({content.kind} layout)")
    if store.is_prepared(name, data_dir) and not replace:
        if content and sources.read_origin(folder).get("sha256") != content.sha256:
            raise UserError(
                f"{folder} is already prepared, from another archive.\n"
                "Add --replace to put this one in its place, or choose another --data-dir."
            )
        say(f"{name} is already prepared in {folder}")
    else:
        store.prepare(name, data_dir, content=content, replace=replace, say=say)
    dataset = sources.load(name, data_dir, download=False)
    say(f"Read back {len(dataset.train.labels):,} training and {len(dataset.test.labels):,} test pictures")
    return dataset
