"""Recorded positions: centres of heads from their parameters, or from the attention of the central pixel."""

import numpy as np
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.positions import create_recorder, read_positions


def network_of(seed, **model):
    """A small network's part of a configuration, and the network; by default of 8x8 pixels, two by two."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 2, "num_heads": 4, "downsample": 2}
    described = attention_config(**small | {"image_shape": (8, 8, 1)} | model).model
    return described, create_model(described, rngs=nnx.Rngs(seed))


def test_they_are_those_of_the_parameters_or_of_the_central_pixel(tmp_path):
    for encoding, content in (("quadratic", False), ("learned", True)):
        model, network = network_of(1, encoding=encoding, content=content)
        skeleton, arrays, _ = split(network)
        create_recorder(model, skeleton, tmp_path, -1)(0, 0.0, arrays)
        for n, layer in enumerate(read_positions(tmp_path)[0]["layers"]):
            if encoding == "quadratic":
                expected = arrays[f"blocks.{n}.attention.position.centre"]
            else:  # positions alone: the same parameters without content
                alone, network = network_of(2, encoding=encoding)
                skeleton, own, statistics = split(network)
                network = join(skeleton, own | {name: arrays[name] for name in own}, statistics)
                attention = network.attention(alone.image_shape)[n][:, 2, 2]
                expected = moments.centre_of_mass(np.asarray(attention)) - 2
                np.testing.assert_allclose(layer["covariance"], moments.covariance(attention), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(layer["centre"], expected, rtol=1e-4, atol=1e-4)


def test_of_images_that_are_not_square_they_are_those_of_their_central_pixel(tmp_path):
    model, network = network_of(0, encoding="learned", image_shape=(12, 8, 1), num_layers=1)
    skeleton, arrays, _ = split(network)
    create_recorder(model, skeleton, tmp_path, -1)(0, 0.0, arrays)
    expected = moments.centre_of_mass(np.asarray(network.attention(model.image_shape)[0][:, 3, 2])) - (3, 2)
    found = read_positions(tmp_path)[0]["layers"][0]["centre"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
