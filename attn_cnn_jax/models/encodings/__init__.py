"""Position encodings, one file each with everything that the package needs to know of it, and their registry.

Importing this package registers those of the paper; the decorator `register` adds one of your own.
"""

from attn_cnn_jax.models.attention.encoding import (
    Encoding,
    FactorisingEncoding,
    Option,
    Projections,
    Sizes,
)
from attn_cnn_jax.models.encodings.absolute import Absolute, AbsoluteLearned, AbsoluteSinusoidal
from attn_cnn_jax.models.encodings.content import Content, QueryKey
from attn_cnn_jax.models.encodings.learned import Learned, RelativeTables
from attn_cnn_jax.models.encodings.quadratic import CentredEncoding, Quadratic
from attn_cnn_jax.models.encodings.quadratic_generalized import GeneralizedQuadratic
from attn_cnn_jax.models.encodings.registry import REGISTRY, encoding_class, register
from attn_cnn_jax.models.encodings.relative import Relative

__all__ = [
    "REGISTRY",
    "Absolute",
    "AbsoluteLearned",
    "AbsoluteSinusoidal",
    "CentredEncoding",
    "Content",
    "Encoding",
    "FactorisingEncoding",
    "GeneralizedQuadratic",
    "Learned",
    "Option",
    "Projections",
    "Quadratic",
    "QueryKey",
    "Relative",
    "RelativeTables",
    "Sizes",
    "encoding_class",
    "register",
]
