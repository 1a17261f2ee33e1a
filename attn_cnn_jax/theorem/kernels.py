"""Kernels of grouped convolutions and of convolutions over patches, written as plain ones."""

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.errors import UserError


def ungrouped(kernel: Float[AnyArray, "*axes d o"], groups: int) -> Float[np.ndarray, "*axes D o"]:
    """The kernel `(*axes, D_in, D_out)` of a grouped convolution's `(*axes, D_in / groups, D_out)`, zero across groups.

    A depth-wise convolution has as many groups as channels.
    """
    kernel = np.asarray(kernel)
    *axes, inputs, outputs = kernel.shape
    if groups < 1 or outputs % groups:
        raise UserError(f"groups={groups!r}: allowed is a divisor of the {outputs} output channels")
    full = np.zeros((*axes, groups, inputs, groups, outputs // groups), kernel.dtype)
    for n, part in enumerate(np.split(kernel, groups, axis=-1)):
        full[..., n, :, n, :] = part
    return full.reshape(*axes, groups * inputs, outputs)


def over_patches(
    kernel: Float[AnyArray, "*axes d o"], patch: int, dilation: tuple[int, int] = (1, 1)
) -> Float[np.ndarray, "R T D O"]:
    """The kernel that a convolution with "SAME" padding has where tokens are patches of `patch x patch` pixels.

    A token holds the channels of its pixels in the order (row, column, channel), as space-to-depth leaves them:
    `D = patch^2 D_in`. For an odd K there are `2 ceil((K - 1) / (2 patch)) + 1` patches per axis; each slice is the
    block of the convolution's Toeplitz matrix from one patch to another (Li et al., arXiv 2111.01353).
    """
    kernel = np.asarray(kernel)
    if patch < 1 or kernel.ndim != 4:
        raise UserError(
            f"patch={patch!r} for a kernel of {kernel.ndim - 2} axes: allowed is an integer from 1, and 2 axes"
        )
    size = kernel.shape[0], kernel.shape[1]
    # From the first to the last pixel that a query reads, as "SAME" centres a window: one more after it if it is even.
    spans = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    before, after = np.array([[-(-pixels // patch) for pixels in (span // 2, -(-span // 2))] for span in spans]).T
    inputs, outputs = kernel.shape[2:]
    blocks = np.zeros((*(before + after + 1), patch, patch, inputs, patch, patch, outputs), kernel.dtype)
    for entry in np.ndindex(*size):
        shift = np.multiply(dilation, entry) - np.array(spans) // 2
        for query in np.ndindex(patch, patch):
            neighbour, key = np.divmod(query + shift, patch)
            blocks[(*(neighbour + before), *key, slice(None), *query)] = kernel[entry]
    return blocks.reshape(*(before + after + 1), patch**2 * inputs, patch**2 * outputs)
