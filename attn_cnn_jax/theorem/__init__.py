"""The paper's theorem: convolutions to attention, attention to convolutions, and the errors of both."""

from attn_cnn_jax.theorem.bounds import alpha_exact, attention_bound, output_bound, sharpness_for, table_bound
from attn_cnn_jax.theorem.expressible import expresses
from attn_cnn_jax.theorem.kernels import over_patches
from attn_cnn_jax.theorem.learning import learn_convolution, random_kernel
from attn_cnn_jax.theorem.rank import effective_heads, few_heads, heads_needed
from attn_cnn_jax.theorem.rope import rope_bound, rope_sharpness
from attn_cnn_jax.theorem.span import mixing, residuals, value_maps
from attn_cnn_jax.theorem.to_attention import conv_to_attention, convolutions_to_attention
from attn_cnn_jax.theorem.to_convolution import attention_to_conv, position_attention

__all__ = [
    "alpha_exact",
    "attention_bound",
    "attention_to_conv",
    "conv_to_attention",
    "convolutions_to_attention",
    "effective_heads",
    "expresses",
    "few_heads",
    "heads_needed",
    "learn_convolution",
    "mixing",
    "output_bound",
    "over_patches",
    "position_attention",
    "random_kernel",
    "residuals",
    "rope_bound",
    "rope_sharpness",
    "sharpness_for",
    "table_bound",
    "value_maps",
]
