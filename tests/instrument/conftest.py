"""PyTorch for tests of its networks, always with the same random numbers."""

import pytest


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch
