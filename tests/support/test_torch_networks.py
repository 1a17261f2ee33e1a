"""The networks in PyTorch: equal to loops in NumPy, with the paper's numbers."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test EXTRAS=test,torch")

from tests.support import numpy_attention as loops  # noqa: E402
from tests.support import torch_attention  # noqa: E402
from tests.support import torch_networks as networks  # noqa: E402

pytestmark = pytest.mark.torch

ENCODINGS = ("quadratic", "quadratic_generalized", "learned", "learned_content")
HEIGHT, WIDTH, HIDDEN, HEADS = 3, 4, 8, 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def small_classifier(encoding, **changes):
    """A two-layer network for 6x8 pictures, in float64 and evaluation mode."""
    settings = {
        "encoding": encoding,
        "image_shape": (2 * HEIGHT, 2 * WIDTH, 3),
        "num_classes": 5,
        "hidden_size": HIDDEN,
        "intermediate_size": 7,
        "num_layers": 2,
        "num_heads": HEADS,
    }
    return networks.AttentionClassifier(**(settings | changes)).double().eval()


def state_of(module):
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def linear(state, name):
    """The linear map `name` of a state dict as `(weight, bias)` with weight `(in, out)`."""
    return state[f"{name}.weight"].T, state[f"{name}.bias"]


def norm(state, name):
    return state[f"{name}.weight"], state[f"{name}.bias"]


def score_of_layer(encoding, state, picture):
    """The loops' score function for one layer; `state` is the state dict of its self-attention."""

    def position_score(head, query, key):
        if encoding == "quadratic":
            centre, spread = state["attention_centers"][head], state["attention_spreads"][head]
            return loops.quadratic_score(query, key, centre, spread)
        if encoding == "quadratic_generalized":
            centre, spread = state["attention_centers"][head], state["attention_spreads"][head]
            return loops.generalized_quadratic_score(query, key, centre, spread)
        return loops.learned_score(
            query,
            key,
            state["col_embeddings.weight"],
            state["row_embeddings.weight"],
            state["head_keys_col.weight"][head],
            state["head_keys_row.weight"][head],
        )

    def score(head, query, key):
        if encoding != "learned_content":
            return position_score(head, query, key)
        of_head = slice(head * HIDDEN, (head + 1) * HIDDEN)
        query_weights, query_bias = linear(state, "query")
        key_weights, key_bias = linear(state, "key")
        content = loops.content_score(
            picture[query],
            picture[key],
            query_weights[:, of_head],
            query_bias[of_head],
            key_weights[:, of_head],
            key_bias[of_head],
        )
        return content + position_score(head, query, key)

    return score


def loops_network(encoding, state, image):
    """The whole network on one picture `(H, W, C)`, by loops: logits, and each layer's `(h, i, j, k, l)`."""
    weight, bias = linear(state, "features_upscale")
    x = loops.space_to_depth(image, 2) @ weight + bias
    all_probabilities = []
    for number in range(2):
        prefix = f"encoder.layer.{number}."
        layer = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        attention = {name.removeprefix("attention.self."): value for name, value in layer.items()}
        score = score_of_layer(encoding, attention, x)
        probabilities = loops.softmax_over_keys(loops.scores_of_picture(score, HEADS, HEIGHT, WIDTH))
        value_weights, value_bias = linear(attention, "value")
        attended = loops.mhsa(probabilities, x, value_weights.reshape(HEADS, HIDDEN, HIDDEN), value_bias)
        x = loops.post_norm_block(
            x,
            attended,
            dense=linear(layer, "attention.output.dense"),
            norm_1=norm(layer, "attention.output.LayerNorm"),
            w1=linear(layer, "intermediate.dense"),
            w2=linear(layer, "output.dense"),
            norm_2=norm(layer, "output.LayerNorm"),
        )
        all_probabilities.append(probabilities)
    weight, bias = linear(state, "classifier")
    return x.mean(axis=(0, 1)) @ weight + bias, all_probabilities


# torch against loops


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_torch_network_equals_loops(encoding):
    model = small_classifier(encoding)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # weights of layer norms away from one and zero
            if "LayerNorm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        images = torch.randn(2, 2 * HEIGHT, 2 * WIDTH, 3, dtype=torch.float64)
        logits, attention = model(images, return_attention=True)
    for number, image in enumerate(images.numpy()):
        expected_logits, expected_attention = loops_network(encoding, state_of(model), image)
        np.testing.assert_allclose(logits[number].numpy(), expected_logits, rtol=0, atol=1e-12)
        for probabilities, expected in zip(attention, expected_attention, strict=True):
            of_picture = probabilities[number] if encoding == "learned_content" else probabilities
            np.testing.assert_allclose(of_picture.permute(2, 0, 1, 3, 4).numpy(), expected, rtol=0, atol=1e-12)


