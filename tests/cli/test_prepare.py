"""The command that prepares a data set: what it prints and its exit status; `tests/data` tests the work."""

import pytest

from attn_cnn_jax.cli.main import main
from tests.support import cifar_archives


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "d"))
    return lambda *arguments: main(["prepare", *map(str, arguments)])


def test_an_archive_is_named_prepared_and_read_back(command, tmp_path, capsys):
    archive = cifar_archives.write(tmp_path / "a.tar.gz", kind="python")
    assert command("cifar10", "--archive", archive) == 0
    reading, verdict, records, arrays, counts, reduced, done = capsys.readouterr().out.splitlines()
    assert reading == f"Reading {archive}"
    assert verdict.endswith("not the official archive (python layout)")
    assert records == f"Writing {tmp_path}/d/cifar10/3.0.2"
    assert arrays == f"Writing {tmp_path}/d/prepared/cifar10"
    assert counts.startswith("cifar10: 25 train, 7 test images of 10 classes, 32x32x3, mean 0.4914, ")
    assert "a reduced copy" in reduced
    assert done == "Read back 25 training and 7 test images"
    assert command("cifar10", "--archive", archive) == 0
    assert f"cifar10 is already prepared in {tmp_path}/d" in capsys.readouterr().out
    other = cifar_archives.write(tmp_path / "b.tar.gz", seed=1)
    assert command("cifar10", "--archive", other) == 1
    assert "from another archive.\nAdd --replace" in capsys.readouterr().err
    assert command("cifar10", "--archive", other, "--replace") == 0
