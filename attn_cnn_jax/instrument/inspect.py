"""`inspect`: from a network or from arrays to a report."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.data.labels import class_numbers
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.instrument.adapters import Call
from attn_cnn_jax.instrument.attention import as_layers, layouts
from attn_cnn_jax.instrument.curves import Watched
from attn_cnn_jax.instrument.experiment import SAME
from attn_cnn_jax.instrument.kernels import check_sizes
from attn_cnn_jax.instrument.layer import Layer, measure, position_alone
from attn_cnn_jax.instrument.network import Network
from attn_cnn_jax.instrument.output import Output, as_output
from attn_cnn_jax.instrument.proof import Site, prove
from attn_cnn_jax.instrument.report import Report
from attn_cnn_jax.runs import selfcheck

KEPT = 2**28  # bytes of maps that a report keeps: of as many images as fit, at least one
EXACT, ROUNDED = 1e-3, 0.05  # of averages computed again, in float32 and in bfloat16


def inspect(
    attention_or_model: Any,
    images: Any = None,
    *,
    grid: Grid | str | None = None,
    prefix: int | None = None,
    tokens: Int[Any, " p"] | None = None,
    layers: Sequence[int] | None = None,
    kernel_size: int | Sequence[int] = 3,
    labels: Int[Any, " b"] | None = None,
    groups: Sequence[Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Says how convolutional the attention of a network is.

    Args:
      attention_or_model: attention as arrays, `(layers, images, heads, q, k)` or a list of `(images, heads, q, k)`
        per layer, of NumPy, JAX or PyTorch; or a network: a run of `load_run`, a Flax NNX or a PyTorch module (timm,
        torchvision, Hugging Face). It stays as it is. Where its patches are is found by experiment.
      images: of a network, as it takes them; a single one may lack the axis of images.
      grid: rows and columns of patches, also as "14x14"; None for what the experiment finds, of arrays for a square.
      prefix: class and register tokens before the patches, which are left out; None for all that the grid leaves.
      tokens: which tokens are patches, row by row; with `grid`, taken as they are.
      layers: numbers of those to measure among all softmaxes of the network, from 0; None for all.
      kernel_size: K of the kernels that heads are compared with; of several, the first is also what replaces heads.
      labels: classes of the images, for the accuracy with heads replaced; None: agreement with the network's own.
      groups: by image, which photo it is from, for the errors; None where they are all of different ones.
      progress: is called with a line as each pass through the network ends; `print` shows them.

    Raises:
      UserError: for what is not attention over a grid, and for layers whose tokens cannot be mapped to patches.
    """
    say = progress or (lambda line: None)
    sizes = tuple(kernel_size) if isinstance(kernel_size, Sequence | np.ndarray) else (kernel_size,)
    grid = as_grid(grid)
    source = attention_or_model
    if hasattr(source, "shape") or isinstance(source, list | tuple):
        arrays = as_layers(source)
        found = layouts(arrays, grid, prefix, tokens)
        check_sizes(sizes, [layout.grid for layout in found])
        check_groups(groups, len(arrays[0]))
        keep = kept_images([(len(array[0]), layout) for array, layout in zip(arrays, found, strict=True)])
        measured = [
            measure(n, layout, array, sizes, keep, groups)
            for n, (array, layout) in enumerate(zip(arrays, found, strict=True))
        ]
        assumed = grid is None and tokens is None and f"a square grid is assumed: {found[0].grid[0]}x{found[0].grid[1]}"
        return Report(measured, len(arrays[0]), sizes, (assumed,) if assumed else ())
    if images is None:
        raise UserError("give images, as the network takes them: inspect(model, images)")
    network = Network(source, images)
    try:
        sites, first = prove(network, grid, tokens, layers)
    except UserError as error:
        if network.images.ndim != 3:
            raise
        try:  # one image without the axis of images
            network = Network(source, images[None])
            sites, first = prove(network, grid, tokens, layers)
        except UserError:
            raise error from None
    say(f"layout: {sum(site.layout is not None for site in sites)} of {len(sites)} softmaxes are over patches")
    check_sizes(sizes, [site.layout.grid for site in sites if site.layout])
    check_prefix(prefix, sites)
    check_groups(groups, len(network))
    measured, output = watch(network, sites, sizes, groups, say)
    own, first = as_output(network, output, len(network)), as_output(network, first, 1)
    if np.abs(own.array[0] - first.array[0]).max() > 10 * SAME * max(np.abs(first.array).max(), 1e-30):
        raise UserError(f"{network.name} gives one image another output when it is called again: it is random")
    check_program(network, first)
    if labels is not None and own.array.ndim == 2:
        own, labels = own._replace(classifies=True), class_numbers(labels, *own.array.shape)
    left_out = [site for site in sites if site.layout is None]
    notes = (f"not measured: {listed([str(site) for site in left_out], 3)}",) if left_out else ()
    return Report(measured, len(network), sizes, notes, Watched(network, sites, own, labels))


