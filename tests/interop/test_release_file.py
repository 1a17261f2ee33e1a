"""A file of the release from anybody: read exactly, or refused in a line, within the memory that its size asks for."""

import io
import zipfile

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import pytorch as interop
from attn_cnn_jax.interop import release_file
from attn_cnn_jax.interop.convert import to_run
from attn_cnn_jax.interop.export import export_run

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test EXTRAS=test,torch")
from tests.support import torch_networks  # noqa: E402

pytestmark = pytest.mark.torch

WEIGHT = "classifier.weight"
COUNTER = "bn1.num_batches_tracked"


@pytest.fixture(scope="module")
def states():
    """The arrays of an attention network and of a ResNet, by the release's names."""
    torch.manual_seed(0)
    small = {"image_shape": (8, 8, 1), "hidden_size": 12, "intermediate_size": 20, "num_layers": 2, "num_heads": 3}
    attention = torch_networks.AttentionClassifier("quadratic", downsample=1, **small)
    resnet = torch_networks.ResNet(10, image_channels=1, width=4)
    return {"attention": attention.state_dict(), "resnet": resnet.state_dict()}


def save(path, state, **more):
    torch.save({"epoch": 4, "test_accuracy": 0.625, "model_state_dict": dict(state)} | more, path)
    return path


READABLE = {
    "parameters": lambda array: torch.nn.Parameter(array) if array.is_floating_point() else array,
    "negated views": lambda array: torch._neg_view(-array) if array.is_floating_point() else array,
    "transposed views": lambda array: array.mT.contiguous().mT if array.ndim > 1 else array,
}


@pytest.mark.parametrize("kind", READABLE)
def test_what_holds_the_same_numbers_reads_the_same(kind, states, tmp_path):
    state = {name: READABLE[kind](array) for name, array in states["attention"].items()}
    found = release_file.read_checkpoint(save(tmp_path / "file", state)).arrays
    assert found.keys() == states["attention"].keys()
    for name, array in states["attention"].items():
        np.testing.assert_array_equal(found[name], array.numpy())


REFUSED = {
    "an integer as a name": (lambda s: s | {5: torch.zeros(3)}, {}, "under 5: allowed are names"),
    "a sparse array": (lambda s: s | {WEIGHT: s[WEIGHT].to_sparse()}, {}, f"{WEIGHT}: allowed are dense arrays"),
    "an array without numbers": (lambda s: s | {WEIGHT: s[WEIGHT].to("meta")}, {}, f"{WEIGHT}: allowed are dense"),
    "a number that repeats": (
        lambda s: s | {WEIGHT: torch.zeros(1).expand(40_000, 40_000)},
        {},
        "its arrays would take 6,400,0",
    ),
    "lines as a name": (lambda s: s | {"a\nb\nc": torch.zeros(1)}, {}, "unknown: a"),
    "a long name": (lambda s: s | {"a" * 5000: torch.zeros(1)}, {}, r"unknown: a+\.\.\."),
    "layer 300,000,000": (
        lambda s: s | {"encoder.layer.300000000.x": torch.zeros(1)},
        {},
        "arrays of 3 layers, the last of which is number 300,000,000",
    ),
    "a layer of 5,000 digits": (
        lambda s: s | {f"encoder.layer.{'9' * 5000}.x": torch.zeros(1)},
        {},
        "unknown: encoder",
    ),
    "epoch 1e12": (lambda s: s, {"epoch": 1e12}, r"epoch=1e\+12: allowed is 0 to 2,147,483,647"),
    "an epoch of 400 digits": (lambda s: s, {"epoch": 10**400}, "epoch=inf: allowed"),
    "epoch 2e9": (lambda s: s, {"epoch": 2 * 10**9}, "epoch=2,000,000,000: allowed is 0 to 153,391,688"),
    "epoch -5": (lambda s: s, {"epoch": -5}, "epoch=-5: allowed"),
    "accuracy 5": (lambda s: s, {"test_accuracy": 5.0}, "test_accuracy=5: allowed is 0 to 1"),
    "accuracy -3": (lambda s: s, {"test_accuracy": -3}, "test_accuracy=-3: allowed is 0 to 1"),
    "step -5": (lambda s: s, {"step": -5}, "step=-5: allowed"),
}


def refuse(file, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        interop.import_checkpoint(file, tmp_path / "run")
    assert len(str(caught.value).splitlines()) <= 2
    assert len(str(caught.value)) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_network_is_refused_in_a_line_or_two(kind, states, tmp_path):
    change, more, message = REFUSED[kind]
    refuse(save(tmp_path / "file", change(states["attention"]), **more), message, tmp_path)


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        (torch.tensor(2**40), f"{COUNTER}=1099511627776: allowed is 0 to 2,147,483,647 steps"),
        (torch.tensor(-5), f"{COUNTER}=-5: allowed"),
        (torch.zeros(3, dtype=torch.int64), rf"{COUNTER} has the shape \(3,\) and type int64: allowed is one integer"),
        (torch.tensor(7.0), f"{COUNTER} has the shape .* float32: allowed is one integer"),
    ],
)
def test_a_counter_of_steps_is_one_number_in_range(counter, message, states, tmp_path):
    refuse(save(tmp_path / "file", states["resnet"] | {COUNTER: counter}), message, tmp_path)


def test_a_file_that_unpacks_to_more_than_its_size_is_refused_before_it_does(states, tmp_path, monkeypatch):
    parts = io.BytesIO()
    save(parts, states["attention"])
    with zipfile.ZipFile(parts) as source, zipfile.ZipFile(tmp_path / "file", "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry, source.read(entry))
        target.writestr("archive/data/1000", bytes(2**24))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    refuse(tmp_path / "file", "its parts would unpack to 16,", tmp_path)


def test_steps_survive_the_way_there_and_back(quadratic_run, tmp_path):
    """20 steps of 10 an epoch are not what a run of batch size 100 would have done."""
    export_run(quadratic_run, tmp_path / "there", "pytorch")
    interop.import_checkpoint(tmp_path / "there", tmp_path / "back")
    assert load_run(tmp_path / "back").step == load_run(quadratic_run).step == 20


def test_without_steps_they_follow_from_the_epoch(states, tmp_path):
    checkpoint = release_file.read_checkpoint(save(tmp_path / "file", states["attention"]))
    assert to_run(checkpoint)[1].step == 5 * (1442 // 100)
    assert to_run(checkpoint._replace(epoch=None))[1].step == 0
