"""Counts of parameters and FLOPs, against the paper and against what XLA counts."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.cli.summary import TABLE_1
from attn_cnn_jax.config import attention_config, create_model, resnet_config


def test_parameters_and_flops_are_those_of_table_1():
    """Attention adds 2.83 billion FLOPs to those of linear maps, with content 5.66 billion."""
    # position scores of the learned tables: layers, row and column shifts, channels, heads
    shifts = 2 * 6 * 2 * 31 * 400 * 9
    applied = 2 * 6 * 9 * 256**2 * 400  # multiply-adds twice; layers, heads, pairs of pixels, channels
    for name, (parameters, attention) in {
        "resnet18": (11_173_962, 0),
        "quadratic": (12_086_844, applied),
        "learned_rel": (12_278_682, applied + shifts),
        "learned_rel_content": (29_601_882, 2 * applied + shifts),
    }.items():
        model = load_config(name).model
        assert count_parameters(model) == parameters
        flops = count_flops(model)
        assert f"{flops.linear / 1e9:.2g}B" == TABLE_1[name][2]
        assert flops.full - flops.linear == attention
        # One map of 400 to 9 x 400 channels in the place of two, for 256 pixels in 6 layers.
        assert flops.full - flops.merged == (2 * 6 * 256 * 400 * 9 * 400 if "content" in name else 0)
    assert [short(n) for n in (applied, 2 * applied)] == ["2.83B", "5.66B"]


def test_parameters_of_other_published_networks():
    """Positions of 200 channels give the paper's 29.5 million; deep ResNets for CIFAR-10."""
    model = attention_config(encoding="learned", content=True, position_size=200).model
    assert count_parameters(model) == 29_505_882 == 29_601_882 - 6 * 2 * (31 + 9) * 200
    for depth, count in ((50, 23_520_842), (152, 58_156_618)):
        assert count_parameters(resnet_config(depth=depth).model) == count


def flops_of_xla(model):
    """What XLA counts in the compiled program for one image; nothing is allocated."""
    graph, state = nnx.split(nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0))))
    image = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    predict = jax.jit(lambda state, image: nnx.merge(graph, state, copy=True)(image)[0])
    return predict.lower(state, image).compile().cost_analysis()["flops"]


ATTENTION_NETWORKS = [
    {"encoding": "quadratic"},
    {"encoding": "learned"},
    {"encoding": "learned", "content": True, "head_size": 128},
    {"encoding": "relative"},
    {"encoding": "absolute_sinusoidal", "num_heads": (2, 3), "num_layers": 2},
    {"encoding": "content"},
]


@pytest.mark.parametrize("network", ATTENTION_NETWORKS, ids=lambda network: "-".join(map(str, network.values())))
def test_full_count_of_attention_networks_is_xlas_up_to_elementwise_work(network):
    """On a grid that is not square, so that a swap of its sides shows.

    XLA counts elementwise work too, some ten FLOPs a head and pair of pixels where a product with its 320
    channels takes 640, and twice where it fuses it into two readers: never less than our count, and at most 3% more.
    """
    sizes = {"hidden_size": 320, "intermediate_size": 400, "num_heads": 3, "num_layers": 1, "image_shape": (16, 32, 3)}
    model = attention_config(implementation="dense", **(sizes | network)).model
    full = count_flops(model).full
    assert full <= flops_of_xla(model) <= 1.03 * full


def test_full_count_of_resnets_is_xlas_up_to_padding():
    """XLA leaves out products with the padding's zeros: (2/3)/side of an axis, 4% of the last stage's 32 x 28 pixels.

    It counts batch norms besides. On large images the sum of both stays below 2.5%.
    """
    model = resnet_config(depth=18, image_shape=(256, 224, 3)).model
    assert count_flops(model).full == pytest.approx(flops_of_xla(model), rel=0.025)


def test_a_resnet_of_attention_averages_padded_images_in_every_head():
    """By hand: heads x queries x padded keys x channels; the stem, two convolutions per block, three shortcuts."""
    sizes = {"depth": 10, "width": 4, "image_shape": (9, 7, 3)}
    averages = 9 * 63 * 99 * 3 + 2 * 9 * 63 * 99 * 4  # stem and first block
    # the second stage to the last: 9x7, 5x4, 3x2 and 2x1 pixels
    for (queries, keys, padded), (small, small_padded), channels in (
        ((20, 63, 99), (20, 42), 4),
        ((6, 20, 42), (6, 20), 8),
        ((2, 6, 20), (2, 12), 16),
    ):
        averages += 9 * queries * padded * channels + queries * keys * channels
        averages += 9 * small * small_padded * 2 * channels
    attention, convolutions = (
        count_flops(resnet_config(**sizes, layers=kind).model) for kind in ("attention", "convolution")
    )
    assert convolutions.full == convolutions.linear == attention.linear
    assert attention.full - attention.linear == 2 * averages
