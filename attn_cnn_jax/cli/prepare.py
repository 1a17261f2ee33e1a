"""Prepare a data set.

Downloads CIFAR-10 or CIFAR-100 as tensorflow-datasets does, or imports a local copy of the official archive (binary
or python layout) for machines without network. digits comes with scikit-learn and needs no network. `folder` and
`npz` are pictures of your own: a folder of class folders, or arrays `images` and `labels`; training prepares them
too, with the same values in config.dataset.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from attn_cnn_jax.cli.arguments import image_size
from attn_cnn_jax.data import stored
from attn_cnn_jax.data.builders import OWN, SPECS, Recipe, is_own, recipe, recipe_of
from attn_cnn_jax.data.preparation import archives, store

EXAMPLE = "folder --path=pictures --image-size=64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = f"{', '.join(sorted([*SPECS, *OWN]))}, or tfds:NAME for an image classification set of tensorflow-datasets"
    parser.add_argument("name", metavar="NAME", type=data_set, help=names)
    parser.add_argument("--archive", metavar="PATH", help="import this copy of the official archive of CIFAR")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR or ~/tensorflow_datasets")
    parser.add_argument("--replace", action="store_true", help="prepare it again even if it is there")
    group = parser.add_argument_group("pictures of your own")
    group.add_argument("--path", metavar="PATH", help="folder of class folders, or .npz file")
    size = "crop and resize to HEIGHTxWIDTH pixels, or to a square; default: the size that all pictures have"
    group.add_argument("--image-size", type=image_size, metavar="64|HxW", help=size)
    fraction = "part of each class that becomes the test split where there is none (0.2)"
    group.add_argument("--test-fraction", type=float, metavar="X", help=fraction)
    group.add_argument("--skip-unreadable", action="store_const", const=True, help="leave out unreadable pictures")


def data_set(text: str) -> str:
    """Returns the name of a data set, if it is one."""
    if text not in SPECS and not is_own(text):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is {', '.join(SPECS)}, folder, npz or tfds:NAME")
    return text


def run(args: argparse.Namespace) -> int:
    if args.archive is not None and (args.name not in SPECS or not recipe(args.name).has_archive):
        return args.refuse(f"{args.name} takes no --archive")
    own = {key: getattr(args, key) for key in ("path", "image_size", "test_fraction", "skip_unreadable")}
    own = {key: value for key, value in own.items() if value is not None}
    if args.name not in SPECS and (args.name in OWN) != ("path" in own):
        return args.refuse(f"{args.name} {'needs' if args.name in OWN else 'takes no'} --path")
    if args.name in SPECS and own:
        return args.refuse(f"{args.name} takes no --{next(iter(own)).replace('_', '-')}")
    from attn_cnn_jax.config import attention_config, complete  # takes JAX, which --help does without

    config = attention_config()
    config.dataset.update({"name": args.name} | own)
    complete(config)
    prepare(recipe_of(config.dataset), args.archive, args.data_dir, replace=args.replace)
    return 0


def prepare(
    which: str | Recipe,
    archive: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    replace: bool = False,
    say: Callable[[str], object] = print,
) -> stored.AnyDataset:
    """Prepares a data set and reads it back.

    Args:
      which: "cifar10", "cifar100", "digits", or the recipe of a data set.
      archive: path of an official archive of CIFAR, or None to download.
      data_dir: where to; None is tfds's default, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      replace: prepare it again even if it is there.
      say: called with a line of text at each stage.

    Returns:
      The data set, decoded where memory has room for it, see `stored.load_fitting`.

    Raises:
      UserError: see `archives.read`, `store.prepare` and `sources.load`.
    """
    known = recipe(which) if isinstance(which, str) else which
    folder = store.folder(known, data_dir)
    content = None
    if archive is not None:
        say(f"Reading {archive}")
        content = archives.read(archive, known.name)
        verdict = "the official archive" if content.official else "not the official archive"
        say(f"SHA-256 {content.sha256}: {verdict} ({content.kind} layout)")
    if store.is_prepared(known, data_dir) and not replace:
        store.say_prepared(known, data_dir, content, say)
    else:
        store.prepare(known, data_dir, content=content, replace=replace, say=say)
    dataset = stored.load_fitting(known, data_dir, say=say)
    for line in known.describe(folder):
        say(line)
    say(f"Read back {len(dataset.train.labels):,} training and {len(dataset.test.labels):,} test pictures")
    return dataset
