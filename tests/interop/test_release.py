"""Checkpoints of the authors' release become runs, and runs such checkpoints: exactly."""

import json
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, complete, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import release
from attn_cnn_jax.interop.export import export
from attn_cnn_jax.models.variables import split

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test EXTRAS=test,torch")
from tests.support import torch_networks  # noqa: E402

pytestmark = pytest.mark.torch

torch.set_num_threads(1)  # its idle threads would spin beside XLA's

SMALL = {"image_shape": (8, 8, 1), "hidden_size": 12, "intermediate_size": 20, "num_layers": 2, "downsample": 1}
NETWORKS = {
    "quadratic": {},
    "quadratic_generalized": {"num_heads": (3, 1)},  # as after pruning
    "learned": {"image_shape": (32, 32, 3), "downsample": 4, "num_classes": 100},
    "learned_content": {"num_layers": 1},
}
EPOCH = 1442 // 100  # steps of batch size 100 on digits


def network_of(name):
    torch.manual_seed(0)
    if name == "resnet":
        network = torch_networks.ResNet(10, image_channels=1, width=8)
        with torch.no_grad():
            network(torch.randn(8, 8, 8, 1))  # statistics of batch norm that are not those of the start
    else:
        network = torch_networks.AttentionClassifier(name, **(SMALL | {"num_heads": 3} | NETWORKS[name]))
    return network.eval()


def config_of(name):
    if name == "resnet":
        config = resnet_config(depth=10, width=8, image_shape=(8, 8, 1))
    else:
        encoding, content = name.removesuffix("_content"), name.endswith("_content")
        values = SMALL | {"num_heads": 3, "encoding": encoding, "content": content} | NETWORKS[name]
        config = attention_config(**values)
    config.dataset.name = "cifar100" if name == "learned" else "digits"
    return complete(config)


