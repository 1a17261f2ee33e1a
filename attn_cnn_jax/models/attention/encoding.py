"""What an encoding states: its parameters, and the scores that it adds; and the registry, `config.model.encoding`.

An encoding adds up to two kinds of score terms, each under a name: `position_terms`, of the two pixels alone, and
`content_terms`, of what the image shows there. The softmax over keys of their sum is the attention. A score that is a
row score plus a column score factorises exactly: see `FactorisingEncoding`.

Analysis, figures, the page and pruning work with any encoding through these members, and have tables of their own for
what they know beyond.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.scores import MergedMaps
from attn_cnn_jax.options import REGISTRY, Option

Rows = Int[Array, " i"]  # of query pixels, consecutive
PositionTerms = dict[str, Float[Array, "h i j k l"]]  # scores by name


class Sizes(NamedTuple):
    """What an encoding is made for: `N_h`, `D`, `D_h`, rows and columns of pixels, type of activations; the layer."""

    num_heads: int
    hidden_size: int
    head_size: int
    grid: Grid
    dtype: DTypeLike
    layer: int = 0
    num_layers: int = 1


class Projections(NamedTuple):
    """Queries and keys of all heads."""

    query: Float[Array, "b h H W c"]
    key: Float[Array, "b h H W c"]


def at_rows(x: Float[Array, "b h H W c"], rows: Rows) -> Float[Array, "b h i W c"]:
    """Consecutive rows, such as of queries, by a slice: looking up each costs more than the scores of all rows."""
    return jax.lax.dynamic_slice_in_dim(x, rows[0], len(rows), axis=2)


class Encoding(nnx.Module):
    """Base class of all encodings; a subclass overrides what applies to it.

    What differs from head to head, also a constant such as a fixed slope, is an `nnx.Param` with a `head_axis`, so that
    pruned heads take theirs along. `jax.lax.stop_gradient` where it is used, and `not_decayed`, keep a constant fixed.

    Attributes:
      options: configuration keys that the encoding reads, by name.
      head_axis: by parameter, the axis that counts heads, alone or together with the channels of a head.
      not_decayed: parameters that weight decay leaves alone.
    """

    options: ClassVar[Mapping[str, Option]] = {}
    head_axis: ClassVar[Mapping[str, int]] = {}
    not_decayed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> "Encoding":
        """The encoding of a layer of these sizes; `options` are the values of those in the configuration.

        By default the constructor takes what it has arguments for, by the names in `Sizes` and of options. UserError
        for sizes or options that do not go together.
        """
        given: dict[str, Any] = sizes._asdict() | options | {"rngs": rngs}
        return cls(**{name: given[name] for name in inspect.signature(cls.__init__).parameters if name in given})

    @classmethod
    def accepts_content(cls) -> bool:
        """Whether `q . k / sqrt(D_h)` may be added: to encodings without content terms of their own."""
        # `nnx.tabulate` wraps the methods of classes that it looks at.
        return inspect.unwrap(cls.content_terms) is inspect.unwrap(Encoding.content_terms)

    @property
    def depends_on_content(self) -> bool:
        """Whether scores read the image."""
        return not self.accepts_content()

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        """Scores of the pixels in `query_rows`, by name."""
        return {}

    def project(self, x: Float[Array, "b H W d"]) -> Any:
        """What content scores read of images, such as queries and keys: arrays with images first, computed once."""
        return None

    def content_terms(self, projections: Any, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        """Scores of consecutive rows that depend on the image, by name; they broadcast to `(b, h, i, j, k, l)`."""
        return {}

    def rescale(self, rows: float, columns: float) -> None:
        """Changes parameters in place for images of so many times the rows and columns of those seen in training.

        Scores at a shift of as many times the length are then what they were, as nearly as the encoding can.
        """

    def merged_content(self) -> MergedMaps | None:
        """Maps that give all content terms, up to a constant per query; None where no cheaper ones do."""
        return None


class FactorisingEncoding(Encoding):
    """An encoding whose score is a row score plus a column score: its softmax factorises exactly."""

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        """Row scores and column scores."""
        raise NotImplementedError

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        row, column = self.axis_scores(height, width)
        return {"position": row[:, query_rows][:, :, None, :, None] + column[:, None, :, None, :]}


EncodingClass = TypeVar("EncodingClass", bound=type[Encoding])


def register(name: str) -> Callable[[EncodingClass], EncodingClass]:
    """Class decorator: makes an encoding available as `config.model.encoding=NAME`."""

    def add(encoding: EncodingClass) -> EncodingClass:
        known = REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (encoding.__module__, encoding.__qualname__):
            raise UserError(f"encoding {name!r} is registered twice, by {known.__module__} and {encoding.__module__}")
        REGISTRY[name] = encoding
        return encoding

    return add


def encoding_class(name: str) -> type[Encoding]:
    """The class registered under a name, else UserError."""
    if name not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        advice = "if it is your own, import the file that registers it first, --load=FILE"
        raise UserError(f"encoding {name!r} is not registered: allowed are {known}\n{advice}")
    return REGISTRY[name]


def check_encodings(position: Encoding, content: Encoding | None, num_heads: int, hidden_size: int) -> None:
    """Raises UserError unless encodings go together and are for this number of heads and these channels."""
    if content is not None and not content.depends_on_content:
        kind = type(content).__name__
        raise UserError(f"content={kind}(...): it does not read the image; give one such as Content(...)")
    if content is not None and not position.accepts_content():
        raise UserError(f"content: {type(position).__name__} has content scores of its own; leave content out")
    for name, encoding in (("position", position), ("content", content)):
        if encoding is None:
            continue
        terms = jax.eval_shape(lambda encoding=encoding: encoding.position_terms(1, 1, jnp.arange(1)))
        counts = {term.shape[0] for term in terms.values()} | {getattr(encoding, "num_heads", num_heads)}
        if wrong := counts - {num_heads}:
            raise UserError(f"{name} is an encoding for {max(wrong)} heads, the layer has num_heads={num_heads}")
        for kernel in ("query", "key"):
            features = getattr(getattr(encoding, kernel, None), "in_features", hidden_size)
            if features != hidden_size:
                raise UserError(f"{name} reads {features} channels, the layer has hidden_size={hidden_size}")
