"""What is computed for a picture: attention, encodings, networks."""

from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.resnet import ResNet

__all__ = ["AttentionClassifier", "ResNet"]