def watch(
    network: Network, sites: list[Site], sizes: tuple[int, ...], groups: Any, say: Callable[[str], None]
) -> tuple[list[Layer], Any]:
    """Runs the network once on all images and a featureless one; returns all layers' measures, and the output."""
    of_call = {site.call: (site, site.layout) for site in sites if site.layout}
    count, measured = len(network), list[Layer]()
    keep = kept_images([(math.prod(site.shape[:2]) // layout.windows, layout) for site, layout in of_call.values()])
    _, first = next(iter(of_call.values()))
    whole, patch = (1, 1), None
    if first.windows == 1 and network.size is not None:
        patch = first.patch(network.size)
        if patch or not any(length % count for length, count in zip(network.size, first.grid, strict=True)):
            whole = first.grid

    def visit(call: Call) -> None:
        if call.number not in of_call:
            return
        site, layout = of_call[call.number]
        per_image = layout.per_image
        if call.shape[0] != (count + 1) * per_image or call.shape[2:] != site.shape[2:]:
            raise UserError(
                f"layer {site.number + 1} has shape {call.shape} for {count + 1} images, {site.shape} for one: "
                "its first axis is not of images"
            )
        if not (difference := call.difference()) <= (EXACT if call.exact else ROUNDED):  # NaN is no agreement
            raise UserError(f"layer {site.number + 1}: averages from attention and values differ by {difference:.1e}")
        attention = layout.by_window(call.attention())
        if (lonely := (attention[:, :, layout.tokens[0]].max(axis=-1) == 0).max(axis=(0, 1)).sum()) > 0:
            raise UserError(f"layer {site.number + 1}: {lonely} patches have no keys, as all are masked")
        own, alike = np.split(attention, [count * layout.windows])
        values = layout.by_window(call.values()), layout.by_window(call.averages())
        layer = measure(site.number, layout, own, sizes, keep, groups, values)
        measured.append(layer._replace(difference=difference, position_alone=position_alone(alike, layer)))
        say(f"layer {site.number + 1} of {len(sites)} measured")

    seen = network.run(visit, network.with_featureless(whole, patch))
    return measured, seen.output


def as_grid(grid: Any) -> Grid | None:
    """Returns rows and columns of a pair, or of a text such as "16x16"."""
    if grid is None:
        return None
    parts = grid.lower().split("x") if isinstance(grid, str) else grid
    with contextlib.suppress(TypeError, ValueError):
        rows, columns = (int(part) for part in parts)
        if min(rows, columns) > 0:
            return rows, columns
    raise UserError(f'grid={grid!r}: allowed are rows and columns from 1, (14, 14) or "14x14"')


def check_groups(groups: Any, images: int) -> None:
    """Raises UserError unless there is one photo for each image, or None."""
    with contextlib.suppress(ValueError):  # of lists of unequal lengths
        if groups is None or np.shape(groups) == (images,):
            return
    raise UserError(f"groups={shortened(' '.join(str(groups).split()))}: allowed is one for each of {images} images")


def check_prefix(prefix: int | None, sites: list[Site]) -> None:
    """Raises UserError where other tokens were found than those that the user states."""
    for site in sites:
        if prefix is not None and site.layout is not None and site.layout.others.tolist() not in ([], [*range(prefix)]):
            raise UserError(f"prefix={prefix}: {site} has others at {listed([*map(str, site.layout.others)])}")


def kept_images(layers: list[tuple[int, Any]]) -> int:
    """How many images' maps fit into `KEPT` bytes."""
    size = sum(4 * heads * layout.windows * math.prod(layout.grid) ** 2 for heads, layout in layers)
    return max(1, KEPT // size)


def check_program(network: Network, first: Output) -> None:
    """Holds the output for the first image against NumPy, for networks that JAX computes; UserError if they differ."""
    if network.is_torch:
        return
    model = nnx.clone(network.model)
    model.eval()
    graph, state = nnx.split(model)

    def pure(state: nnx.State, images: Any) -> Any:  # nnx.jit, remat and scan in it do not follow variables of outside
        return nnx.merge(graph, state)(images)

    program = str(jax.make_jaxpr(pure)(state, network.images[:1]))

    def check() -> bool:
        if (known := selfcheck.expected(pure, state, network.images[:1])) is None:
            return False
        narrow = "f16[" in program  # an array of bfloat16 or float16, whatever the parameters are
        tolerance = selfcheck.allowed("bfloat16" if narrow else "float32", "default", None)
        selfcheck.compare(f"outputs of {network.name}", first.array, as_output(network, known, 1).array, tolerance)
        return True

    selfcheck.once(f"inspect\n{program}", check)
