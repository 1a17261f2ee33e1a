"""The same networks in PyTorch, computed as the authors' release does: full probabilities, applied by `einsum`.

On the CPU, or on a GPU where JAX uses one too. Imported only where PyTorch is installed.
"""

import contextlib
from collections.abc import Callable

import jax
import torch
from ml_collections import ConfigDict

from tests.support import torch_networks

# As XLA's programs do. Far keys of local heads have denormal probabilities, with which an Intel Xeon takes four to nine
# times as long; before the first product, since threads that are there keep what they have.
torch.set_flush_denormal(True)

ENCODINGS = {
    ("quadratic", False): "quadratic",
    ("quadratic_generalized", False): "quadratic_generalized",
    ("learned", False): "learned",
    ("learned", True): "learned_content",
}


def device() -> str:
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def wait() -> None:
    """Waits for what was started."""
    if device() == "cuda":
        torch.cuda.synchronize()


def network_of(model: ConfigDict) -> torch.nn.Module:
    """The network that `config.model` describes, with its dropout."""
    if device() == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as JAX's default is
    network = torch_networks.AttentionClassifier(
        ENCODINGS[model.encoding, model.content],
        image_shape=tuple(model.image_shape),
        num_classes=model.num_classes,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        downsample=model.downsample,
        dropout=model.dropout,
    )
    for module in network.modules():
        if isinstance(module, torch_networks.SelfAttention):
            module.dropout.p = model.attention_dropout
    return network.to(device())


def autocast(dtype: str) -> contextlib.AbstractContextManager:
    """Computes in that type as PyTorch does it, parameters in float32."""
    return contextlib.nullcontext() if dtype == "float32" else torch.autocast(device(), getattr(torch, dtype))


def training(config: ConfigDict, *, compiled: bool) -> Callable[[int], None]:
    """`train(count)`: that many steps, on images in memory, without augmentation (in its favour)."""
    network = network_of(config.model).train()
    optimizer, _ = torch_networks.sgd_with_warmup(network, config.optimizer.learning_rate, 1e-4, 100, 5)
    forward = torch.compile(network) if compiled else network
    images = torch.randn(config.train.batch_size, *config.model.image_shape, device=device())
    labels = torch.zeros(config.train.batch_size, dtype=torch.long, device=device())

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            with autocast(config.model.dtype):
                loss = torch.nn.functional.cross_entropy(forward(images), labels)
            loss.backward()
            optimizer.step()
        wait()

    return train


def inference(config: ConfigDict, *, compiled: bool) -> Callable[[int], None]:
    """`predict(count)`: the logits of a batch, that many times."""
    network = network_of(config.model).eval()
    forward = torch.compile(network) if compiled else network
    images = torch.randn(config.train.batch_size, *config.model.image_shape, device=device())

    def predict(count: int) -> None:
        with torch.inference_mode(), autocast(config.model.dtype):
            for _ in range(count):
                forward(images)
        wait()

    return predict
