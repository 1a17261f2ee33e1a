"""What README.md, CONTRIBUTING.md and the pages of docs/ say exists: commands, configurations, keys, modules, files."""

import ast
import functools
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained, read_image
from attn_cnn_jax.cli.arguments import Parser, separate
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.cli.main import SUBCOMMANDS
from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.config.base import flatten
from attn_cnn_jax.data.image_files import DRAWINGS
from attn_cnn_jax.runs.pretrained import FOLDER

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ORDER = ["Two commands", "Look at a run", "Results", "The theorem in ten lines", "Further", "Cite"]
MODULES = r"python -m ((?:attn_cnn_jax|benchmarks|robustness)[\w.]*)(.*)"


def shell_lines(text):
    """Command lines of a page: those of its `sh` blocks and those between backticks, without comments and output."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.strip() for line in lines if line.strip()]


def ours(line):
    """The subcommand and the arguments of a line that calls `attn-cnn` by one of its names; None for other lines."""
    words = shlex.split(line, comments=True)
    names = (["attn-cnn"], [".venv/bin/attn-cnn"], ["python", "-m", "attn_cnn_jax"])
    for name in names:
        if words[: len(name)] == name and len(words) > len(name) and re.fullmatch(r"[a-z]+", words[len(name)]):
            return words[len(name)], words[len(name) + 1 :]
    if words[:2] == ["python", "train.py"]:
        return "train", words[2:]
    if words[:2] == ["make", "train"]:
        variables = dict(word.split("=", 1) for word in words[2:])
        config = variables.get("CONFIG", "configs/digits.py")
        return "train", [f"--config={config}", *variables.get("ARGS", "").split()]
    return None


def commands(page):
    """Lines of a page that call `attn-cnn`, with subcommand and arguments; `attn-cnn ... NAME` stands for no line."""
    lines = [line for line in shell_lines(page.read_text()) if not re.search(r"SUBCOMMAND|\.\.\.|\$", line)]
    return [(line, *found) for line in lines if (found := ours(line))]


# Files that pages write for the reader; test_extending.py runs them.
OWN_FILES = {name for page in PAGES for name in re.findall(r"^# (\w+\.py)$", page.read_text(), re.MULTILINE)}


@functools.cache
def parser(name):
    module = importlib.import_module(f"attn_cnn_jax.cli.{name if name != 'import' else 'import_'}")
    result = Parser(prog=name)
    module.add_arguments(result)
    return result


def test_commands_parse_and_all_are_named():
    """As `attn-cnn` parses them, with the configuration that they name."""
    named = set()
    for page in PAGES:
        for line, name, arguments in commands(page):
            named.add(name)
            if len(line.split()) == 2 and not arguments and name != "summary":
                continue  # `attn-cnn page` alone names the subcommand
            overrides, rest = separate(arguments) if parser(name).takes_overrides else ([], arguments)
            try:
                args = parser(name).parse_args(rest)
            except SystemExit:
                pytest.fail(f"{page.name}: {line}")
            if getattr(args, "config", None) and args.config not in OWN_FILES:
                load_config(args.config, overrides)
    assert named == set(SUBCOMMANDS)


def test_modules_and_their_options_exist():
    """Of `python -m benchmarks.NAME --option`, and of other modules that are run."""
    found = [call for page in PAGES for line in shell_lines(page.read_text()) for call in re.findall(MODULES, line)]
    assert len(found) > 10
    for module, arguments in found:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
        if module != "attn_cnn_jax":
            source = "".join(file.read_text() for file in path.parent.glob("*.py"))
            for option in re.findall(r"--[\w-]+", arguments.split("#")[0]):
                assert f'"{option}"' in source, f"{module} {option}"


def test_configuration_keys_exist():
    keys = {key for config in (attention_config(), resnet_config()) for key in flatten(config)}
    keys |= {key.partition(".")[0] for key in keys} | {"py", "json", "base", "checks"}  # groups, files and modules
    for page in PAGES:
        found = re.findall(r"(?<!attn_cnn_jax\.)\bconfig\.([a-z_]+(?:\.[a-z_]+)*)\b(?!\()", page.read_text())
        assert set(found) <= keys, page.name


def test_links_lead_to_files_and_files_that_pages_name_exist():
    """Relative links; the site's own are also checked by `make docs`."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
        paths = re.findall(r"`((?:attn_cnn_jax|configs|benchmarks|tests)/[\w./]+)`", page.read_text())
        missing = [path for path in targets if not (page.parent / path).exists()]
        assert not missing + [path for path in paths if not (ROOT / path).exists()], page.name


def names_of(node):
    """The names that a statement defines or imports."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [getattr(node, "name", None), *(each.id for each in targets if isinstance(each, ast.Name))]


def test_files_and_functions_of_the_page_on_the_code_exist():
    """Its `file.py: name`, its folders; its rooms are those that imports are checked by, in their order."""
    text = (ROOT / "docs/code.md").read_text()
    named = re.findall(r"`([\w/]+)\.py(?:: ([\w.]+))?`", text)
    assert len(named) > 40
    for path, name in named:
        tree = ast.parse((ROOT / f"attn_cnn_jax/{path}.py").read_text())  # some need PyTorch to be imported
        for part in filter(None, name.split(".")):
            (tree,) = [node for node in tree.body if part in names_of(node)]
    places = re.findall(r"`((?:\w+/)+)`", text)
    assert all((ROOT / path).is_dir() or (ROOT / "attn_cnn_jax" / path).is_dir() for path in places)
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    picture = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1].splitlines()
    assert [line.split("  ")[0] for line in picture[:-1]] == contract["layers"][:-1]


def test_readme_is_short_in_order_and_lists_every_configuration():
    text = README.read_text()
    assert len(text.splitlines()) <= 130
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ORDER
    assert "![" in text.split("## Results")[0]  # what it is, and a picture
    rows = re.findall(r"^\| `(\w+)(?::\w+)?` \|", text, re.MULTILINE)
    assert set(rows) == {path.stem for path in (ROOT / "configs").glob("*.py")} - {"own_images"}  # of the reader's


def test_code_of_the_front_page_prints_what_it_says(capsys):
    page = (ROOT / "docs/index.md").read_text()
    code, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {})
    shape, error = capsys.readouterr().out.splitlines()
    assert shape == said.splitlines()[0].split("  ")[0]
    assert float(error) < 2 * float(said.splitlines()[1].split()[0])


def test_every_option_is_described(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    text = importlib.import_module("options").tables()
    for config in (attention_config(), resnet_config()):
        assert all(f"| `{name}` |" in text for key in flatten(config) if (name := key.split(".")[-1]) != "name")
    assert "| `config.augment.` | default" in text
    assert "| `flip` | `True` | Mirror half of the images. Allowed: one of False, True |" in text


def test_code_of_the_theorem_page_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "theorem.md").read_text(), re.DOTALL)[1]
    values = {}
    exec(code, values)
    assert values["small"].attention.num_heads == 9
    assert values["attention_bound"](values["sharpness_for"](1e-4)) <= 1e-4


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_the_forward_pass_for_readers_of_exported_arrays_is_that_of_the_network(name):
    values, page = {}, (ROOT / "docs" / "export.md").read_text()
    exec(re.search(r"^```python\n# forward\.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1], values)
    run = load_pretrained(name)
    images = np.random.default_rng(0).integers(0, 256, (3, *run.config.model.image_shape), np.uint8)
    np.testing.assert_allclose(values["logits"](FOLDER / name, images), run.logits(images), atol=1e-4)


def test_the_version_is_that_of_the_newest_entry_of_the_changelog():
    version = re.search(r"^version = (.+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
    assert re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version


@pytest.mark.slow
def test_live_pages_are_those_of_the_front_page_and_small_and_recognise_the_drawings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    pages = {path.name: path.read_text() for path in importlib.import_module("live_pages").write_pages(tmp_path)}
    front = (ROOT / "docs/index.md").read_text()
    assert set(pages) == set(re.findall(r'(?:src|href)="(\w+\.html)(?:\?figure)?"', front))
    data = r'<script type="application/json" id="data">(.*?)</script>'
    found = {name: json.loads(re.search(data, page, re.DOTALL)[1]) for name, page in pages.items()}
    for name, page in pages.items():
        assert len(page.encode()) <= 2_000_000, name
        assert found[name]["network"] is not None
    run, names = load_pretrained("cifar10"), [picture["name"] for picture in found["cifar10.html"]["pictures"]]
    predicted = run.predict(np.stack([read_image(DRAWINGS / name, run) for name in names])).argmax(axis=1)
    assert names == [f"{run.class_names[n]}.png" for n in predicted]
    assert re.search(r'<a href="dinov2\.html">.*<img src="data:image/webp;base64,', pages["cifar10.html"], re.DOTALL)
