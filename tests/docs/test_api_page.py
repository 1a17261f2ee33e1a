"""docs/api.md is what the source says, describes every array, and has all that the notebooks use."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("api", ROOT / "docs" / "api.py")
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)

ARRAYS = re.compile(r"\b(jax\.Array|jnp\.ndarray|np\.ndarray|Arrays)\b")
SHAPE = re.compile(r"`[^`]*\([^`]*\)[^`]*`|scalar|shape|by dotted name|parameters")


def definitions():
    """Every function and method on the page: its name, the signature, and the docstrings that speak of it."""
    for module, names in api.PUBLIC.items():
        tree = ast.parse(api.source_of(module).read_text())
        for node in api.public(tree.body, names):
            about = ast.get_docstring(node) or ""
            yield f"{module}.{node.name}", node, about
            for method in api.public(node.body) if isinstance(node, ast.ClassDef) else ():
                yield f"{module}.{node.name}.{method.name}", method, f"{about}\n{ast.get_docstring(method) or ''}"


DEFINITIONS = {name: (node, about) for name, node, about in definitions()}


def test_the_page_is_what_the_source_says():
    assert api.PAGE.read_text() == api.page(), "write it again: python docs/api.py"


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_function_says_what_it_does_and_the_shapes_of_its_arrays(name):
    node, about = DEFINITIONS[name]
    assert len(about.split()) >= 3
    if isinstance(node, ast.FunctionDef):
        of_arguments = {a.arg: ast.unparse(a.annotation) for a in node.args.args + node.args.kwonlyargs if a.annotation}
        returned = ast.unparse(node.returns) if node.returns else ""
        if any(ARRAYS.search(text) for text in [*of_arguments.values(), returned]):
            assert SHAPE.search(about), f"{name}: arrays without shapes"


def used(source):
    """Names that Python source takes from the package, as `module.name`; modules taken whole by their attributes."""
    tree = ast.parse(source)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attn_cnn_jax":
            module = node.module.removeprefix("attn_cnn_jax").removeprefix(".")
            for alias in node.names:
                whole = f"{module}.{alias.name}".removeprefix(".")
                if whole in api.PUBLIC:
                    modules[alias.asname or alias.name] = whole
                else:
                    yield defined(whole)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield defined(f"{modules[node.value.id]}.{node.attr}")


def defined(name):
    """Where a name of a module that imports it comes from: `analysis.theorem.conv_to_attention -> models...`."""
    module, _, own = name.rpartition(".")
    tree = ast.parse(api.source_of(module).read_text())
    for node in tree.body if own else ():
        if isinstance(node, ast.ImportFrom) and own in {alias.name for alias in node.names}:
            return f"{node.module.removeprefix('attn_cnn_jax.')}.{own}"
    return name


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_all_that_a_notebook_uses_is_on_the_page(path):
    cells = json.loads(path.read_text())["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = {"runs.load_run" if name == "load_run" else name for name in used(source)}
    assert len(names) > 3
    assert names <= DEFINITIONS.keys()
