#!/usr/bin/env bash
# PyTorch: `torch.nn.MultiheadAttention` never calls its `out_proj`, so hooks and adapters on it do nothing.
#
# Versions: torch 2.13.0 (CPU), numpy 2.4.6; Python 3.11.
# One would expect: every module of a block is called in a forward pass: a hook sees what it reads, and what is put in its
# place (a low-rank adapter, a quantised or a pruned map) is what computes.
# Seen: `out_proj` is a `Linear` whose `weight` and `bias` are read and whose `forward` is not, in training and in
# evaluation. Its hook is not called. A module in its place that adds to the product changes no logit, and its parameters
# get no gradient: a low-rank adapter "of all linear layers" leaves this one out without a word. Parametrisations of
# its weight do count. timm's attention calls its `proj`.
# Where it is met: activations read by hooks, fine-tuning by adapters and FLOP counts of vision transformers built on this
# layer, such as torchvision's (the same with torch 2.14.1, torchvision 0.29.1).
# Output: "modules without a call: out_proj", "adapter on out_proj changes logits: no", "gradient of the adapter: none",
# "adapter on the linear maps after it: yes", "parametrisation of its weight: yes".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON' 2>/dev/null
import copy
import sys

import torch
from torch.nn.utils import parametrize

torch.manual_seed(0)


class Block(torch.nn.Module):
    """A pre-norm block of a vision transformer, and a classifier of its tokens' mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(self.second(x))).mean(1))


network, tokens = Block().eval(), torch.randn(2, 9, 16)


class Adapted(torch.nn.Module):
    """A linear map and a trained change of it."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.change = linear, torch.nn.Parameter(torch.randn(linear.in_features, linear.out_features))
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        return self.linear(x) + x @ self.change


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def changed(change):
    """Whether a change of the block changes the logits; and what it makes of the block."""
    other = copy.deepcopy(network)
    change(other)
    logits = other(tokens)
    logits.square().sum().backward()
    return "no" if torch.equal(logits, network(tokens)) else "yes", other


def adapt(block):
    block.attention.out_proj = Adapted(block.attention.out_proj)


def adapt_next(block):
    block.mlp[0] = Adapted(block.mlp[0])


called, hooks = set(), []
for name, module in network.named_modules():
    hooks.append(module.register_forward_hook(lambda *_, name=name: called.add(name)))
for mode in (True, False):
    network.train(mode)(tokens)
silent = {name.rsplit(".", 1)[-1] for name, _ in network.named_modules() if name not in called}
for hook in hooks:
    hook.remove()
network.eval()
answer, adapted = changed(adapt)
gradients = [x.grad for name, x in adapted.named_parameters() if name.endswith("change")]
seen = {
    "modules without a call": ", ".join(sorted(silent)),
    "adapter on out_proj changes logits": answer,
    "gradient of the adapter": "none" if all(x is None for x in gradients) else "some",
    "adapter on the linear maps after it": changed(adapt_next)[0],
    "parametrisation of its weight": changed(
        lambda block: parametrize.register_parametrization(block.attention.out_proj, "weight", Doubled())
    )[0],
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["out_proj", "no", "none", "yes", "yes"])
PYTHON
