"""PyTorch for tests of its networks, always with the same random numbers, and small networks of each kind."""

import pytest

D, HEADS = 12, 3


@pytest.fixture
def torch():
    """Whatever tests ran before draws no other numbers."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


@pytest.fixture(scope="session")
def network():
    """Makes networks of `patches`, of 4x4 pixels: `tokens` puts others among them, `attend` is how layers attend."""
    nn = pytest.importorskip("torch").nn

    class Network(nn.Module):
        def __init__(self, attend, tokens=lambda x: x, output=lambda x: x.mean(dim=1), patches=None):
            super().__init__()
            self.patches = nn.Conv2d(3, D, 4, 4) if patches is None else patches
            self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, 5)
            self.attend, self.tokens, self.output = attend, tokens, output

        def forward(self, x):
            x = self.tokens(self.patches(x).flatten(2).transpose(1, 2))
            for _ in range(2):
                parts = self.qkv(x).reshape(len(x), -1, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
                x = x + self.attend(*parts).transpose(1, 2).flatten(2)
            return self.output(self.head(x))

    return Network


@pytest.fixture(scope="session")
def windowed(network):
    """Networks of windows of 4x4 patches of 8x8, moved by two, of which parts that do not touch are masked.

    With a table of biases by shift, `(h, 7, 7)`, attention is by it alone; `product` multiplies it with values.
    """
    torch = pytest.importorskip("torch")

    def cut(x):
        x = x.unflatten(2, (8, 8)).roll((-2, -2), (2, 3)).unflatten(2, (2, 4)).unflatten(4, (2, 4))
        return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)

    part = torch.tensor([1] * 2 + [0] * 4 + [2] * 2)
    part = (3 * part[:, None] + part).reshape(1, 1, 64, 1)
    mask = torch.where(cut(part) == cut(part).mT, 0.0, -100.0)
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    shift = places[None] - places[:, None] + 3

    def make(table=None, product=torch.matmul):
        def attend(query, key, value):
            scores = cut(query) @ cut(key).mT / 2 if table is None else table[None, :, shift[..., 0], shift[..., 1]]
            weights = (scores + mask.repeat(len(query), 1, 1, 1)).softmax(dim=-1)
            x = product(weights, cut(value)).unflatten(0, (-1, 2, 2)).unflatten(4, (4, 4))
            return x.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 3).flatten(3, 4).roll((2, 2), (2, 3)).flatten(2, 3)

        return network(attend)

    return make
