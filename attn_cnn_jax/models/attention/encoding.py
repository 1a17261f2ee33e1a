"""What every encoding answers for itself.

An encoding adds up to two kinds of score terms, each under a name: `position_terms`, of the two pixels alone, and
`content_terms`, of what the picture shows there. The softmax over keys of their sum is the attention. An encoding whose
score is a row score plus a column score factorises exactly: it gives `axis_scores`.

The rest of the package asks an encoding, and never its name: the classes' attributes and methods below are all there
is to override.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Grid, Shape
from attn_cnn_jax.models.attention.scores import MergedMaps

UNIFORM = 0.999  # share of the largest entropy possible above which attention counts as uniform


class Sizes(NamedTuple):
    """The layer that an encoding is made for.

    Attributes:
      num_heads: `N_h`.
      hidden_size: `D`, channels of the layer's input.
      head_size: `D_h`.
      grid: rows and columns of the pixels that the layer attends over.
      dtype: of activations; parameters are float32 or wider.
    """

    num_heads: int
    hidden_size: int
    head_size: int
    grid: Grid
    dtype: DTypeLike


class Option(NamedTuple):
    """A configuration key of an encoding, `config.model.KEY`: its default, a test, and what is allowed in words."""

    default: Any
    allows: Callable[[Any], bool]
    allowed: str


def number_from_0(value: Any) -> bool:
    """Whether the value of an option is a number from 0 to a million."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e6


