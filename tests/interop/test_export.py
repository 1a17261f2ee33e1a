"""Exported networks compute what the run computes: as arrays, as StableHLO without this package, in ONNX Runtime."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import export as export_module
from attn_cnn_jax.interop.card import card, markdown
from attn_cnn_jax.interop.export import check_for_onnx, export, inference
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.directory import to_json
from attn_cnn_jax.runs.run import Run
from tests.support import networks

ROOT = Path(__file__).parents[2]
SMALL = {"image_shape": (4, 4, 1), "hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "downsample": 1}
NETWORKS = {
    "quadratic": {"num_heads": 2},
    "quadratic_generalized": {"encoding": "quadratic_generalized", "num_heads": 2},
    "absolute_learned": {"encoding": "absolute_learned", "num_heads": 2},
    "relative": {"encoding": "relative", "num_heads": 2},
    "content": {"encoding": "content", "num_heads": 2},
    "learned_content": {"encoding": "learned", "content": True, "num_heads": 2, "num_layers": 2},
    "gate": {"encoding": "quadratic", "content": True, "gate": True, "num_heads": 2, "head_size": 4},
    "pruned": {"num_heads": (3, 1), "num_layers": 2},
    "window": {"downsample": 2, "window": 3, "block": "pre_norm", "num_heads": 2},
    "small_window": {"downsample": 2, "window": 1, "num_heads": 2},
    "resnet": {},
}
TEST = {"step": 40, "epoch": 2.0, "split": "test", "loss": 0.5, "accuracy": 0.875}


@pytest.fixture(scope="module")
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
        return Run(config, 40, model, test_record=TEST)

    return of


def logits_of(run, images):
    return np.asarray(networks.logits_of(run.model, run.normalised(images)))


def noise(count=5):
    return np.random.default_rng(2).integers(0, 256, (count, 4, 4, 1), np.uint8)


@pytest.fixture(scope="module")
def exported(run_of, tmp_path_factory):
    """`exported(folder, name)` copies the safetensors of a network, exported once, to `folder / "export"`."""
    place = tmp_path_factory.mktemp("exported")

    def copy(folder, name="quadratic"):
        if not (place / name).exists():
            export(run_of(name), place / name)
        return shutil.copytree(place / name, folder / "export")

    return copy


@pytest.mark.parametrize("name", ["learned_content", "pruned", "window", "small_window", "resnet"])
def test_safetensors_hold_every_array_and_are_a_run(name, run_of, exported, tmp_path):
    run = run_of(name)
    exported(tmp_path, name)
    files = ["README.md", "config.json", "metrics.jsonl", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == files
    again = load_run(tmp_path / "export")
    assert (again.step, again.test_record, to_json(again.config)) == (40, TEST, to_json(run.config))
    for before, after in zip(split(run.model)[1:], split(again.model)[1:], strict=True):
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(("name", "precision"), [("quadratic", "highest"), ("resnet", "default")])
def test_stablehlo_computes_the_logits_of_any_batch_in_the_precision_of_the_run(name, precision, run_of, tmp_path):
    run = run_of(name)
    run.config.train.matmul_precision = precision
    export_module.write_stablehlo(tmp_path, run)
    exported = jax.export.deserialize(bytearray((tmp_path / export_module.STABLEHLO).read_bytes()))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    products = [line for line in exported.mlir_module().splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all(("HIGHEST" in line) == (precision == "highest") for line in products)
    expected = logits_of(run, noise())
    for count in (1, 5):
        np.testing.assert_allclose(exported.call(noise(count)), expected[:count], rtol=0, atol=1e-5)


def test_rounding_is_allowed_where_products_are_rounded(run_of, monkeypatch):
    """TensorFloat-32 rounds numbers by up to 1 in 2048, in products of an exported function too."""
    run = run_of("quadratic")
    for backend, precision, allowed in (("cpu", "default", 0), ("gpu", "default", 1), ("gpu", "highest", 0)):
        run.config.train.matmul_precision = precision
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        with contextlib.nullcontext() if allowed else pytest.raises(UserError, match="more than rounding"):
            assert export_module.difference(run, lambda images: (1 + 2**-11) * logits_of(run, images)) > 0


def test_stablehlo_loads_without_this_package(run_of, tmp_path):
    run = run_of("learned_content")
    assert float(export(run, tmp_path / "export", "jax").split()[-1]) < 1e-5  # the largest difference of the logits
    np.save(tmp_path / "images.npy", noise())
    script = tmp_path / "script.py"
    text = (tmp_path / "export" / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "export"))
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
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), logits_of(run, noise()), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jax2onnx reads parameters in a way that Flax gives up
@pytest.mark.parametrize(
    "name", ["quadratic", *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS if n != "quadratic")]
)
def test_onnx_runtime_computes_the_logits_of_any_batch(name, run_of, tmp_path):
    pytest.importorskip("jax2onnx", reason='pip install -e ".[onnx]"')
    onnxruntime = pytest.importorskip("onnxruntime")
    run = run_of(name)
    said = export(run, tmp_path / "export", "onnx")
    assert float(said.split()[-1]) <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "export" / "model.onnx")
    expected = logits_of(run, noise())
    for count in (1, 5):
        (found,) = session.run(["logits"], {"images": noise(count)})
        np.testing.assert_allclose(found, expected[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (lambda x: jax.nn.softmax(x, axis=(1, 2)), "a softmax over several axes"),
        (lambda x: jax.jit(lambda y: jax.nn.softmax(y, axis=(1, 2)))(x), "a softmax over several axes"),
        (lambda x: jax.image.resize(x, (1, 8, 8), "linear"), "jax.image.resize"),
        (lambda x: x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16), "products in bfloat16"),
        (lambda x: jax.nn.softmax(x).sum() + x.max(axis=(1, 2)) + jax.nn.logsumexp(x, axis=(1, 2)), None),
    ],
)
def test_what_onnx_lacks_is_said_before_the_export(operation, said):
    program = jax.make_jaxpr(operation)(jnp.ones((1, 4, 4))).jaxpr
    if said:
        with pytest.raises(UserError, match=f"^--format=onnx: this network has {said}"):
            check_for_onnx(program)
    else:
        check_for_onnx(program)


def test_no_network_of_the_package_lacks_anything_for_onnx(run_of):
    run = run_of("quadratic")
    run.config.model.dtype = "bfloat16"  # exported in float32
    program = jax.make_jaxpr(inference(run, "float32"))(np.zeros((1, *run.config.model.image_shape), np.uint8))
    check_for_onnx(program.jaxpr)


def test_what_a_format_needs_is_named_with_how_to_install_it(run_of, tmp_path, monkeypatch, capsys):
    for package in ("jax2onnx", "torch"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    out, file = f"--out={tmp_path / 'out'}", tmp_path / "config.json"
    file.touch()
    for extra, command in {
        "onnx": ["export", str(tmp_path), "--format=onnx", out],  # before the run is loaded
        "torch": ["export", str(tmp_path), "--format=pytorch", out],
        "torch ": ["import", str(file), "--config=digits", out],
    }.items():
        assert main(command) == 1
        assert f'pip install -e ".[{extra.strip()}]"' in capsys.readouterr().err
    with pytest.raises(UserError, match=r'pip install -e "\.\[torch\]"$'):
        export(run_of("quadratic"), tmp_path / "out", "pytorch")
    assert list(tmp_path.iterdir()) == [file]


def test_no_text_advises_a_package_that_is_on_no_index():
    texts = [path for kind in ("attn_cnn_jax/**/*.py", "docs/*.md", "notebooks/*.ipynb") for path in ROOT.glob(kind)]
    assert len(texts) > 50
    wrong = re.compile(r"pip (install|download)[^\n]*attn-cnn-jax\[")
    assert [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []


NAMES = {  # of classes: as the card shows them
    "digits": "digits",
    "a|b": r"a\|b",
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!-- c": r"&lt;\!-- c",
    "[d](http://e.f)": r"\[d\](http://e.f)",
    "*x* _y_ `z`": r"\*x\* \_y\_ \`z\`",
    "a\n\n# b\x1b[0m\u202e": r"a \# b \[0m",
    "m\\|n": r"m\\\|n",
    "&lt;": "&amp;lt;",
    "50% caf\u00e9 \u2014 \u732b": "50% caf\u00e9 \u2014 \u732b",
}


def test_the_card_names_what_is_exported_and_names_are_no_markup(run_of):
    """Of a hub that shows HTML within Markdown, and of a table whose cells end at |."""
    run = run_of("quadratic")
    text = card(run, "safetensors", note="Trained on half of the data.")
    for part in ("| data | digits", "87.50%", "0, 1, 2, 3", "mean 0.3052, std 0.376", "seed 0", "half of the data"):
        assert part in text
    run.config.dataset.class_names = tuple(NAMES)
    text = card(run, "safetensors", note="<img src=x onerror=alert(1)> | see <!-- here")
    (line,) = (line for line in text.splitlines() if line.startswith("| 10 classes"))
    assert len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) == 4  # two cells, and what is outside the bars
    assert "<" not in text.split("```python")[0].split("---\n", 2)[2]
    for name, shown in NAMES.items():
        assert markdown(name) == shown
        assert shown in line


def test_the_command_exports_and_refuses_what_exists(quadratic_run, tmp_path, capsys):
    out = tmp_path / "folder" / "export"
    assert main(["export", str(quadratic_run), "--format=safetensors", f"--out={out}"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: README.md, config.json")
    config = load_run(out).config
    assert config.dataset.data_dir == ""  # the folder of the data stays on this machine
    config.dataset.data_dir = load_run(quadratic_run).config.dataset.data_dir
    assert to_json(config) == to_json(load_run(quadratic_run).config)
    assert main(["predict", str(out), "nothing.png"]) == 1  # an export is given like a run
    assert capsys.readouterr().err == "there is no file nothing.png\n"
    assert main(["export", str(quadratic_run), "--format=jax", f"--out={out}"]) == 1
    assert "exists already" in capsys.readouterr().err


def resize(path):
    values = json.loads(path.read_text())
    values["model"]["hidden_size"] = 16
    path.write_text(json.dumps(values))


DAMAGE = {
    "of another size": (lambda path: resize(path.parent / "config.json"), "of another shape.*: blocks.0.* .8,."),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "damaged or no safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "damaged or no safetensors file"),
    "flipped": (
        lambda path: path.write_bytes(path.read_bytes()[:-3] + bytes([path.read_bytes()[-3] ^ 1]) + b"\0\0"),
        "checksum is not the one saved",
    ),
    "foreign": (
        lambda path: path.write_bytes(weights.save({"weight": np.ones(3)}, {"format": "pt"})),
        "missing: .* more; unknown: weight",
    ),
    "config cut": (lambda path: (path.parent / "config.json").write_text("{"), "config.json is damaged"),
    "no config": (lambda path: (path.parent / "config.json").unlink(), "has no config.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_folder_is_refused(damage, exported, tmp_path):
    exported(tmp_path)
    change, message = DAMAGE[damage]
    change(tmp_path / "export" / weights.FILE)
    with pytest.raises(UserError, match=message) as caught:
        load_run(tmp_path / "export")
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(("dtype", "kept"), [("float16", True), ("float64", False)])
def test_weights_stored_again_in_another_precision_are_read(dtype, kept, run_of, exported, tmp_path):
    run = run_of("learned_content")
    exported(tmp_path, "learned_content")
    path = tmp_path / "export" / weights.FILE
    header, arrays = weights.read_arrays(path)
    stored = {name: array.astype(jnp.dtype(dtype)) for name, array in arrays.items()}
    path.write_bytes(weights.save(stored, header if kept else {"format": "pt"}))
    again = load_run(tmp_path / "export")
    assert again.step == (40 if kept else 0)
    for name, array in split(again.model)[1].items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, stored[name].astype(np.float32))
    np.testing.assert_allclose(logits_of(again, noise()), logits_of(run, noise()), rtol=0, atol=0.05)
