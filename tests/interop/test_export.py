"""Exported networks compute what the run computes: as arrays, as StableHLO without this package, in ONNX Runtime."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import attn_cnn_jax
from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import export as export_module
from attn_cnn_jax.interop import inference, stablehlo
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import checkpoints, weights
from attn_cnn_jax.runs.directory import to_json
from attn_cnn_jax.runs.run import Run
from tests.support import networks

SMALL = {"image_shape": (4, 4, 1), "hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "downsample": 1}
OURS = (
    "absolute_learned",
    "absolute_sinusoidal",
    "content",
    "learned",
    "quadratic",
    "quadratic_generalized",
    "relative",
)
NETWORKS = {name: {"encoding": name, "num_heads": 2} for name in OURS if name != "content"} | {
    "content_alone": {"encoding": "content", "num_heads": 2},
    "content": {"encoding": "learned", "content": True, "num_heads": 2, "num_layers": 2, "share_tables": True},
    "gate": {"encoding": "quadratic", "content": True, "gate": True, "num_heads": 2, "head_size": 4},
    "pruned": {"num_heads": (3, 1), "num_layers": 2},
    "factorised": {"num_heads": 2, "attention_dropout": 0.0, "implementation": "factorised"},
    "resnet": {},
}
OTHERS = [name for name in NETWORKS if name != "quadratic"]
TEST = {"step": 40, "epoch": 2.0, "split": "test", "loss": 0.5, "accuracy": 0.875}


@pytest.fixture
def run_of():
    """`run_of(name)`: a run with a network of NETWORKS; its statistics of batch norm are not those at the start."""

    def of(name):
        if name == "resnet":
            config = resnet_config(depth=10, width=4, image_shape=(4, 4, 1))
        else:
            config = attention_config(**SMALL | NETWORKS[name])
        config.dataset.name = "digits"
        model = create_model(config.model, rngs=nnx.Rngs(1))
        for n, (_, module) in enumerate(nnx.iter_modules(model)):
            if isinstance(module, nnx.BatchNorm):
                module.mean[...] = module.mean[...] + 0.1 * n
                module.var[...] = module.var[...] * 1.5
        return Run(config, 40, model, test=TEST)

    return of


def logits_of(run, images):
    return np.asarray(networks.logits_of(run.model, run.normalised(images)))


def pictures(count=5):
    return np.random.default_rng(2).integers(0, 256, (count, 4, 4, 1), np.uint8)


def test_all_encodings_are_covered():
    assert set(OURS) == {name for name, kind in REGISTRY.items() if kind.__module__.startswith("attn_cnn_jax.")}


@pytest.mark.parametrize("name", NETWORKS)
def test_safetensors_hold_every_array_and_become_a_run_again(name, run_of, tmp_path):
    run = run_of(name)
    run.export(tmp_path / "export")
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == [
        "README.md",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
    ]
    exported = load_run(tmp_path / "export")
    assert main(["import", str(tmp_path / "export"), f"--out={tmp_path / 'run'}"]) == 0
    imported = load_run(tmp_path / "run")
    for again in (exported, imported):
        assert (again.step, again.test, to_json(again.config)) == (40, TEST, to_json(run.config))
        for before, after in zip(split(run.model)[1:], split(again.model)[1:], strict=True):
            assert before.keys() == after.keys()
            assert all(np.array_equal(before[key], after[key]) for key in before)
    np.testing.assert_allclose(logits_of(exported, pictures()), logits_of(run, pictures()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_stablehlo_computes_the_logits_of_any_batch(name, run_of, tmp_path):
    run = run_of(name)
    stablehlo.write(tmp_path, run)
    exported = jax.export.deserialize(bytearray((tmp_path / stablehlo.FILE).read_bytes()))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    expected = logits_of(run, pictures())
    for count in (1, 5):
        np.testing.assert_allclose(exported.call(pictures(count)), expected[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("name", ["content", "resnet"])
def test_stablehlo_multiplies_in_the_precision_of_the_run(name, precision, run_of, tmp_path):
    run = run_of(name)
    run.config.train.matmul_precision = precision
    stablehlo.write(tmp_path, run)
    text = jax.export.deserialize(bytearray((tmp_path / stablehlo.FILE).read_bytes())).mlir_module()
    products = [
        line for line in text.splitlines() if "stablehlo.dot_general" in line or "stablehlo.convolution" in line
    ]
    assert products
    assert all(("HIGHEST" in line) == (precision == "highest") for line in products)


@pytest.mark.parametrize(
    ("backend", "precision", "allowed"),
    [("cpu", "default", False), ("gpu", "default", True), ("gpu", "highest", False)],
)
def test_rounding_counts_as_such_where_products_are_rounded(backend, precision, allowed, run_of, monkeypatch):
    """TensorFloat-32 rounds numbers by up to 1 in 2048, in products of an exported function too."""
    run = run_of("quadratic")
    run.config.train.matmul_precision = precision
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def rounded(images):
        assert jax.config.jax_default_matmul_precision == "highest"  # of what is traced now
        return (1 + 2**-11) * logits_of(run, images)

    if allowed:
        assert inference.difference(run, rounded) > 0
        return
    with pytest.raises(UserError, match="more than rounding"):
        inference.difference(run, rounded)


def test_stablehlo_loads_without_this_package(run_of, tmp_path):
    run = run_of("content")
    run.export(tmp_path / "export", "jax")
    np.save(tmp_path / "images.npy", pictures())
    script = tmp_path / "script.py"
    card = (tmp_path / "export" / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "export"))
    script.write_text(
        "import sys, numpy as np\n"
        "sys.modules['attn_cnn_jax'] = None\n"
        f"images = np.load({str(tmp_path / 'images.npy')!r})\n"
        f"{code}\n"
        f"np.save({str(tmp_path / 'logits.npy')!r}, logits)\n"
    )
    environment = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), logits_of(run, pictures()), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jax2onnx reads parameters in a way that Flax gives up
@pytest.mark.parametrize("name", ["quadratic", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_onnx_runtime_computes_the_logits_of_any_batch(name, run_of, tmp_path):
    pytest.importorskip("jax2onnx", reason='pip install "attn-cnn-jax[onnx]"')
    onnxruntime = pytest.importorskip("onnxruntime")
    run = run_of(name)
    said = run.export(tmp_path / "export", "onnx")
    assert float(said.split()[-1]) <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "export" / "model.onnx")
    expected = logits_of(run, pictures())
    for count in (1, 5):
        (found,) = session.run(["logits"], {"images": pictures(count)})
        np.testing.assert_allclose(found, expected[:count], rtol=0, atol=1e-5)


def test_onnx_is_asked_for_by_the_name_of_its_extra(run_of, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"attn-cnn-jax\[onnx\]"):
        run_of("quadratic").export(tmp_path / "export", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_card_says_data_accuracy_classes_normalisation_and_seed(run_of, tmp_path):
    run = run_of("quadratic")
    run.export(tmp_path / "export", note="Trained on half of the data.")
    card = (tmp_path / "export" / "README.md").read_text()
    for text in ("| data | digits", "87.50%", "0, 1, 2, 3", "mean 0.3052, std 0.376", "seed 0", "half of the data"):
        assert text in card


def test_the_folder_of_the_data_stays_on_this_machine(quadratic_run, tmp_path):
    run = load_run(quadratic_run)
    run.export(tmp_path / "export")
    assert run.config.dataset.data_dir
    there = load_run(tmp_path / "export").config
    assert there.dataset.data_dir == ""
    there.dataset.data_dir = run.config.dataset.data_dir
    assert to_json(there) == to_json(run.config)


def test_an_export_that_computes_something_else_is_not_left_behind(run_of, tmp_path, monkeypatch):
    def wrong(folder, run):
        changed = run_of("quadratic")
        changed.model.classifier.bias[...] += 1.0
        return export_module.difference(run, lambda images: logits_of(changed, images))

    monkeypatch.setitem(export_module.FOLDERS, "safetensors", wrong)
    with pytest.raises(UserError, match="differ by 1"):
        run_of("quadratic").export(tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_the_command_exports_and_refuses_what_exists(quadratic_run, tmp_path, capsys):
    out = tmp_path / "folder" / "export"
    assert main(["export", str(quadratic_run), "--format=safetensors", f"--out={out}"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: README.md, config.json")
    assert main(["predict", str(out), "nothing.png"]) == 1  # an export is given like a run
    assert capsys.readouterr().err == "there is no file nothing.png\n"
    assert main(["export", str(quadratic_run), "--format=jax", f"--out={out}"]) == 1
    assert "exists already" in capsys.readouterr().err


def change_header(path, **changes):
    header, arrays = weights.read_arrays(path)
    path.write_bytes(weights.save(arrays, header | changes))


def replace_arrays(path, **arrays):
    path.write_bytes(weights.save(arrays, weights.read_arrays(path)[0]))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "damaged or no safetensors file"),
        (lambda path: path.write_bytes(b""), "damaged or no safetensors file"),
        (lambda path: path.write_text("no weights, but a text that is long enough"), "no safetensors file"),
        (flip, "checksum is not the one saved"),
        (lambda path: change_header(path, step="forty"), "damaged"),
        (lambda path: change_header(path, format="pt"), "was not written by attn-cnn export"),
        (lambda path: change_header(path, version="2"), "update attn-cnn-jax"),
        (lambda path: replace_arrays(path, weight=np.ones(3)), "missing: blocks.0.attention.output.bias"),
        (lambda path: (path.parent / "config.json").write_text("{"), "config.json is damaged"),
        (lambda path: (path.parent / "config.json").unlink(), "has no config.json"),
        (lambda path: path.unlink(), "holds no model.safetensors"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(damage, message, run_of, tmp_path, capsys):
    run_of("quadratic").export(tmp_path / "export")
    damage(tmp_path / "export" / weights.FILE)
    assert main(["import", str(tmp_path / "export"), f"--out={tmp_path / 'run'}"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_arrays_of_another_network_are_refused(run_of, tmp_path):
    run_of("quadratic").export(tmp_path / "export")
    path = tmp_path / "export" / "config.json"
    values = json.loads(path.read_text())
    values["model"]["hidden_size"] = 16
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"of another shape or type: blocks.0.attention.output.bias \(8,\)"):
        load_run(tmp_path / "export")


def test_what_an_export_has_not_is_refused(run_of, tmp_path):
    run_of("quadratic").export(tmp_path / "export")
    assert load_run(tmp_path / "export", 40, 0).step == 40
    for arguments in ((3,), ("best",), ("latest", 1)):
        with pytest.raises(UserError, match=r"holds one network|has seed 0 alone"):
            load_run(tmp_path / "export", *arguments)


def test_an_export_of_a_checkpoint_has_its_arrays(quadratic_run, tmp_path):
    load_run(quadratic_run).export(tmp_path / "export")
    with checkpoints.open_checkpoints(quadratic_run, read_only=True) as manager:
        step = manager.latest_step()
    assert load_run(tmp_path / "export").step == step == 20
    assert load_run(tmp_path / "export").test["accuracy"] == pytest.approx(0.6)


def test_intermediates_come_as_arrays_joined_over_batches(run_of):
    run, images = run_of("content"), pictures()
    found = run.intermediates(images, batch_size=2)
    logits, expected = jax.jit(run.model)(run.normalised(images))
    np.testing.assert_allclose(found["logits"], logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["embedding"], expected["embedding"], rtol=0, atol=1e-5)
    for ours, theirs in zip(found["layers"], expected["layers"], strict=True):
        np.testing.assert_allclose(ours["attention"], theirs["attention"], rtol=0, atol=1e-5)
        for name, scores in theirs["position_scores"].items():  # the same for all pictures
            np.testing.assert_allclose(ours["position_scores"][name], scores, rtol=0, atol=1e-5)


def test_a_network_of_explicit_values():
    model = attn_cnn_jax.create_model(image_shape=(4, 4, 1), num_layers=1, num_heads=2, hidden_size=8, downsample=1)
    assert [block.attention.num_heads for block in model.blocks] == [2]
    logits, _ = model(np.zeros((3, 4, 4, 1), np.float32))
    assert logits.shape == (3, 10)
    same, other = (attn_cnn_jax.create_model(hidden_size=8, num_layers=1, seed=seed) for seed in (0, 1))
    assert not np.array_equal(same.classifier.kernel[...], other.classifier.kernel[...])
    with pytest.raises(UserError, match=r"did you mean config\.model\.num_heads"):
        attn_cnn_jax.create_model(num_head=2)
    with pytest.raises(UserError, match="hidden_size=0"):
        attn_cnn_jax.create_model(hidden_size=0)
    with pytest.raises(UserError, match="attention, resnet"):
        attn_cnn_jax.create_model("vgg")