def save(path, state):
    torch.save({"epoch": 4, "test_accuracy": 0.625, "model_state_dict": OrderedDict(state)}, path)
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """`imported(name)`: PyTorch's network, and the run made of its checkpoint."""
    done = {}

    def of(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            network = network_of(name)
            file = save(folder / "best.checkpoint", network.state_dict())
            release.import_release(file, config_of(name), folder / "run")
            done[name] = network, load_run(folder / "run")
        return done[name]

    return of


@pytest.mark.parametrize("name", [*NETWORKS, "resnet"])
def test_the_way_back_is_exact(name, imported, tmp_path):
    """By the names that tests/models/test_against_pytorch.py compares logits with."""
    network, run = imported(name)
    export(run, tmp_path / "back.checkpoint", "pytorch")
    back = torch.load(tmp_path / "back.checkpoint", weights_only=True)
    ours, expected = back["model_state_dict"], network.state_dict()
    assert ours.keys() == expected.keys()
    for array in expected:
        assert ours[array].dtype == expected[array].dtype
        if not array.endswith("num_batches_tracked"):
            assert torch.equal(ours[array], expected[array]), array
    assert (back["epoch"], back["test_accuracy"], back["step"]) == (4, 0.625, run.step)


def prefixed(state, *prefixes):
    return {f"{''.join(prefixes)}{name}": array for name, array in state.items()}


STORED = {
    "a step out of range": lambda s: {"model_state_dict": s, "step": 10**400, "epoch": "four", "test_accuracy": -5},
    "bare, of torch.compile": lambda s: prefixed(s, "_orig_mod."),
    "of DataParallel and torch.compile": lambda s: prefixed(s, "module.", "_orig_mod."),
    "the other way": lambda s: {"state": 1, "model_state_dict": prefixed(s, "_orig_mod.", "module.")},
    "double precision": lambda s: {name: array.double() for name, array in s.items()},
    "parameters": lambda s: {name: torch.nn.Parameter(array) for name, array in s.items()},
    "transposed views": lambda s: {n: a.mT.contiguous().mT if a.ndim > 1 else a for n, a in s.items()},
    "with buffers": lambda s: s | {"attention_mask": torch.ones(1), "encoder.layer.0.attention.self.R": torch.eye(2)},
}


@pytest.mark.parametrize("kind", STORED)
def test_the_same_numbers_stored_otherwise_read_the_same(kind, imported, tmp_path):
    network, run = imported("quadratic")
    torch.save(STORED[kind](dict(network.state_dict())), tmp_path / "file")
    release.import_release(tmp_path / "file", run.config, tmp_path / "run")
    found, like = split(load_run(tmp_path / "run").model)[1], split(run.model)[1]
    assert all(found[name].dtype == like[name].dtype and np.array_equal(found[name], like[name]) for name in like)


def test_half_precision_and_the_old_file_format_are_read(imported, tmp_path):
    (network, run), dtype = imported("quadratic"), torch.bfloat16
    state = {name: array.to(dtype) for name, array in network.state_dict().items()}
    content = {"epoch": 0, "test_accuracy": torch.tensor(0.5), "model_state_dict": state}
    torch.save(content, tmp_path / "old", _use_new_zipfile_serialization=False)
    assert release.import_release(tmp_path / "old", run.config, tmp_path / "run") == EPOCH
    found, like = split(load_run(tmp_path / "run").model)[1], split(run.model)[1]
    for name in like:
        expected = torch.tensor(np.asarray(like[name])).to(dtype).float().numpy()
        np.testing.assert_array_equal(found[name], expected)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["accuracy"] == 0.5


SELF = "encoder.layer.1.attention.self."


def without(state, part):
    return {name: array for name, array in state.items() if part not in name}


WRONG = {  # what a file holds, and what is said of it
    "missing": (lambda s: without(s, "layer.1.output.dense.bias"), "missing: encoder.layer.1.output.dense.bias"),
    "unknown": (lambda s: s | {"pixelizer.weight": torch.zeros(3, 12)}, "unknown: pixelizer.weight"),
    "name": (lambda s: s | {"a\nb" * 5000: torch.zeros(1)}, "unknown: a$"),
    "shape": (lambda s: s | {SELF + "value.weight": torch.zeros(12, 24)}, r"value.weight \(12, 24\) in .* \(12, 36\)"),
    "huge": (lambda s: s | {"classifier.weight": torch.zeros(1).expand(40_000, 40_000)}, r"\(40000, 40000\) in place"),
    "nan": (
        lambda s: s | {"classifier.bias": torch.full((10,), torch.nan)},
        "classifier.bias has numbers that are not",
    ),
    "sparse": (lambda s: s | {"classifier.bias": torch.ones(10).to_sparse()}, "classifier.bias is no dense array"),
    "number": (lambda s: s | {5: torch.zeros(3)}, "allowed are arrays by name"),
    "nothing": (lambda s: {}, "missing: .*, and 27 more"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_another_network_is_refused_with_the_names(kind, imported, tmp_path):
    network, run = imported("quadratic")
    change, message = WRONG[kind]
    save(tmp_path / "file", change(dict(network.state_dict())))
    with pytest.raises(UserError, match=message) as caught:
        release.import_release(tmp_path / "file", run.config, tmp_path / "folder" / "run")
    assert len(str(caught.value).splitlines()) <= 2
    assert len(str(caught.value)) < 900
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Opens:
    """What a pickle could do: call a function when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "text", "list", "code"])
def test_a_damaged_file_is_refused_and_runs_no_code(damage, imported, tmp_path):
    network, run = imported("quadratic")
    file = save(tmp_path / "file", network.state_dict())
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        with zipfile.ZipFile(file) as archive:
            largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        content[largest.header_offset + 400] ^= 1
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("no checkpoint")
    else:
        torch.save([1, 2] if damage == "list" else {"more": Opens(str(tmp_path / "opened"))}, file)
    with pytest.raises(UserError, match=str(file)):
        release.import_release(file, run.config, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_says_what_was_read_and_refuses_to_overwrite(imported, tmp_path, capsys):
    file = save(tmp_path / "file", imported("quadratic")[0].state_dict())
    sizes = [f"--config.model.{key}={value}" for key, value in SMALL.items() if key != "image_shape"]
    command = ["import", str(file), "--config=digits", "--config.model.num_heads=3", *sizes]
    assert main([*command, f"--out={tmp_path / 'runs' / 'run'}"]) == 0
    assert "quadratic, 2 layers, 3 heads, hidden size 12, step" in capsys.readouterr().out
    before = file.read_bytes()
    run = str(tmp_path / "runs" / "run")
    for arguments in ([*command, f"--out={run}"], ["export", run, "--format=pytorch", f"--out={file}"]):
        assert main(arguments) == 1
        assert "exists already" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["import", str(tmp_path / "missing"), "--config=digits", f"--out={tmp_path / 'other'}"]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_what_the_release_does_not_have_is_not_written(imported, tmp_path):
    for changes, which in (
        ({"gate": True, "content": True}, "gate=True"),
        ({"encoding": "relative"}, "encoding='relative'"),
        ({"content": True}, "content=True"),
        ({"head_size": 4}, "head_size=4"),
        ({"block": "pre_norm"}, "block='pre_norm'"),
        ({"window": 3}, "window=3"),
        ({"encoding": "learned", "image_shape": (8, 16, 1)}, "image_shape=.8, 16, 1."),
    ):
        with pytest.raises(UserError, match=f"^config.model.{which}: .* no such network"):
            release.check_release_has(attention_config(**SMALL | changes).model)
    with pytest.raises(UserError, match=r"^note='on digits': .* no model card"):
        export(imported("quadratic")[1], tmp_path / "file", "pytorch", note="on digits")
    assert list(tmp_path.iterdir()) == []
