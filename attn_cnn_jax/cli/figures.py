"""Draw the paper's figures of a run as PNG and SVG files.

- scheme: how one layer computes a pixel, drawn from that layer (Fig. 1)
- curves: accuracy and loss over epochs, of all runs given (Fig. 2)
- training: centres of one layer's heads over training, panels and an animated GIF (Fig. 3)
- centres: centres of all heads, contours that hold 50% and 90% of the attention (Fig. 4, 12 to 14)
- maps: attention of one query pixel, layers by heads; the mean over test images for content models (Fig. 5 to 7)
- pictures: single test images and the attention to them, of content models (Fig. 8 to 10)
- span: Lemma 3 for one layer: how far a kernel's shifts are from the span of its heads' maps (Fig. 11)
- parabolas: where the queries of `pape` centre their attention, and how widely, over images (Fig. 4 as a distribution)
- course: layers over training: how far they look, and how near they are to a convolution, for quadratic encodings

A content model is a network whose attention depends on the image. All figures but curves show the first run. Without
--figures all that apply to it are drawn; for a learned_rel_content run they include figures 6 to 10. Layers and heads
count from 1; pixels count from 0 and are those that attention works on, after the down-sampling.
"""

import argparse
import itertools

from attn_cnn_jax.analysis.figures import NAMES, ORDERS, PAPERS_LAYER
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, beside, integers, matching, pixel
from attn_cnn_jax.output import say
from attn_cnn_jax.runs.pretrained import existing

EXAMPLE = "runs/digits --figures=centres,maps --out=figures"

some = "|".join(NAMES)
figure_names = matching(f"({some})(,({some}))*", lambda text: text.split(","), f"some of {', '.join(NAMES)}")


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    parser.share("runs", "--step", "--data-dir", "--images")
    add("--figures", type=figure_names, metavar="NAME,...", help=f"some of {', '.join(NAMES)}")
    add("--out", type=as_path, metavar="DIR", help="where to write; RUN/figures by default")
    which = (
        "query pixel of maps and pictures; may be given several times; by default the central pixel, for content "
        "models also one a quarter of the way in"
    )
    add("--query", type=pixel, metavar="ROW,COLUMN", action="append", help=which)
    add("--order", choices=tuple(ORDERS), default=next(iter(ORDERS)), help="order of the heads in maps and pictures")
    which = "test images to show, by index (0-2)"
    add("--pictures", type=integers, default=[0, 1, 2], metavar="N,...", help=which)
    which = f"layer that scheme, training and span show ({PAPERS_LAYER}, or the last where there are fewer)"
    add("--layer", type=at_least_one, metavar="N", help=which)


def run(args: argparse.Namespace) -> None:
    runs = list(itertools.chain(*args.runs))
    if args.figures != ["curves"]:  # metrics are enough for those
        existing(runs[0])
    from matplotlib.figure import Figure

    from attn_cnn_jax.analysis.figures import style
    from attn_cnn_jax.cli.drawing import draw

    out = args.out or beside(runs[0], "figures")
    for name, drawn in draw(args, runs).items():  # written only if all could be drawn
        figure = isinstance(drawn, Figure)
        paths = style.save(drawn, out, name) if figure else style.save_animation(drawn, out / name, 100, 2000)
        say("\n".join(map(str, paths)))
