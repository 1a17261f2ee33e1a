"""Position encodings, with everything that the package needs to know of each.

Importing this package registers those of the paper; the decorator `register` adds one of your own.
"""

from attn_cnn_jax.models.attention.encoding import Encoding as Encoding
from attn_cnn_jax.models.attention.encoding import FactorisingEncoding as FactorisingEncoding
from attn_cnn_jax.models.attention.encoding import Projections as Projections
from attn_cnn_jax.models.attention.encoding import Sizes as Sizes
from attn_cnn_jax.models.attention.encoding import encoding_class as encoding_class
from attn_cnn_jax.models.attention.encoding import register as register
from attn_cnn_jax.models.encodings.absolute import Absolute as Absolute
from attn_cnn_jax.models.encodings.alibi import Alibi as Alibi
from attn_cnn_jax.models.encodings.alibi import ManhattanAlibi as ManhattanAlibi
from attn_cnn_jax.models.encodings.content import Content as Content
from attn_cnn_jax.models.encodings.content import QueryKey as QueryKey
from attn_cnn_jax.models.encodings.fire import Fire as Fire
from attn_cnn_jax.models.encodings.kerple import Kerple as Kerple
from attn_cnn_jax.models.encodings.learned import Learned as Learned
from attn_cnn_jax.models.encodings.lookhere import LookHere as LookHere
from attn_cnn_jax.models.encodings.pape import Pape as Pape
from attn_cnn_jax.models.encodings.pape import RotationInvariantPape as RotationInvariantPape
from attn_cnn_jax.models.encodings.quadratic import CentredEncoding as CentredEncoding
from attn_cnn_jax.models.encodings.quadratic import GeneralizedQuadratic as GeneralizedQuadratic
from attn_cnn_jax.models.encodings.quadratic import Quadratic as Quadratic
from attn_cnn_jax.models.encodings.relative import Relative as Relative
from attn_cnn_jax.models.encodings.rope import MixedRope as MixedRope
from attn_cnn_jax.models.encodings.rope import Rope as Rope
from attn_cnn_jax.options import REGISTRY as REGISTRY
from attn_cnn_jax.options import Option as Option
