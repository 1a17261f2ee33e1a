"""Counts of parameters and FLOPs, against the paper and against what XLA counts."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.summary import TABLE_1
from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.models.convolutional import ConvolutionalAttention
from attn_cnn_jax.models.encodings.relative import RELATIVE_TERMS

PARAMETERS = {
    "resnet18": 11_173_962,
    "quadratic": 12_086_844,
    "learned_rel": 12_278_682,
    "learned_rel_content": 29_601_882,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_flops_are_those_of_table_1(name):
    published = TABLE_1[name]
    assert count_parameters(published.config.model) == PARAMETERS[name]
    billions = count_flops(published.config.model).linear / 1e9
    assert f"{billions:.2g}B" == published.flops


def test_positions_of_200_channels_give_the_papers_29_5_million_parameters():
    model = attention_config(encoding="learned", content=True, position_size=200).model
    assert count_parameters(model) == 29_505_882 == PARAMETERS["learned_rel_content"] - 6 * 2 * (31 + 9) * 200


@pytest.mark.parametrize(("depth", "count"), [(50, 23_520_842), (101, 42_512_970), (152, 58_156_618)])
def test_parameters_of_deep_resnets_are_the_known_ones_for_cifar10(depth, count):
    assert count_parameters(resnet_config(depth=depth).model) == count


def test_a_stem_adds_its_convolutions():
    plain, stem = (attention_config(stem=stem, image_shape=(16, 32, 3)).model for stem in ("none", "resnet"))
    convolutions = 9 * 3 * 64 + 4 * 9 * 64**2
    embedding = 4 * (64 - 3) * 400
    assert count_parameters(stem) - count_parameters(plain) == convolutions + embedding + 5 * 2 * 64
    more = count_flops(stem).full - count_flops(plain).full
    assert more == 2 * (16 * 32 * convolutions + 8 * 16 * embedding)


def test_attention_of_the_papers_networks_adds_2_83_and_5_66_billion_flops():
    attention = {name: count_flops(row.config.model).attention for name, row in TABLE_1.items()}
    applied = 2 * 6 * 9 * 256**2 * 400  # multiply-adds twice; layers, heads, pairs of pixels, channels
    assert attention == {
        "resnet18": 0,
        "quadratic": applied,
        "learned_rel": applied,
        "learned_rel_content": 2 * applied,
    }
    assert [short(n) for n in (applied, 2 * applied)] == ["2.83B", "5.66B"]


def flops_of_xla(model):
    """What XLA counts in the compiled program for one picture; nothing is allocated."""
    graph, state = nnx.split(nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0))))
    picture = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    predict = jax.jit(lambda state, picture: nnx.merge(graph, state, copy=True)(picture)[0])
    return predict.lower(state, picture).compile().cost_analysis()["flops"]


ATTENTION_NETWORKS = [
    {"encoding": "quadratic"},
    {"encoding": "quadratic", "content": True},
    {"encoding": "quadratic_generalized"},
    {"encoding": "learned"},
    {"encoding": "learned", "content": True, "head_size": 128},
    {"encoding": "relative"},
    *({"encoding": "relative", "relative_terms": (term,)} for term in RELATIVE_TERMS),
    {"encoding": "absolute_learned"},
    {"encoding": "absolute_sinusoidal", "num_heads": (2, 3), "num_layers": 2},
    {"encoding": "absolute_learned", "position_join": "concatenate", "position_size": 160},
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


@pytest.mark.parametrize(
    "model", [{"name": "resnet", "depth": 50}, {"name": "resnet", "depth": 18}, {"stem": "resnet"}]
)
def test_convolutions_are_counted_as_they_are_traced(model):
    """Every output value is a sum over the kernel's rows, columns and input channels."""
    config = resnet_config if model.get("name") == "resnet" else attention_config
    model = config(**model, image_shape=(31, 17, 3) if config is resnet_config else (30, 16, 3)).model
    graph, state = nnx.split(nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0))))
    picture = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    traced = jax.make_jaxpr(lambda state, picture: nnx.merge(graph, state, copy=True)(picture)[0])(state, picture)
    products = [
        math.prod(equation.outvars[0].aval.shape) * math.prod(equation.invars[1].aval.shape[:3])
        for equation in traced.jaxpr.eqns
        if equation.primitive.name == "conv_general_dilated"
    ]
    assert products
    expected = 2 * (sum(products) + 10 * state["classifier"]["kernel"].shape[0])
    if config is attention_config:
        plain = attention_config(image_shape=model.image_shape).model
        assert count_flops(model).full - count_flops(plain).full == expected - 2 * 4000 + 2 * 15 * 8 * 4 * 61 * 400
    else:
        assert count_flops(model).full == expected


@pytest.mark.parametrize("depth", [10, 18, 34])
def test_full_count_of_resnets_is_xlas_up_to_padding(depth):
    """XLA leaves out products with the padding's zeros: (2/3)/side of an axis, 4% of the last stage's 32 x 28 pixels.

    It counts batch norms besides. On large pictures the sum of both stays below 2.5%.
    """
    model = resnet_config(depth=depth, image_shape=(256, 224, 3)).model
    assert count_flops(model).full == pytest.approx(flops_of_xla(model), rel=0.025)


@pytest.mark.parametrize("depth", [10, 50])
def test_a_resnet_of_attention_averages_padded_pictures_in_every_head(depth, monkeypatch):
    model = resnet_config(depth=depth, width=4, image_shape=(9, 7, 3), layers="attention").model
    averages = []

    def recorded(layer, x, apply=ConvolutionalAttention.__call__):
        y = apply(layer, x)
        heads, pads = math.prod(layer.kernel_size), layer.pads(x.shape[1:3])
        keys = math.prod(side + sum(pad) for side, pad in zip(x.shape[1:3], pads, strict=True))
        averages.append(heads * math.prod(y.shape[1:3]) * keys * x.shape[3])
        return y

    monkeypatch.setattr(ConvolutionalAttention, "__call__", recorded)
    nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0))(jnp.zeros((1, 9, 7, 3)))[0])
    convolutions = resnet_config(depth=depth, width=4, image_shape=(9, 7, 3)).model
    assert len(averages) == {10: 12, 50: 53}[depth]
    assert count_flops(model) == (count_flops(convolutions).linear, 2 * sum(averages), 0)


def test_odd_sides_round_up_where_a_resnet_halves_them():
    even, odd = (resnet_config(depth=10, image_shape=(side, side, 3)).model for side in (32, 31))
    stem = 2 * 9 * 3 * 64
    first_stage = 2 * 2 * 9 * 64**2
    assert count_flops(even).full - count_flops(odd).full == (32**2 - 31**2) * (stem + first_stage)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.00"), (174_619, "175k"), (999_999, "1.00M"), (22_010_000, "22.0M"), (6_176_440_320, "6.18B")],
)
def test_short_counts_have_three_significant_digits(count, text):
    assert short(count) == text
