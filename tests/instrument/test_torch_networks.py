"""Networks of PyTorch: every way in which libraries compute attention, heads planted by Theorem 1, and refusals."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect

pytestmark = pytest.mark.torch


@pytest.fixture
def networks(torch):
    """Networks of one layer over 16 patches that compute attention in each of three ways, with 9 planted heads."""
    from torch import nn
    from torch.nn import functional

    places = np.stack(np.divmod(np.arange(16), 4), axis=-1)
    shifts = places[None] - places[:, None]
    centres = np.stack(np.divmod(np.arange(9), 3), axis=-1) - 1
    bias = torch.tensor(-46.0 * np.square(shifts[None] - centres[:, None, None]).sum(axis=-1), dtype=torch.float32)

    class Planted(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.how, self.value, self.output = how, nn.Linear(18, 18), nn.Linear(18, 3)

        def forward(self, x):
            value = self.value(x).reshape(len(x), 16, 9, 2).transpose(1, 2)
            nothing = torch.zeros(len(x), 9, 16, 2)
            if self.how == "fused":
                averages = functional.scaled_dot_product_attention(nothing, nothing, value, attn_mask=bias[None])
            else:
                averages = bias.softmax(dim=-1).expand(len(x), -1, -1, -1) @ value
            return self.output(averages.transpose(1, 2).flatten(2)).mean(dim=1)

    class MultiHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.output = nn.MultiheadAttention(18, 9, batch_first=True), nn.Linear(18, 3)

        def forward(self, x):
            return self.output(self.attention(x, x, x, need_weights=False)[0]).mean(dim=1)

    return {"fused": Planted("fused"), "eager": Planted("eager"), "multi-head": MultiHead()}


@pytest.mark.parametrize("how", ["fused", "eager"])
def test_planted_heads_are_found_and_replaced(how, networks, torch):
    report = inspect(networks[how], torch.randn(3, 16, 18))
    assert report.convolutions() == [(0, head) for head in range(9)]
    np.testing.assert_allclose(report.anatomy[0], np.tile([1.0, 0, 0], (9, 1)), atol=1e-5)
    assert max(report.differences) < 1e-5
    assert report.replaced[-1]["heads"] == 9
    assert max(row["logits"] for row in report.replaced) < 1e-5


def test_multi_head_attention_is_watched(networks, torch):
    model, x = networks["multi-head"].train(), torch.randn(3, 16, 18)
    report = inspect(model, x)
    assert model.training  # as it was
    _, weights = model.eval().attention(x, x, x, average_attn_weights=False)
    np.testing.assert_allclose(report.attention[0], weights.detach(), atol=1e-6)
    assert report.replaced[0]["logits"] < 1e-5


def test_a_network_without_attention_is_refused(torch):
    with pytest.raises(UserError, match="no attention was found in Linear"):
        inspect(torch.nn.Linear(3, 3), torch.randn(2, 3))


@pytest.mark.parametrize(
    ("name", "options", "prefix"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64}, 1),
        ("deit_tiny_distilled_patch16_224", {"img_size": 64}, 2),
        ("convit_tiny", {"img_size": 64, "local_up_to_layer": 1}, 1),  # a class token in the second layer alone
        ("vit_relpos_small_patch16_224", {"img_size": 64}, 0),
        ("eva02_tiny_patch14_224", {"img_size": 56}, 1),  # rotary positions
    ],
)
def test_networks_of_timm(name, options, prefix, torch):
    timm = pytest.importorskip("timm")
    size = options["img_size"]
    report = inspect(timm.create_model(name, depth=2, **options), torch.randn(2, 3, size, size), grid=(4, 4))
    assert len(report.attention) == 2
    assert max(report.differences) < 1e-5
    assert report.replaced[0]["logits"] < 1e-5
    assert (np.max([share.max() for share in report.prefix_share]) > 0.01) == (prefix > 0)


def plant(model, torch):
    """Sets heads 1 to 9 of layer 2 of timm's ViT by Theorem 1, with positions in 10 channels that nothing else writes.

    Head h scores key k by -46 |p_k - p_q - shift_h|^2, up to what is the same for all keys of q. Channels hold row,
    column, their squares, 1, and a filler that gives all patches one norm, so that layer norm divides them by the same;
    and all of them negated, so that it subtracts nothing.
    """
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)) - 1.5
    features = torch.cat([places, places.square().sum(dim=1, keepdim=True), torch.ones(16, 1)], dim=1)
    features = torch.cat([features, (30 - features.square().sum(dim=1, keepdim=True)).sqrt()], dim=1)
    size, scale = model.embed_dim // 12, 30.0
    model.patch_embed.proj.weight[:10] = model.patch_embed.proj.bias[:10] = 0
    model.pos_embed[0, :, :10] = scale * torch.cat([features, -features], dim=1)
    for output in (model.blocks[0].attn.proj, model.blocks[0].mlp.fc2):
        output.weight[:10] = output.bias[:10] = 0
    after_norm = (2 * 30 / model.embed_dim) ** 0.5  # what a feature of 1 is divided by
    query, key = (torch.zeros(12, size, 4) for _ in range(2))
    for head in range(9):
        shift = torch.tensor(divmod(head, 3)) - 1
        query[head, :3] = (
            46 * size**0.5 * torch.tensor([[2, 0, 0, 2 * shift[0]], [0, 2, 0, 2 * shift[1]], [0, 0, 0, -1]])
        )
        key[head, :3] = torch.eye(4)[:3]
    for n, maps in enumerate((query, key)):
        rows = slice(n * model.embed_dim, n * model.embed_dim + 9 * size)
        model.blocks[1].attn.qkv.bias[rows] = model.blocks[1].attn.qkv.weight[rows] = 0
        half = after_norm / 2 * maps[:9].flatten(0, 1)
        model.blocks[1].attn.qkv.weight[rows, :4], model.blocks[1].attn.qkv.weight[rows, 5:9] = half, -half


def test_heads_planted_in_timms_vit_are_found_and_replaced(torch):
    timm = pytest.importorskip("timm")
    options = {"img_size": 64, "depth": 2, "num_heads": 12, "class_token": False, "global_pool": "avg"}
    model = timm.create_model("vit_tiny_patch16_224", **options)
    with torch.no_grad():
        plant(model, torch)
    report = inspect(model, torch.randn(4, 3, 64, 64))
    assert report.convolutions() == [(1, head) for head in range(9)]
    np.testing.assert_allclose(report.anatomy[1, :9], np.tile([1.0, 0, 0], (9, 1)), atol=1e-5)
    changes = {row["heads"]: row["logits"] for row in report.replaced}
    assert max(change for heads, change in changes.items() if heads <= 9) < 1e-5
    assert changes[24] > 1e-3


def test_windows_of_timms_swin(torch):
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 112, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    report = inspect(timm.create_model("swin_tiny_patch4_window7_224", **sizes), torch.randn(1, 3, 112, 112))
    assert report.grids == [(7, 7)] * 4
    assert [layer.layout.windows for layer in report.layers_measured] == [16, 16, 4, 4]
    rollout = report.rollout()  # from the merged patches of the last layer to the first ones
    assert rollout.shape == (1, 14 * 14, 28 * 28)
    np.testing.assert_allclose(rollout.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_vit_of_hugging_face(implementation, torch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.ViTConfig(image_size=64, **sizes, attn_implementation=implementation)
    report = inspect(transformers.ViTForImageClassification(config), torch.randn(2, 3, 64, 64))
    assert report.grid == (4, 4)
    assert max(report.differences) < 1e-5


def test_vision_transformer_of_torchvision(torch):
    torchvision = pytest.importorskip("torchvision", exc_type=Exception)
    model = torchvision.models.VisionTransformer(64, 16, 2, 3, 48, 96)
    report = inspect(model, torch.randn(2, 3, 64, 64))
    assert report.replaced[0]["logits"] < 1e-5