def test_resnet_block_equals_loops():
    block = networks.BasicBlock(3, 4, stride=2).double().eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for module in (block.bn1, block.bn2, block.shortcut[1]):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
        pictures = torch.randn(1, 5, 6, 3, dtype=torch.float64)
        output = block(pictures.permute(0, 3, 1, 2))[0].permute(1, 2, 0).numpy()
    state = state_of(block)

    def convolution(x, name, stride):
        return loops.conv2d(x, state[f"{name}.weight"].transpose(2, 3, 1, 0), stride=stride)

    def batch_norm(x, name):
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return (x - mean) / np.sqrt(variance + 1e-5) * state[f"{name}.weight"] + state[f"{name}.bias"]

    x = pictures[0].numpy()
    y = np.maximum(batch_norm(convolution(x, "conv1", 2), "bn1"), 0)
    y = batch_norm(convolution(y, "conv2", 1), "bn2")
    expected = np.maximum(y + batch_norm(convolution(x, "shortcut.0", 2), "shortcut.1"), 0)
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, (1, 2)), (2, 1, (0, 1)), (1, 2, (2, 0))])
def test_convolution_loop_equals_torch(stride, dilation, padding):
    rng = np.random.default_rng(0)
    picture, kernel, bias = rng.normal(size=(7, 8, 2)), rng.normal(size=(3, 2, 2, 4)), rng.normal(size=4)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(picture.transpose(2, 0, 1))[None],
        torch.from_numpy(kernel.transpose(3, 2, 0, 1)),
        torch.from_numpy(bias),
        stride,
        padding,
        dilation,
    )[0]
    output = loops.conv2d(picture, kernel, bias, stride, dilation, padding)
    np.testing.assert_allclose(output, expected.permute(1, 2, 0).numpy(), rtol=1e-12, atol=1e-12)


# The paper's numbers


@pytest.mark.parametrize(
    ("encoding", "count"),
    [("quadratic", 12_086_844), ("learned", 12_278_682), ("learned_content", 29_601_882)],
)
def test_parameter_count(encoding, count):
    with torch.device("meta"):
        model = networks.AttentionClassifier(encoding)
    assert networks.count_parameters(model) == count


def test_parameter_count_of_resnet18():
    with torch.device("meta"):
        assert networks.count_parameters(networks.ResNet(18)) == 11_173_962


# A case worked out by hand


def test_one_head_looks_one_pixel_to_the_right():
    # A 1x2 picture, Delta = (0, 1), s^2 / 2 = log 3: the scores of shifts -1, 0, 1 are -4, -1, 0 times log 3.
    attention = torch_attention.QuadraticSelfAttention(hidden_size=1, num_heads=1, dropout=0.0).double()
    with torch.no_grad():
        attention.attention_centers.copy_(torch.tensor([[0.0, 1.0]]))
        attention.attention_spreads.fill_(math.sqrt(2 * math.log(3)))
        attention.value.weight.fill_(2.0)
        attention.value.bias.fill_(1.0)
        output, _ = attention(torch.tensor([4.0, 8.0], dtype=torch.float64).reshape(1, 1, 2, 1))
    left = 2 * (4 * 1 + 8 * 3) / 4 + 1  # weights 1/3 and 1
    right = 2 * (4 * 1 + 8 * 27) / 28 + 1  # weights 1/81 and 1/3
    np.testing.assert_allclose(output.flatten().numpy(), [left, right], rtol=1e-14)


# Training


def test_rate_warms_up_and_falls_to_zero():
    _, rate = networks.sgd_with_warmup(small_classifier("quadratic"), 0.1, 1e-4, total_steps=25, warmup_steps=5)
    rates = [rate(step) for step in (0, 1, 4, 5, 15, 25)]
    np.testing.assert_allclose(rates, [0.0, 0.02, 0.08, 0.1, 0.05, 0.0], atol=1e-17)


def test_sgd_step_by_hand():
    model = small_classifier("quadratic")
    optimizer, _ = networks.sgd_with_warmup(model, 0.1, weight_decay=0.5, total_steps=10, warmup_steps=0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay = 0.0 if name.endswith(("attention_centers", "attention_spreads")) else 0.5
        momentum = 2 + decay * before[name]
        expected = before[name] - 0.1 * momentum
        expected = expected - 0.1 * (0.9 * momentum + 2 + decay * expected)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-12)
