"""The axis letters of all signatures, and the array types that many of them share.

Letters, the same in every module, docstring and einsum:

- `b` image of a batch, `n` image or item of a set;
- `H W C` rows, columns and colour channels of an image; `H W` also rows and columns of the pixels that attention
  works on, after the down-sampling;
- `i j` row and column of a query pixel, `k l` of a key pixel; `q` a flattened query pixel, `p` a flattened key pixel;
- `h` head, `d` input channel, `c` channel of a head (head size `D_h`), `o` output channel;
- `s` shift `delta = key - query` along one axis, `r t` row and column of a convolution's kernel.

Shapes are written with them: `Float[Array, "b H W d"]`. The tests check every annotated shape (jaxtyping, beartype).
"""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

AnyArray = Array | np.ndarray

Images = UInt8[AnyArray, "b H W C"]  # images as data sets have them
Labels = Int[AnyArray, "b"]
Activations = Float[Array, "b H W d"]

# Attention of one layer, query pixel then key pixel; the same for all images, or one per image.
SharedAttention = Float[AnyArray, "h i j k l"]
ContentAttention = Float[AnyArray, "b h i j k l"]
Attention = SharedAttention | ContentAttention

Key = PRNGKeyArray
Shape = tuple[int, ...]
Grid = tuple[int, int]  # rows and columns of pixels

# By dotted name, such as `blocks.0.attention.position.centre`. On their way to and from files they are NumPy arrays,
# and shapes alone where a network is described without being created.
if TYPE_CHECKING:
    Arrays = dict[str, jax.Array]
else:
    Arrays = dict[str, jax.Array | np.ndarray | jax.ShapeDtypeStruct]
