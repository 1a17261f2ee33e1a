"""What is computed for a picture: score functions, attention kernels, networks."""

from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.resnet import ResNet

__all__ = ["AttentionClassifier", "ResNet", "create_model"]


def create_model(config: ConfigDict, *, rngs: nnx.Rngs) -> AttentionClassifier | ResNet:
    """Builds the network that a configuration's `model` part describes.

    Args:
      config: `config.model` of any file in configs/.
      rngs: source of the initial parameters, `nnx.Rngs(seed)`.
    """
    return (ResNet if config.name == "resnet" else AttentionClassifier)(config, rngs=rngs)
