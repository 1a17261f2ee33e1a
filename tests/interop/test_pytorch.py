"""Checkpoints of the authors' release become runs, and runs such checkpoints: exactly, with the same logits."""

import json
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import pytorch as interop
from attn_cnn_jax.interop.export import export_run
from attn_cnn_jax.models.pruning import prune
from attn_cnn_jax.models.variables import split
from tests.support.networks import logits_of

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


def network_of(name):
    torch.manual_seed(0)
    if name == "resnet":
        network = torch_networks.ResNet(10, image_channels=1, width=8)
        with torch.no_grad():
            network(torch.randn(8, 8, 8, 1))  # statistics of batch norm that are not those of the start
    else:
        network = torch_networks.AttentionClassifier(name, **(SMALL | {"num_heads": 3} | NETWORKS[name]))
    return network.eval()


def save(path, state, **changes):
    torch.save({"epoch": 4, "test_accuracy": 0.625, "model_state_dict": OrderedDict(state)} | changes, path)
    return path


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name]), name


def pictures(config, count=3):
    return np.random.default_rng(0).integers(0, 256, (count, *config.model.image_shape), np.uint8)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """`imported(name)`: PyTorch's network, the run made of its checkpoint, and the run's directory."""
    done = {}

    def of(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            network = network_of(name)
            file = save(folder / "best.checkpoint", network.state_dict())
            interop.import_checkpoint(file, folder / "run")
            done[name] = network, load_run(folder / "run"), folder / "run"
        return done[name]

    return of


@pytest.mark.parametrize("name", [*NETWORKS, "resnet"])
def test_logits_agree_and_the_way_back_is_exact(name, imported, tmp_path):
    network, run, workdir = imported(name)
    x = np.array(run.normalised(pictures(run.config)))
    with torch.no_grad():
        theirs = network(torch.tensor(x)).numpy()
    np.testing.assert_allclose(logits_of(run.model, x), theirs, rtol=1e-5, atol=1e-5)

    export_run(workdir, tmp_path / "back.checkpoint", "pytorch")
    back = torch.load(tmp_path / "back.checkpoint", weights_only=True)
    assert_same(back["model_state_dict"], network.state_dict())
    assert (back["epoch"], back["test_accuracy"]) == (4, 0.625)
    network_of(name).load_state_dict(back["model_state_dict"])


def test_a_run_survives_the_way_there_and_back(imported, tmp_path):
    _, run, workdir = imported("quadratic_generalized")
    export_run(workdir, tmp_path / "there", "pytorch")
    interop.import_checkpoint(tmp_path / "there", tmp_path / "back")
    again = load_run(tmp_path / "back")
    assert again.config.to_dict() == run.config.to_dict()
    assert again.step == run.step == 5 * (1442 // 100)
    before, after = split(run.model)[1], split(again.model)[1]
    assert all(np.array_equal(before[name], after[name]) for name in before | after)


def test_what_the_architecture_is_read_from(imported):
    model = {name: imported(name)[1].config.model for name in [*NETWORKS, "resnet"]}
    assert model["quadratic"].num_heads == 3
    assert tuple(model["quadratic_generalized"].num_heads) == (3, 1)
    assert tuple(model["learned"].image_shape) == (32, 32, 3)  # from tables of 15 shifts, four pixels each
    assert (model["learned"].downsample, model["learned"].num_classes) == (4, 100)
    assert imported("learned")[1].config.dataset.name == "cifar100"
    assert model["learned_content"].content
    assert not model["learned"].content
    assert (model["resnet"].depth, model["resnet"].width) == (10, 8)
    assert imported("resnet")[1].config.dataset.name == "digits"


def test_pruned_here_is_pruned_there(imported, tmp_path):
    """A file without a head computes what pruning it from the run does."""
    network, run, _ = imported("quadratic")
    state = network.state_dict()
    first = "encoder.layer.0.attention.self."
    for name in ("attention_centers", "attention_spreads"):
        state[first + name] = state[first + name][[0, 2]]
    value = state[first + "value.weight"]
    state[first + "value.weight"] = torch.cat([value[:, :12], value[:, 24:]], dim=1)
    interop.import_checkpoint(save(tmp_path / "pruned", state), tmp_path / "run")
    skeletal = load_run(tmp_path / "run")
    expected = prune(run.model, {0: {1}})
    found = split(skeletal.model)[1]
    assert all(np.array_equal(found[name], expected[name]) for name in found | expected)


def test_row_tables_of_the_release_run_along_a_row(imported, tmp_path):
    """One head that favours the next position along the row attends to the pixel to the right."""
    network, _, _ = imported("learned_content")
    state = network.state_dict()
    name = "encoder.layer.0.attention.self."
    for part in ("query.weight", "query.bias", "key.weight", "key.bias"):
        del state[name + part]
    for part in ("row_embeddings", "col_embeddings", "head_keys_row", "head_keys_col"):
        state[name + part + ".weight"] = torch.zeros_like(state[name + part + ".weight"])
    state[name + "row_embeddings.weight"][7 + 1, 0] = 100.0  # shift +1 of -7 .. 7
    state[name + "head_keys_row.weight"][0, 0] = 1.0
    interop.import_checkpoint(save(tmp_path / "file", state), tmp_path / "run")
    attention = load_run(tmp_path / "run").attention()[0]
    np.testing.assert_allclose(attention[0, 3, 4, :, 5], 1 / 8, rtol=1e-6)  # any row, column 4 + 1
    np.testing.assert_allclose(attention[1], 1 / 64, rtol=1e-6)


def test_tables_of_all_layers_alike_are_shared(tmp_path):
    network = torch_networks.AttentionClassifier("learned", num_heads=2, **SMALL)
    state = network.state_dict()
    for axis in ("row", "col"):
        table = "encoder.layer.{}.attention.self." + axis + "_embeddings.weight"
        state[table.format(1)] = state[table.format(0)].clone()
    interop.import_checkpoint(save(tmp_path / "shared", state), tmp_path / "run")
    assert load_run(tmp_path / "run").config.model.share_tables
    export_run(tmp_path / "run", tmp_path / "back", "pytorch")
    assert_same(torch.load(tmp_path / "back", weights_only=True)["model_state_dict"], state)


def test_buffers_prefixes_and_the_old_file_format_are_read(imported, tmp_path):
    network, run, _ = imported("quadratic")
    state = {f"module.{name}": array.half().float() for name, array in network.state_dict().items()}
    state["module.attention_mask"] = torch.tensor(1.0)
    state["module.encoder.layer.0.attention.self.R"] = torch.zeros(2, 2, 2, 2, 5)
    content = {"epoch": 0, "test_accuracy": torch.tensor(0.5), "model_state_dict": state}
    torch.save(content, tmp_path / "old", _use_new_zipfile_serialization=False)
    interop.import_checkpoint(tmp_path / "old", tmp_path / "run")
    found, like = split(load_run(tmp_path / "run").model)[1], split(run.model)[1]
    assert all(np.array_equal(found[name], np.float32(np.float16(like[name]))) for name in found)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["accuracy"] == 0.5


def test_figures_table_page_and_training_take_an_imported_run(imported, tmp_path, capsys):
    _, _, workdir = imported("quadratic")
    data = f"--data-dir={tmp_path}"
    assert main(["heads", str(workdir), data]) == 0
    assert main(["figures", str(workdir), f"--out={tmp_path}", data]) == 0
    assert main(["page", str(workdir), f"--out={tmp_path / 'page.html'}", "--data-dir", str(tmp_path)]) == 0
    drawn = {"curves.png", "centres.png", "maps_4_4.png", "scheme_layer2.png", "span_layer2.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == drawn
    assert not capsys.readouterr().err


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    file = save(tmp_path / "file", network_of("quadratic").state_dict())
    full = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))  # noqa: E731
    monkeypatch.setattr("attn_cnn_jax.runs.checkpoints.save", full)
    with pytest.raises(UserError, match="No space left"):
        interop.import_checkpoint(file, tmp_path / "folder" / "run")
    assert not (tmp_path / "folder").exists()


def rename(state, old, new):
    return {name.replace(old, new): array for name, array in state.items()}


def without(state, part):
    return {name: array for name, array in state.items() if part not in name}


def with_shape(state, name, *shape):
    return state | {name: torch.zeros(shape)}


SELF = "encoder.layer.1.attention.self."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "features_upscale"), "missing features_upscale.weight"),
        (lambda s: without(s, "layer.1.output.dense.bias"), "missing: encoder.layer.1.output.dense.bias"),
        (lambda s: rename(s, "intermediate", "middle"), "missing encoder.layer.0.intermediate.dense.weight"),
        (lambda s: s | {"pixelizer.weight": torch.zeros(3, 12)}, "unknown: pixelizer.weight"),
        (lambda s: without(s, "attention_spreads"), "allowed are the encodings learned, quadratic"),
        (lambda s: without(s, SELF + "attention_centers"), "missing encoder.layer.1.attention.self.attention_centers"),
        (lambda s: with_shape(s, SELF + "value.weight", 12, 24), r"of another shape .*: .*value.weight \(12, 24\)"),
        (lambda s: with_shape(s, SELF + "attention_centers", 0, 2), "layer 2 has no heads"),
        (lambda s: with_shape(s, "features_upscale.weight", 12, 5), "reads 5 numbers per pixel"),
        (lambda s: with_shape(s, "features_upscale.weight", 12, 9), "config.model.downsample=3"),
        (lambda s: with_shape(s, "classifier.weight", 10), "classifier.weight has the shape"),
        (lambda s: {name: array.double() for name, array in s.items()}, "float32"),
        (lambda s: s | {"classifier.bias": torch.full((10,), torch.nan)}, "not finite, in classifier.bias"),
        (lambda s: {}, "no arrays"),
        (lambda s: {"linear.weight": torch.zeros(10, 512)}, "0-0-0-0 blocks"),
    ],
)
def test_another_network_is_refused_with_the_names(change, message, imported, tmp_path):
    file = save(tmp_path / "file", change(imported("quadratic")[0].state_dict()))
    with pytest.raises(UserError, match=message) as caught:
        interop.import_checkpoint(file, tmp_path / "run")
    assert len(str(caught.value).splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Opens:
    """What a pickle could do: call a function when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "list", "code"])
def test_a_damaged_file_is_refused_and_runs_no_code(damage, imported, tmp_path):
    file = save(tmp_path / "file", imported("quadratic")[0].state_dict())
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        with zipfile.ZipFile(file) as archive:
            largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        content[largest.header_offset + 400] ^= 1
        file.write_bytes(content)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_text("no checkpoint")
    elif damage == "list":
        torch.save([1, 2], file)
    else:
        save(file, {}, more=Opens(str(tmp_path / "opened")))
    with pytest.raises(UserError) as caught:
        interop.import_checkpoint(file, tmp_path / "run")
    assert str(file) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_says_what_was_read_and_refuses_to_overwrite(imported, tmp_path, capsys):
    file = save(tmp_path / "file", imported("quadratic")[0].state_dict())
    assert main(["import", str(file), "--out", str(tmp_path / "runs" / "run")]) == 0
    assert "quadratic, 2 layers, 3 heads, hidden size 12, 10 classes, pictures as in digits" in capsys.readouterr().out
    before = file.read_bytes()
    for arguments in (
        ["import", str(file), "--out", str(tmp_path / "runs" / "run")],
        ["export", str(tmp_path / "runs" / "run"), "--format=pytorch", "--out", str(file)],
    ):
        assert main(arguments) == 1
        assert "exists already" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["import", str(tmp_path / "missing"), "--out", str(tmp_path / "other")]) == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": True, "content": True}, "gate=True: .* no such network"),
        ({"encoding": "relative"}, "encoding='relative': .* no such network"),
        ({"head_size": 4}, "head_size=4: .* no such network"),
        ({"stem": "resnet"}, "stem='resnet': .* no such network"),
        ({"encoding": "learned", "image_shape": (8, 16, 1)}, "image_shape=.8, 16, 1.: .* no such network"),
        ({"activation": "relu"}, "activation='relu': .* allowed is 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06: .* allowed is 1e-12"),
    ],
)
def test_what_the_release_does_not_have_is_not_written(changes, message, imported):
    run = imported("quadratic")[1]
    with run.config.unlocked():
        config = run.config.copy_and_resolve_references()
    config.model.update(changes)
    with pytest.raises(UserError, match=f"^config.model.{message}") as caught:
        interop.check_release_has(run._replace(config=config))
    assert len(str(caught.value).splitlines()) == 1


def test_a_note_that_the_file_cannot_hold_is_refused(imported, tmp_path):
    with pytest.raises(UserError, match=r"^note='on digits': .* no model card"):
        imported("quadratic")[1].export(tmp_path / "file", "pytorch", note="on digits")
    assert list(tmp_path.iterdir()) == []


def test_a_network_before_its_first_epoch_is_read_back(imported, tmp_path):
    _, run, _ = imported("quadratic")
    untrained = run._replace(step=0, test={"step": 0, "epoch": 0.0, "split": "test", "accuracy": 0.5})
    interop.write_release(untrained, tmp_path / "file")
    assert torch.load(tmp_path / "file", weights_only=True)["epoch"] is None  # the release counts from 0
    interop.import_checkpoint(tmp_path / "file", tmp_path / "run")
    assert load_run(tmp_path / "run").step == 0
