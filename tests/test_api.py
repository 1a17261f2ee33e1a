"""The functions of the package: a network of explicit values, and what a run gives."""

import jax
import numpy as np
import pytest
from flax import nnx

import attn_cnn_jax
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.run import Run


def test_intermediates_come_as_arrays_joined_over_batches():
    sizes = {"image_shape": (4, 4, 1), "hidden_size": 8, "intermediate_size": 8, "num_layers": 2, "downsample": 1}
    config = attention_config(encoding="learned", content=True, num_heads=2, **sizes)
    config.dataset.name = "digits"
    run = Run(config, 40, create_model(config.model, rngs=nnx.Rngs(1)))
    images = np.random.default_rng(2).integers(0, 256, (5, 4, 4, 1), np.uint8)
    found = run.intermediates(images, batch_size=2)
    logits, expected = jax.jit(run.model)(run.normalised(images))
    np.testing.assert_allclose(found["logits"], logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["embedding"], expected["embedding"], rtol=0, atol=1e-5)
    for ours, theirs in zip(found["layers"], expected["layers"], strict=True):
        np.testing.assert_allclose(ours["attention"], theirs["attention"], rtol=0, atol=1e-5)
        for name, scores in theirs["position_scores"].items():  # the same for all pictures
            np.testing.assert_allclose(ours["position_scores"][name], scores, rtol=0, atol=1e-5)


def test_a_network_of_explicit_values():
    model = attn_cnn_jax.create_model(image_shape=(4, 4, 1), num_layers=1, num_heads=2, hidden_size=8, downsample=1)
    assert [block.attention.num_heads for block in model.blocks] == [2]
    logits, _ = model(np.zeros((3, 4, 4, 1), np.float32))
    assert logits.shape == (3, 10)
    same, other = (attn_cnn_jax.create_model(hidden_size=8, num_layers=1, seed=seed) for seed in (0, 1))
    assert not np.array_equal(same.classifier.kernel[...], other.classifier.kernel[...])
    for values, said in (
        ({"num_head": 2}, r"did you mean config\.model\.num_heads"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"name": "vgg"}, "attention, resnet"),
        ({"gate": True}, "a gate weighs position and content"),
    ):
        with pytest.raises(UserError, match=said):
            attn_cnn_jax.create_model(**values)
