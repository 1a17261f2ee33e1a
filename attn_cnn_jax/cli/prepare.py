"""Prepare a data set.

    python -m attn_cnn_jax.cli.prepare NAME [--archive PATH] [--data_dir DIR] [--replace]

Downloads CIFAR-10 or CIFAR-100 as tfds does, or imports a local copy of the official archive (binary or
python layout) for machines without network. Exit status: 0 done, 1 with a message on standard error, 2 for
bad flags.
"""

import argparse
import sys

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.preparation import archives, store
from attn_cnn_jax.errors import UserError, says_errors


def prepare(name, archive=None, data_dir=None, *, replace=False, say=print):
    """Make a data set and read it back; the command's work without its flags.

    Args:
      name: "cifar10", "cifar100" or "digits".
      archive: path of an official archive of CIFAR, or None to download.
      data_dir: where to; None is tfds's default, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      replace: make it anew even if it is there.
      say: called with a line of text at each stage.

    Returns:
      The `sources.Dataset`.

    Raises:
      UserError: see `archive.read`, `store.prepare` and `sources.load`.
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
                "Add --replace to put this one in its place, or choose another --data_dir."
            )
        say(f"{name} is already prepared in {folder}")
    else:
        store.prepare(name, data_dir, content=content, replace=replace, say=say)
    dataset = sources.load(name, data_dir, download=False)
    say(f"Read back {len(dataset.train.labels):,} training and {len(dataset.test.labels):,} test pictures")
    return dataset


@says_errors
def main(argv=None):
    """Run the command with the given arguments (default: those of the process); return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m attn_cnn_jax.cli.prepare", description="Prepare a data set for training."
    )
    parser.add_argument("name", choices=sorted(sources.SPECS))
    parser.add_argument("--archive", metavar="PATH", help="import this copy of the official archive of CIFAR")
    parser.add_argument("--data_dir", metavar="DIR", help="default: $TFDS_DATA_DIR or ~/tensorflow_datasets")
    parser.add_argument("--replace", action="store_true", help="make it anew even if it is already prepared")
    args = parser.parse_args(argv)
    if args.archive is not None and args.name == "digits":
        parser.error("digits comes with scikit-learn and takes no --archive")
    prepare(args.name, args.archive, args.data_dir, replace=args.replace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
