"""The paper's theorem: convolutions to attention, attention to convolutions, and the errors of both."""

from attn_cnn_jax.theorem.bounds import alpha_exact, attention_bound, output_bound, sharpness_for
from attn_cnn_jax.theorem.learning import learn_convolution, random_kernel
from attn_cnn_jax.theorem.span import mixing, residuals, value_maps
from attn_cnn_jax.theorem.to_attention import conv_to_attention, convolutions_to_attention
from attn_cnn_jax.theorem.to_convolution import attention_to_conv, position_attention

__all__ = [
    "alpha_exact",
    "attention_bound",
    "attention_to_conv",
    "conv_to_attention",
    "convolutions_to_attention",
    "learn_convolution",
    "mixing",
    "output_bound",
    "position_attention",
    "random_kernel",
    "residuals",
    "sharpness_for",
    "value_maps",
]
