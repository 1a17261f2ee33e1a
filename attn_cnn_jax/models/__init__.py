"""The networks: attention layers, position encodings, the attention classifier, the ResNet; and pruning of heads."""

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.resnet import ResNet

__all__ = ["AttentionClassifier", "ResNet", "SelfAttention"]
