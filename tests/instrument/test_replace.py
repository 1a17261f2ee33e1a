"""Heads replaced for good: networks of each library that compute what `replaced` measures."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from tests.instrument.test_inspect import SmallViT
from tests.instrument.test_layout import between_tokens, einsum, fused


def products(query, key, value):
    return (query @ key.mT / 2).softmax(dim=-1) @ value


@pytest.mark.torch
@pytest.mark.parametrize("kernel_size", [3, 4, 9])  # the last of all shifts along 3x5 patches
@pytest.mark.parametrize("attend", [fused, products])
@pytest.mark.parametrize("tokens", [lambda x: x, between_tokens])
def test_a_network_of_pytorch_computes_what_was_measured(attend, tokens, kernel_size, network, torch):
    model, images = network(attend, tokens, lambda x: x), torch.randn(3, 3, 12, 20)
    report = inspect(model, images)
    (row,) = report.curve([4], kernel_size=kernel_size)
    own, replaced = model(images), report.replaced_network(4, kernel_size=kernel_size)
    change = float((replaced(images) - own).detach().abs().max() / own.detach().abs().max())
    assert row["logits"] == pytest.approx(change, rel=1e-4, abs=1e-5)
    assert row["logits"] > 1e-3


@pytest.mark.slow
@pytest.mark.torch
def test_it_is_trained_saved_and_exported_as_other_networks(network, torch):
    model, images = network(fused), torch.randn(2, 3, 12, 20)
    report = inspect(model, images)
    replaced = report.replaced_network([(0, 1), (1, 0), (1, 1), (1, 2)])
    before = replaced(images)
    program = torch.export.export(replaced, (images,))
    np.testing.assert_allclose(program.module()(images).detach(), before.detach(), atol=1e-6)
    before.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in replaced.convolutions.parameters())
    file = io.BytesIO()
    torch.save(replaced.state_dict(), file)
    assert len(torch.load(io.BytesIO(file.getvalue()))) == len(model.state_dict()) + 2 * 2
    with pytest.raises(UserError, match=r"pairs of layer and head"):
        report.replaced_network([(0, 3)])


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the exporter that needs no further package
def test_onnx_runtime_computes_the_same(network, torch, tmp_path):
    onnxruntime, path = pytest.importorskip("onnxruntime"), tmp_path / "network.onnx"
    images = torch.randn(2, 3, 12, 20)
    replaced = inspect(network(fused, between_tokens), images).replaced_network(3)
    torch.onnx.export(replaced, (images,), path, dynamo=False)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    np.testing.assert_allclose(found, replaced(images).detach(), atol=1e-5)


@pytest.mark.torch
def test_what_cannot_be_replaced_for_good_is_refused(network, windowed, torch):
    with pytest.raises(UserError, match="einsum"):
        inspect(network(einsum), torch.randn(2, 3, 12, 20)).replaced_network(2)
    with pytest.raises(UserError, match="windows"):
        inspect(windowed(), torch.randn(2, 3, 32, 32)).replaced_network(2)


@pytest.mark.parametrize("kernel_size", [3, 4])
def test_a_network_of_nnx_computes_what_was_measured(kernel_size):
    model, x = SmallViT(nnx.Rngs(0)), np.random.default_rng(0).normal(size=(3, 16, 12)).astype(np.float32)
    report = inspect(model, x)
    (row,) = report.curve([4], kernel_size=kernel_size)
    own, replaced = model(x), report.replaced_network(4, kernel_size=kernel_size)
    found = nnx.jit(lambda replaced, x: replaced(x))(replaced, jnp.asarray(x))
    assert row["logits"] == pytest.approx(float(abs(found - own).max() / abs(own).max()), rel=1e-4, abs=1e-5)
    first = report.replaced_network(
        [(0, 0), (0, 2), (0, 0)], kernel_size=kernel_size
    )  # later ones do not reach the class token
    gradient = nnx.jit(nnx.grad(lambda network, x: jnp.square(network(x)).sum()))(first, jnp.asarray(x))
    assert all(abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["weights"]))