def integer_from_0(value: Any) -> bool:
    """Whether the value of an option is an integer from 0 to 100,000."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000


class Projections(NamedTuple):
    """What scores read of pictures: queries and keys of all heads; None where unused."""

    query: Float[Array, "b h H W c"] | None = None
    key: Float[Array, "b h H W c"] | None = None

    @property
    def size(self) -> Grid:
        """Rows and columns of the pictures."""
        array = self.key if self.query is None else self.query
        assert array is not None
        return array.shape[2], array.shape[3]

    def queries(self, rows: Int[Array, " i"]) -> Float[Array, "b h i W c"]:
        """Queries of rows that follow each other."""
        assert self.query is not None
        # A slice: looking up each row costs more than the scores when all rows are asked for, the usual case.
        return jax.lax.dynamic_slice_in_dim(self.query, rows[0], len(rows), axis=2)


class Encoding(nnx.Module):
    """Base class of all encodings; a subclass overrides what applies to it.

    Attributes:
      factorises: whether the softmax of the position scores is a product of a row and a column softmax.
      accepts_content: whether `q . k / sqrt(D_h)` may be added; False where the encoding has content terms of its own.
      options: configuration keys that the encoding reads, by name.
      head_axis: for each parameter, by its name below the encoding, the axis that counts heads, alone or together with
        the channels of a head. Pruning takes heads out along it.
      positions: parameters that say where heads look; `config.start.freeze_positions` holds them.
      not_decayed: parameters that weight decay leaves alone.
      penalised: whether `config.optimizer.covariance_penalty` applies to it.
      has_tables: whether `tables` may be shared by all layers.
      release: for each parameter or module, its name in the authors' PyTorch release; empty where the release has no
        such encoding.
      release_content: whether the release has this encoding with content added.
    """

    factorises: ClassVar[bool] = False
    accepts_content: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Option]] = {}
    head_axis: ClassVar[Mapping[str, int]] = {}
    positions: ClassVar[tuple[str, ...]] = ()
    not_decayed: ClassVar[tuple[str, ...]] = ()
    penalised: ClassVar[bool] = False
    has_tables: ClassVar[bool] = False
    release: ClassVar[Mapping[str, str]] = {}
    release_content: ClassVar[bool] = False

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> "Encoding":
        """Returns the encoding of one layer.

        Args:
          sizes: of the layer.
          rngs: source of the initial parameters.
          tables: those of the first layer, where all layers share them (`has_tables`).
          **options: the values of `options` in the configuration.
        """
        raise NotImplementedError(f"{cls.__name__} has no create()")

    @classmethod
    def refusal(cls, model: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns the key of `config.model` that the encoding cannot work with and what is allowed, or None."""
        return None

    @classmethod
    def depends_on_content_with(cls, options: Mapping[str, Any]) -> bool:
        """Returns whether scores read the picture, given the encoding's options."""
        return not cls.accepts_content

    @property
    def depends_on_content(self) -> bool:
        """Whether scores read the picture."""
        return False

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "h i j k l"]]:
        """Scores of the pixels in `query_rows`, by name."""
        return {}

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        """Queries and keys of pictures."""
        return Projections()

    def content_terms(self, projections: Projections, query_rows: Int[Array, " i"]) -> dict[str, Float[Array, "..."]]:
        """Scores that depend on the picture, by name; they broadcast to `(b, h, i, j, k, l)`.

        Args:
          query_rows: rows that follow each other.
        """
        return {}

    def merged_content(self) -> MergedMaps | None:
        """Returns maps that give all content terms, up to a constant per query; None where no cheaper ones do."""
        return None

    def separate_terms(
        self, x: Float[Array, "b H W d"], query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "..."]]:
        """Returns `content_terms` of pictures, further apart where the equation has more terms than attention needs.

        What models give as the intermediates `separate_scores`; the sum is the same.
        """
        return self.content_terms(self.project(x), query_rows)

    @classmethod
    def in_release(cls, shapes: Mapping[str, Shape]) -> bool:
        """Returns whether a layer of the authors' release with arrays of these names and shapes has this encoding."""
        return bool(cls.release) and all(name in shapes for name in cls.release.values())

    @classmethod
    def grid_in_release(cls, shapes: Mapping[str, Shape]) -> Grid | None:
        """Rows and columns of pixels that the tables of such a layer reach across; None for any number."""
        return None

    # What analysis, figures and the page ask.

    def centres(self) -> Float[np.ndarray, "h 2"] | None:
        """Where heads look by their parameters, as shifts in pixels, row first; None without such parameters."""
        return None

    def start_on_grid(self, centre: Float[np.ndarray, "h 2"], sharpness: float) -> None:
        """Puts heads at these centres with one sharpness `alpha`; encodings with centres override it."""
        raise NotImplementedError(f"{type(self).__name__} has no centres")

    def recorded(self) -> dict[str, Float[np.ndarray, "..."]] | None:
        """Parameters that positions.jsonl records after every epoch; None records moments of the attention instead."""
        return None

    def measures(self) -> dict[str, Float[np.ndarray, " h"]]:
        """What `degenerate_heads` judges by, as one number per head, by name; empty where there are no such numbers."""
        return {}

    def degenerate_heads(self, grid: Grid) -> dict[int, str]:
        """Heads that learned nothing, with the reason: by default those whose position attention is uniform.

        Args:
          grid: rows and columns of pixels to attend over.
        """
        height, width = grid
        terms = self.position_terms(height, width, jnp.array([height // 2])).values()
        if not terms:
            return {}
        scores = np.asarray(sum(np.asarray(term, np.float64)[:, 0, width // 2] for term in terms))
        scores = scores.reshape(len(scores), -1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        entropy = -np.sum(probabilities * np.log(np.maximum(probabilities, 1e-300)), axis=1)
        most = math.log(height * width)
        return {
            head: f"uniform: entropy {value:.4f} of at most {most:.4f}"
            for head, value in enumerate(entropy)
            if value > UNIFORM * most
        }


class FactorisingEncoding(Encoding):
    """An encoding whose score is a row score plus a column score: its softmax factorises exactly."""

    factorises: ClassVar[bool] = True

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        """Row scores and column scores."""
        raise NotImplementedError(f"{type(self).__name__} has no axis_scores()")

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "h i j k l"]]:
        row, column = self.axis_scores(height, width)
        return {"position": row[:, query_rows][:, :, None, :, None] + column[:, None, :, None, :]}
