"""Prepare a data set.

Downloads CIFAR-10 or CIFAR-100 as tensorflow-datasets does, or imports a local copy of the official archive (binary
or python layout) for machines without network. digits comes with scikit-learn and needs no preparation. `folder` and
`npz` are images of your own: a folder of class folders, or arrays `images` and `labels`; training prepares them
too, with the same values in config.dataset.
"""

import argparse

from attn_cnn_jax.cli.arguments import Parser, image_size, matching, numbers_in
from attn_cnn_jax.data import cifar, sources
from attn_cnn_jax.data.mirror import line_on_mirroring
from attn_cnn_jax.data.sets import OWN, SPECS, WITH_SCIKIT_LEARN, is_own, source_of
from attn_cnn_jax.output import say

EXAMPLE = "folder --path=images --image-size=64"


def add_arguments(parser: Parser) -> None:
    names = f"{', '.join(sorted([*SPECS, *OWN]))}, or tfds:NAME for an image classification set of tensorflow-datasets"
    parser.add_argument("name", metavar="NAME", help=names)
    parser.add_argument("--archive", metavar="PATH", help="import this copy of the official archive of CIFAR")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR or ~/tensorflow_datasets")
    parser.add_argument("--replace", action="store_true", help="prepare it again even if it is there")
    own = parser.add_argument_group("images of your own").add_argument
    own("--path", metavar="PATH", help="folder of class folders, or .npz file")
    size = "crop and resize to HEIGHTxWIDTH pixels, or to a square; default: the size that all images have"
    own("--image-size", type=image_size, metavar="64|HxW", help=size)
    fraction = "part of each class that becomes the test split where there is none (0.2)"
    own("--test-fraction", type=float, metavar="X", help=fraction)
    which = "values in 16-bit grey files that become 0 and 255, such as 0-1023 for 10 bits (0-65535)"
    own("--range", type=matching(r"\d+-\d+", numbers_in, "LOW-HIGH, as 0-1023"), metavar="LOW-HIGH", help=which)
    own("--skip-unreadable", action="store_const", const=True, help="leave out unreadable images")


def run(args: argparse.Namespace) -> None:
    keys = ("path", "image_size", "test_fraction", "skip_unreadable", "range")
    own = {key: value for key in keys if (value := getattr(args, key)) is not None}
    if args.name not in SPECS and not is_own(args.name):
        args.refuse(f"{args.name!r}: allowed is {', '.join(SPECS)}, folder, npz or tfds:NAME")
    if args.archive is not None and not args.name.startswith("cifar"):
        args.refuse(f"{args.name} takes no --archive")
    if args.name not in SPECS and (args.name in OWN) != ("path" in own):
        args.refuse(f"{args.name} {'needs' if args.name in OWN else 'takes no'} --path")
    if args.name in SPECS and own:
        args.refuse(f"{args.name} takes no --{next(iter(own)).replace('_', '-')}")
    from attn_cnn_jax.config import attention_config, complete  # takes JAX, which --help does without

    config = attention_config()
    config.dataset.update({"name": args.name} | own)
    complete(config)
    source, content = source_of(config.dataset), None
    if args.archive is not None:
        say(f"Reading {args.archive}")
        content = cifar.read(args.archive, source.name)
        say(f"SHA-256 {content.sha256}: {content.verdict}")
    if source.name in WITH_SCIKIT_LEARN:
        say(f"{source.name} comes with scikit-learn: nothing has to be prepared")
    elif not sources.prepare(source, args.data_dir, archive=content, replace=args.replace):
        say(f"{source.words} is already prepared in {sources.folder_of(source, args.data_dir)}")
    dataset = sources.load(source, args.data_dir)
    for line in dataset.notes:
        say(f"{source.words}: {line}")
    if is_own(source.name):
        say(f"Training, except by own_images: {line_on_mirroring(dataset.train)}")
    say(f"Read back {len(dataset.train.labels):,} training and {len(dataset.test.labels):,} test images")
