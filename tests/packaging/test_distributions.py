"""The wheel has the whole package and the configuration files, the source archive the rest; both are built offline."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("attn_cnn_jax", "benchmarks", "configs", "docs", "notebooks", "tests")
FILES = (
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.cfg",
    "train.py",
)
BUILD = "import sys, setuptools.build_meta as b; out = sys.argv[1]; b.build_wheel(out); b.build_sdist(out)"


def files_of(folder):
    """Relative paths of a source folder's files."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive, built from a copy of the tree."""
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed: pip install -e .[test]")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is too old to build: pip install -e .[test]")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, tree / file)
    done = subprocess.run([sys.executable, "-c", BUILD, out], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Deprecat" not in done.stdout + done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_holds_the_package_and_its_configs_alone(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files_of("attn_cnn_jax") | {f"attn_cnn_jax/{name}" for name in files_of("configs")}


def test_the_source_archive_holds_the_tree(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = set(FILES).union(*map(files_of, SOURCES))
    assert expected - names == set()


def test_the_wheel_alone_lists_its_configs_and_refuses_others_in_a_line(built, tmp_path):
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "JAX_PLATFORMS": "cpu"}

    def command(*arguments):
        line = [sys.executable, "-m", "attn_cnn_jax", *arguments]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)

    unknown = command("train", "--config=digit")
    assert unknown.returncode == 1
    assert (
        unknown.stderr
        == "there is no config file digit; give its path, or one of "
        + ", ".join(sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
        + "\n"
    )
    # The name is found, and what it holds is checked.
    refused = command("train", "--config=digits", "--config.train.batch_size=0")
    assert refused.returncode == 1
    assert refused.stderr.startswith("config.train.batch_size=0: allowed is")
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
