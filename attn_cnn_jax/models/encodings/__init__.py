"""How a score knows about positions: one file per encoding with all it knows about itself; the registry.

Importing this package registers the encodings that come along. One's own: `register` of base.py as a decorator.
"""

from attn_cnn_jax.models.attention.encoding import (
    Encoding,
    FactorisingEncoding,
    MultiplyAdds,
    Option,
    Projections,
    Sizes,
)
from attn_cnn_jax.models.encodings.absolute import Absolute, AbsoluteLearned, AbsoluteSinusoidal
from attn_cnn_jax.models.encodings.content import Content, ContentAlone
from attn_cnn_jax.models.encodings.learned import Learned, RelativeTables
from attn_cnn_jax.models.encodings.quadratic import Quadratic
from attn_cnn_jax.models.encodings.quadratic_generalized import GeneralizedQuadratic
from attn_cnn_jax.models.encodings.registry import REGISTRY, encoding_class, register
from attn_cnn_jax.models.encodings.relative import Relative

__all__ = [
    "REGISTRY",
    "Absolute",
    "AbsoluteLearned",
    "AbsoluteSinusoidal",
    "Content",
    "ContentAlone",
    "Encoding",
    "FactorisingEncoding",
    "GeneralizedQuadratic",
    "Learned",
    "MultiplyAdds",
    "Option",
    "Projections",
    "Quadratic",
    "Relative",
    "RelativeTables",
    "Sizes",
    "encoding_class",
    "register",
]
