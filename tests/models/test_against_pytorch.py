"""The same networks written a second time in PyTorch: logits, gradients and training agree in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.interop.release import to_pytorch
from attn_cnn_jax.models.resnet import BLOCKS
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import losses

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test EXTRAS=test,torch")
from tests.support import torch_networks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("float64", "promotion")]

torch.set_num_threads(1)  # its idle threads would spin beside XLA's

ENCODINGS = {
    "quadratic": {"encoding": "quadratic"},
    "quadratic_generalized": {"encoding": "quadratic_generalized"},
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
}
SIZES = {"image_shape": (6, 8, 3), "num_classes": 5, "hidden_size": 12, "intermediate_size": 20, "num_layers": 2}


def pair(name):
    """The network of an encoding twice, with the same weights: ours in pieces, and PyTorch's."""
    config = attention_config(dtype="float64", num_heads=3, dropout=0.0, attention_dropout=0.0, **SIZES)
    config.model.update(ENCODINGS[name])
    skeleton, parameters, _ = split(create_model(config.model, rngs=nnx.Rngs(1)))
    # biases of LayerNorm start at special values: move everything a little
    keys = jax.random.split(jax.random.key(2), len(parameters))
    parameters = {
        n: p + 0.1 * jax.random.normal(k, p.shape, p.dtype) for k, (n, p) in zip(keys, parameters.items(), strict=True)
    }
    network = torch_networks.AttentionClassifier(name, num_heads=3, dropout=0.0, **SIZES).double()
    load(network, parameters)
    return config, skeleton, parameters, network


def load(network, *arrays, **kwargs):
    state = {k: torch.tensor(v.copy()) for group in arrays for k, v in to_pytorch(group, **kwargs).items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)


def batch(size, num_classes):
    generator = np.random.default_rng(3)
    return generator.normal(size=(4, *size)), generator.integers(0, num_classes, 4)


def relative_error(ours, theirs):
    return np.linalg.norm(np.asarray(ours) - theirs) / max(np.linalg.norm(theirs), 1e-300)


@pytest.mark.parametrize("name", ENCODINGS)
def test_logits_every_gradient_and_ten_steps_of_sgd_with_warmup_and_weight_decay_agree(name):
    config, skeleton, parameters, network = pair(name)
    images, labels = batch(SIZES["image_shape"], 5)
    config.optimizer.update({"warmup_fraction": 0.3, "weight_decay": 0.05, "learning_rate": 0.2})
    optimizer = create_optimizer(config.optimizer, learning_rate(config.optimizer, 10, 1))
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters, state):
        def loss(parameters):
            logits = join(skeleton, parameters, {})(jnp.asarray(images))[0]
            return losses(logits, jnp.asarray(labels))[0].mean(), logits

        (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value, logits, gradients

    sgd, rate = torch_networks.sgd_with_warmup(network, 0.2, 0.05, total_steps=10, warmup_steps=3)
    found = []
    for n in range(10):
        parameters, state, ours, logits, gradients = step(parameters, state)
        found.append(float(ours))
        for group in sgd.param_groups:
            group["lr"] = rate(n)
        sgd.zero_grad()
        theirs = network(torch.tensor(images))
        loss = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
        loss.backward()
        if n == 0:
            assert relative_error(logits, theirs.detach().numpy()) < 1e-10
            assert_same_gradients(to_pytorch(gradients), dict(network.named_parameters()))
        sgd.step()
        assert abs(found[-1] - loss.item()) < 1e-8
    assert found[-1] < 0.9 * found[0]  # it did train


def assert_same_gradients(ours, named):
    assert ours.keys() == named.keys()
    # One scale for the network: gradients that are zero in exact arithmetic (a key's bias) are rounding alone.
    scale = max(np.linalg.norm(g) for g in ours.values())
    for key, parameter in named.items():
        difference = np.linalg.norm(ours[key] - parameter.grad.numpy())
        assert difference <= 1e-10 * max(np.linalg.norm(ours[key]), 1e-4 * scale), key


def test_resnet_agrees_with_pytorch_and_trains_on_batch_statistics():
    config = resnet_config(depth=10, width=8, dtype="float64").model
    skeleton, parameters, statistics = split(create_model(config, rngs=nnx.Rngs(0)))
    statistics = {n: x + 0.5 if n.endswith("var") else x + 0.1 for n, x in statistics.items()}
    network = torch_networks.ResNet(10, width=8).double()
    load(network, parameters, statistics, blocks_a_stage=BLOCKS[10])
    images, _ = batch((16, 12, 3), 10)

    @jax.jit
    def forward(images):
        model = join(skeleton, parameters, statistics)
        evaluated = model(images)[0]
        return evaluated, model(images, key=jax.random.key(0))[0], split(model)[2]

    evaluated, trained, moved = forward(jnp.asarray(images))
    assert relative_error(evaluated, network.eval()(torch.tensor(images)).detach().numpy()) < 1e-10
    assert relative_error(trained, network.train()(torch.tensor(images)).detach().numpy()) < 1e-10
    theirs = network.state_dict()
    means = {n: x for n, x in moved.items() if n.endswith("mean")}
    # Variances differ by design: PyTorch's is the unbiased one.
    for key, mean in to_pytorch(means, blocks_a_stage=BLOCKS[10]).items():
        chex.assert_trees_all_close(mean, theirs[key].numpy(), rtol=1e-10, atol=1e-12)
