"""Names of targets, what they stand for, and what is said where they cannot be compiled for."""

import pytest

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.compilation import targets
from attn_cnn_jax.compilation.estimate import estimate
from attn_cnn_jax.compilation.operations import PRODUCT, Operation
from attn_cnn_jax.errors import UserError


def test_names():
    one, eight, slice_ = map(targets.parse, ("h100", "h100x8", "v5e:4x4"))
    assert (one.platform, one.topology) == ("gpu", "1x1x1")
    assert (eight.platform, eight.topology) == ("gpu", "1x1x8")
    assert (slice_.platform, slice_.topology) == ("tpu", "v5e:4x4")
    assert slice_.chip.memory == 16 * 2**30


@pytest.mark.parametrize("name", ["", "h1000", "h100x0", "h100x9", "h100x", "v5e", "v5e:0x4", "v9:2x2", "v5e:2x2x2"])
def test_other_names_are_refused_in_a_line(name, capsys):
    assert main(["compile", "--config=digits", f"--for={name}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"--for={name}: allowed are h100, ")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("raised", "name", "said"),
    [
        (NotImplementedError("topology not implemented for cuda"), "h100", "pip install 'attn-cnn-jax[compile-gpu]'"),
        (RuntimeError("JAX TPU support not installed"), "v5e:2x2", "pip install 'attn-cnn-jax[compile-tpu]'"),
        (ValueError("no such slice: 3x5"), "v5e:3x5", "XLA knows no such devices: no such slice: 3x5"),
    ],
)
def test_a_missing_compiler_and_a_slice_that_is_not_made_are_said(raised, name, said, monkeypatch):
    def fails(**arguments):
        raise raised

    monkeypatch.setattr(targets.topologies, "get_topology_desc", fails)
    with pytest.raises(UserError) as error:
        targets.mesh_of(targets.parse(name))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--config=digits"], 2, "--for is missing"),
        (["--for=h100"], 2, "--config is missing"),
        (["--config=digit", "--for=h100"], 1, "there is no config file digit"),
        (["--config=digits", "--for=h100", "--config.model.num_heds=3"], 1, "did you mean config.model.num_heads?"),
    ],
)
def test_bad_flags(argv, status, message, capsys):
    assert main(["compile", *argv]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_large_product_takes_what_arithmetic_says():
    """4096^3 multiply-adds in float32 at 400 TFLOP/s."""
    product = Operation("dot", PRODUCT, 3 * 4 * 4096**2, 4096**3, "f32", 1, "", "dot", "")
    chip = targets.parse("h100").chip
    assert estimate([product], chip).total == pytest.approx(2 * 4096**3 / 400e12)
    assert estimate([product._replace(dtype="bf16")], chip).total == pytest.approx(2 * 4096**3 / 800e12)
    assert estimate([product._replace(dtype="f32 highest")], chip).total == pytest.approx(2 * 4096**3 / 54e12)
    narrow = product._replace(bytes=3 * 10**9)
    assert estimate([narrow], chip).total == pytest.approx(1e-3)
