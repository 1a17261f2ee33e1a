"""What `attn-cnn figures` draws of a run."""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attn_cnn_jax.analysis import history, test_images
from attn_cnn_jax.analysis.figures import (
    NAMES,
    OF_ONE_LAYER,
    PAPERS_LAYER,
    centres,
    curves,
    maps,
    parabolas,
    scheme,
    span,
    training,
)
from attn_cnn_jax.analysis.figures import history as history_figure
from attn_cnn_jax.analysis.heads import check_query, grid_shifts
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.run import Run

Drawn = dict[str, Figure | list[np.ndarray]]  # by file name, of figures without suffix; frames are an animation's


def draw(args: argparse.Namespace, runs: list[Path]) -> Drawn:
    """Draws what was asked for, or all that applies."""
    if args.figures == ["curves"]:  # metrics are enough
        return {"curves": curves.draw(runs)}
    run = load_run(runs[0], args.step)
    wanted = {*(args.figures or applicable(run, runs[0]))}
    drawn: Drawn = {"curves": curves.draw(runs)} if "curves" in wanted else {}
    return drawn | (draw_attention(args, run, runs[0], wanted) if wanted - {"curves"} else {})


def applicable(run: Run, workdir: Path) -> list[str]:
    """Returns the figures that a run has."""
    if run.config.model.name != "attention":
        return ["curves"]
    has = {
        "curves": bool(read_metrics(workdir / "metrics.jsonl")),
        "training": bool(run.positions),
        "course": bool(run.positions) and history.is_recorded(run),
        "pictures": test_images.reads_images(run),
        "parabolas": parabolas.has(run),
    }
    return [name for name in NAMES if has.get(name, True)]


def draw_attention(args: argparse.Namespace, run: Run, workdir: Path, wanted: set[str]) -> Drawn:
    """Draws the figures that show attention."""
    content, (height, width) = test_images.reads_images(run), test_images.grid(run)
    # The middle as in Fig. 4 to 6; the paper does not say which pixel Fig. 7 shows.
    queries = args.query or [test_images.centre(run)] + ([(height // 4, width // 4)] if content else [])
    for query in queries:
        check_query(query, (height, width))
    num_layers = len(run.model.blocks)
    if OF_ONE_LAYER & wanted and (args.layer or 1) > num_layers:
        raise UserError(f"--layer={args.layer}: allowed is 1 to {num_layers}")
    number = min(args.layer or PAPERS_LAYER, num_layers)
    layer, drawn = number - 1, {}
    if wanted & {"training", "course"}:
        records = list(run.positions)
        if not records:
            why = "its attention knows none, or it was trained without recording"
            raise UserError(f"{workdir} has no recorded positions: {why}")
        if "training" in wanted:
            drawn[f"training_layer{number}"] = training.draw(records, layer)
            drawn[f"training_layer{number}.gif"] = training.animate(records, layer)
        if "course" in wanted:
            drawn["course"] = history_figure.draw(history.history(run, records), "layers over training")
    if "pictures" in wanted:
        drawn |= draw_images(args, run, queries)
    if "parabolas" in wanted:
        drawn["parabolas"] = parabolas.draw(run, test_images.first_images(run, args.images, args.data_dir).images)
    if not wanted & {"scheme", "centres", "maps", "span"}:
        return drawn
    num_images = test_images.averaged_over(run, args.images, args.data_dir)
    layers = test_images.mean_attention(run, num_images, args.data_dir)
    mean, chosen = f", mean over {num_images} test images" if content else "", layers[layer]
    if "scheme" in wanted:
        values = np.asarray(run.model.blocks[layer].attention.merged_maps())
        title = f"layer {number}: one pixel of its output, from {len(chosen)} heads{mean}"
        drawn[f"scheme_layer{number}"] = scheme.draw(chosen, values, queries[0], title)
    if "centres" in wanted:
        drawn["centres"] = centres.draw_run(run, layers)
    for row, column in queries if "maps" in wanted else ():
        title = maps.title((row, column), num_images if content else None, args.order)
        drawn[f"maps_{row}_{column}"] = maps.draw(layers, (row, column), args.order, title)
    if "span" in wanted:
        shifts = grid_shifts(len(chosen))
        size = round(len(shifts) ** 0.5)
        title = f"layer {number}: shifts of a {size}x{size} convolution and {len(chosen)} heads (Lemma 3){mean}"
        drawn[f"span_layer{number}"] = span.draw(chosen, shifts, queries[0], title)
    return drawn


def draw_images(args: argparse.Namespace, run: Run, queries: list[tuple[int, int]]) -> Drawn:
    if not test_images.reads_images(run):
        raise UserError("this network's attention is the same for all images: allowed is --figures=maps")
    chosen, labels, class_names = test_images.images_at(run, args.pictures, args.data_dir)
    drawn: Drawn = {}
    for n, image, label in zip(args.pictures, chosen, labels, strict=True):
        layers = [layer[0] for layer in run.attention(image[None])]
        (probabilities,) = run.predict(image[None])
        best = probabilities.argmax()
        name = f"test image {n}: {class_names[label]}\npredicted {class_names[best]} ({probabilities[best]:.0%})"
        for query in queries:
            figure = maps.draw_image(image, name, layers, query, args.order, run.config.model.downsample)
            drawn[f"picture_{n}_{query[0]}_{query[1]}"] = figure
    return drawn
