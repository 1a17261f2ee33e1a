"""Position encodings, with everything that the package needs to know of each.

Importing this package registers those of the paper; the decorator `register` adds one of your own.
"""

from attn_cnn_jax.models.attention.encoding import REGISTRY as REGISTRY
from attn_cnn_jax.models.attention.encoding import Encoding as Encoding
from attn_cnn_jax.models.attention.encoding import FactorisingEncoding as FactorisingEncoding
from attn_cnn_jax.models.attention.encoding import Option as Option
from attn_cnn_jax.models.attention.encoding import Projections as Projections
from attn_cnn_jax.models.attention.encoding import Sizes as Sizes
from attn_cnn_jax.models.attention.encoding import encoding_class as encoding_class
from attn_cnn_jax.models.attention.encoding import register as register
from attn_cnn_jax.models.encodings.absolute import Absolute as Absolute
from attn_cnn_jax.models.encodings.content import Content as Content
from attn_cnn_jax.models.encodings.content import QueryKey as QueryKey
from attn_cnn_jax.models.encodings.learned import Learned as Learned
from attn_cnn_jax.models.encodings.quadratic import CentredEncoding as CentredEncoding
from attn_cnn_jax.models.encodings.quadratic import GeneralizedQuadratic as GeneralizedQuadratic
from attn_cnn_jax.models.encodings.quadratic import Quadratic as Quadratic
from attn_cnn_jax.models.encodings.relative import Relative as Relative
