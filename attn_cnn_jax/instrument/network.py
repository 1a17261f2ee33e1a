"""A network with the images that it looks at, of any library."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.instrument.adapters import Call, Seen, Visit, numbers
from attn_cnn_jax.instrument.adapters import nnx as nnx_adapter
from attn_cnn_jax.runs.run import Run

LIBRARIES = "a run of load_run, a Flax NNX module or a PyTorch module"
# What a network of somebody else's raises; what ends a run on purpose is none of these.
FOREIGN = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError)


class Network:
    """A run of this package, a Flax NNX or a PyTorch module, and its images; the user's object stays as it is.

    Attributes:
      name: of the network's class.
      images: as the network takes them, `(b, H, W, C)`, `(b, C, H, W)` or tokens `(b, n, d)`.
      placeless: calls whose queries were found to be no places of the image.
    """

    def __init__(self, model: Any, images: Any):
        self.name = type(model).__name__
        if isinstance(model, Run):
            model, images = model.model, model.normalised(images)
        self.model, self.is_torch = model, hasattr(model, "state_dict") and hasattr(model, "modules")
        if self.is_torch:
            from attn_cnn_jax.instrument.adapters import pytorch as adapter  # imports PyTorch, which the user has

            self.adapter = adapter
        elif isinstance(model, nnx.Module):
            self.adapter = nnx_adapter
        else:
            raise UserError(f"no attention was found in {self.name}: allowed is {LIBRARIES}")
        self.images = self.converted(images)
        self.placeless = set[int]()

    def __len__(self) -> int:
        return len(self.images)

    def converted(self, images: Any) -> Any:
        """Images as an array of the network's library; UserError for what makes none."""
        try:
            if self.is_torch:
                from torch import Tensor, from_numpy  # pyright: ignore[reportMissingImports]

                return images if isinstance(images, Tensor) else from_numpy(np.array(images))
            return jnp.asarray(images.detach().cpu().numpy() if hasattr(images, "detach") else images)
        except (TypeError, ValueError) as error:
            allowed = "allowed is an array or a tensor of numbers, images first"
            raise UserError(f"images= of {type(images).__name__} ({shortened(error)}): {allowed}") from error

    def run(self, visit: Visit, images: Any = None) -> Seen:
        """Runs the network on its images, or others; see adapters/__init__.py."""
        images, own = self.images if images is None else images, list[Exception]()

        def visited(call: Call) -> Any:
            try:
                return visit(call)
            except FOREIGN as error:  # ours, which is no fault of the network's
                own.append(error)
                raise

        try:
            return self.adapter.run(self.model, images, visited)
        except FOREIGN as error:
            if error in own:
                raise
            shape = tuple(images.shape)
            raise UserError(f"{self.name} did not run on images of shape {shape}: {shortened(error)}") from error

    @property
    def channels_first(self) -> bool:
        """Whether images are `(b, C, H, W)`."""
        first, last = self.images.shape[1] in (1, 3), self.images.shape[-1] in (1, 3)
        return self.is_torch if first == last else first

    @property
    def size(self) -> Grid | None:
        """Rows and columns of pixels; None for tokens."""
        if self.images.ndim == 3:
            return None
        shape = tuple(self.images.shape)
        return (shape[2], shape[3]) if self.channels_first else (shape[1], shape[2])

    def perturbed(self, masks: Bool[np.ndarray, "k H W"], draw: int = 0) -> Any:
        """The first image, the same with noise where each mask is true, and itself once more: `(k + 2, ...)`.

        Masks are of pixels, or of tokens row by row; `draw` is the number of the noise.
        """
        image = numbers(self.images[:1])
        # A seed that nobody draws images with: an image that is this noise would grow, which a layer norm undoes.
        noise = np.random.default_rng([1911, 3584 + draw]).normal(size=image.shape).astype(np.float32) * (
            image.std() or 1
        )
        if self.size is None:
            masks = masks.reshape(len(masks), -1)
        masks = masks[:, None] if self.size and self.channels_first else masks[..., None]
        return self.like(np.concatenate([image, np.where(masks, image + noise, image), image]))

    def with_featureless(self, grid: Grid, patch: Grid | None) -> Any:
        """The images, and one whose patches are all alike: the mean over images and over the patches of a grid.

        `patch` is their size in pixels, None where they fill the image.
        """
        images = numbers(self.images)
        if self.size is None:
            alike = np.broadcast_to(images.mean(axis=(0, 1)), images[:1].shape)
        else:
            moved = images if not self.channels_first else np.moveaxis(images, 1, -1)
            rows, columns = patch or (size // count for size, count in zip(self.size, grid, strict=True))
            m, n = self.size[0] // rows, self.size[1] // columns  # whole patches, where the network pads images
            patches = moved[:, : rows * m, : columns * n]
            patches = patches.reshape(len(images), m, rows, n, columns, -1).mean(axis=(0, 1, 3))
            times = self.size[0] // rows + 1, self.size[1] // columns + 1, 1
            alike = np.tile(patches, times)[None, : self.size[0], : self.size[1]]
            alike = np.moveaxis(alike, -1, 1) if self.channels_first else alike
        return self.like(np.concatenate([images, alike]))

    def like(self, array: np.ndarray) -> Any:
        """An array of NumPy in the library, type and place of the images."""
        if self.is_torch:
            from torch import from_numpy  # pyright: ignore[reportMissingImports]

            return from_numpy(array.astype(np.float32)).to(self.images)
        return jnp.asarray(array, self.images.dtype)
