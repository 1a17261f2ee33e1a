"""The source archive holds the tree; the wheel made of it is complete and works alone."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("attn_cnn_jax", "benchmarks", "configs", "docs", "notebooks", "results", "robustness", "tests", "typings")
GENERATED = ("docs/_build/", "docs/api/", "docs/notebooks/")
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "conftest.py")
FILES += ("constraints.txt", "pyproject.toml", "setup.cfg", "train.py")
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"

pytestmark = pytest.mark.slow


def build(kind, tree, folder):
    """Builds offline in a source tree: "build_sdist" or "build_wheel"; the archive's path."""
    command = [sys.executable, "-c", BUILD, kind, folder]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Deprecat" not in done.stdout + done.stderr
    return folder / done.stdout.splitlines()[-1]


def sources():
    """Files of the checkout that people get: relative paths."""
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    }
    return set(FILES) | {name for name in found if not name.startswith(GENERATED)}


def test_the_source_archive_holds_the_tree_and_the_wheel_made_of_it_works_alone(tmp_path):
    tree = tmp_path / "tree"
    for name in sources():  # a copy: setuptools writes beside what it builds
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(build("build_sdist", tree, tmp_path)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it since 3.11.4
        archive.extractall(tmp_path / "extracted")
    (extracted,) = (tmp_path / "extracted").iterdir()
    assert sources() - {str(path.relative_to(extracted)) for path in extracted.rglob("*")} == set()

    wheel = build("build_wheel", extracted, tmp_path)
    command = [sys.executable, "-m", "check_wheel_contents", str(wheel)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "attn_cnn_jax", "train", "--config=digit"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    names = ", ".join(sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
    assert done.stderr == f"there is no config file digit; give its path, or one of {names}\n"


def test_networks_for_onnx_install_with_the_other_versions_of_constraints(tmp_path):
    """jax2onnx asks for orbax-checkpoint below 0.11.37, which setup.cfg allows and constraints.txt does not have."""
    command = ["make", "--no-print-directory", "--dry-run", f"VENV={tmp_path}", "install", "EXTRAS=onnx"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (made,) = (line for line in said.splitlines() if line.startswith("grep"))
    subprocess.run(made, cwd=ROOT, shell=True, check=True)
    assert f"--constraint {tmp_path}/without-orbax.txt" in said
    pinned, left = (path.read_text() for path in (ROOT / "constraints.txt", tmp_path / "without-orbax.txt"))
    gone = set(pinned.splitlines()) - set(left.splitlines())
    assert [name.partition("=")[0] for name in gone] == ["orbax-checkpoint"]
    (orbax,) = re.findall(r"^ *orbax-checkpoint>=([\d.]+),<1$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert tuple(map(int, orbax.split("."))) <= (0, 11, 36)
