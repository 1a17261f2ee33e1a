"""What tests of the theorem compare: convolutions by NumPy, and a layer as one compiled program."""

import jax
import numpy as np
from flax import nnx

from attn_cnn_jax import reference


@nnx.jit
def apply(layer, x):
    """`layer(x)`: much less to compile than one program per operation."""
    return layer(x)


def convolution(x, kernel, *, stride=1, dilation=1, padding="SAME", groups=1):
    """A convolution in one, two or three dimensions, channels last."""
    axes = kernel.ndim - 2
    space, of_axes = "DHW"[-axes:], lambda number: tuple(np.broadcast_to(number, axes).tolist())

    def convolve(x, kernel):
        layout = f"N{space}C", f"{space}IO", f"N{space}C"
        options = {"rhs_dilation": of_axes(dilation), "dimension_numbers": layout, "feature_group_count": groups}
        return jax.lax.conv_general_dilated(x, kernel, of_axes(stride), padding, **options)

    return reference.evaluate(convolve, np.asarray(x), np.asarray(kernel))
