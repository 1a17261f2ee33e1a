"""What is imported is declared in setup.cfg, and what is declared is imported."""

import ast
import configparser
import functools
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"attn_cnn_jax", "benchmarks", "configs", "tests"}

# Declared without an import here, and why.
NEEDED_BY_OTHERS = {
    "array_record": "tensorflow_datasets reads ArrayRecord files with it and does not declare it",
    "importlib_resources": "tensorflow_datasets imports it and does not declare it",
}
# Run as programs or plugins, or imported only where a test finds them.
PROGRAMS = {"ipykernel", "nbclient", "pytest-timeout", "pytest-xdist", "ruff", "setuptools"}

# The name to import, where no installed distribution tells (an extra may be absent).
EXTRAS = {"torch": "torch", "selenium": "selenium", "chex": "chex", "hypothesis": "hypothesis"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(*folders):
    """Top-level names imported below folders (or by files), anywhere in the code, without ours and Python's."""
    names = set()
    for folder in folders:
        path = ROOT / folder
        for file in [path] if path.is_file() else path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names.add(node.module.split(".")[0])
    beside = {file.stem for file in (ROOT / "tests").rglob("*.py")}  # that tests import from their own folder
    return names - OURS - beside - sys.stdlib_module_names


@functools.cache
def installed():
    """Distributions by the names that they give to import."""
    return metadata.packages_distributions()


def distribution(name):
    """The distribution that gives an import name."""
    found = installed().get(name)
    return normal(found[0]) if found else EXTRAS.get(name, name)


def declared():
    """Distributions that setup.cfg names: by extra, "" for those that are always installed."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    sections = {"": config["options"]["install_requires"]} | dict(config["options.extras_require"])
    lines = {extra: (line.strip() for line in text.splitlines()) for extra, text in sections.items()}
    return {
        extra: {normal(re.split(r"[\[<>=!~; ]", line)[0]) for line in found if line and not line.startswith("#")}
        for extra, found in lines.items()
    }


def test_the_package_imports_what_it_declares():
    names = {distribution(name) for name in imports("attn_cnn_jax", "configs", "train.py")}
    always = declared()[""]
    assert names - always == {"torch"}  # interop alone, which says which extra it needs
    assert always - names == set(map(normal, NEEDED_BY_OTHERS))


def test_tests_and_tools_import_what_is_declared():
    by_extra = declared()
    names = {distribution(name) for name in imports("tests", "benchmarks", "docs")}
    assert names <= by_extra[""] | by_extra["test"] | by_extra["torch"]
    assert by_extra["test"] - names - PROGRAMS == set()


@pytest.mark.parametrize("name", NEEDED_BY_OTHERS)
def test_what_is_needed_by_others_is_imported_there(name):
    files = [Path(file.locate()) for file in metadata.files("tensorflow-datasets") if file.suffix == ".py"]
    assert any(re.search(rf"\bimport {name}\b|\bfrom {name}\b|['\"]{name}\b", file.read_text()) for file in files)
