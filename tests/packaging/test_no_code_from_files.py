"""No source file of the package runs what a file holds: no pickle, no eval; NumPy and PyTorch read arrays only."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "attn_cnn_jax"
PICKLES = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
FORBIDDEN = ("eval", "exec", "Unpickler", "yaml.load", "yaml.unsafe_load")


def offences(source):
    """Lines of a source text that could run code from a file, in words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: imports {name}" for name in modules if name.split(".")[0] in PICKLES)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in FORBIDDEN or called.endswith(".Unpickler") or called == "__import__":
            yield f"{node.lineno}: {called}"
        if keywords.get("allow_pickle", "False") != "False":
            yield f"{node.lineno}: {called} with allow_pickle"
        if called == "torch.load" and keywords.get("weights_only") != "True":
            yield f"{node.lineno}: torch.load without weights_only=True"


DANGEROUS = """import pickle
from pickle import loads
import _pickle
eval(text)
exec(text)
np.load(path, allow_pickle=anything)
torch.load(path)
torch.load(path, weights_only=False)"""
HARMLESS = "import pickletools; np.load(path, allow_pickle=False); network.eval(); ast.literal_eval(text)"


def test_what_is_looked_for_is_found():
    assert [line for line in DANGEROUS.splitlines() if not list(offences(line))] == []
    assert list(offences(HARMLESS)) == []


def test_the_package_runs_nothing_from_files():
    sources = sorted(PACKAGE.rglob("*.py"))
    assert len(sources) > 40
    found = {path.name: lines for path in sources if (lines := list(offences(path.read_text())))}
    # CIFAR's python layout, through an Unpickler that knows the few names it needs (tests/data).
    assert [line.partition(": ")[2] for line in found.pop("cifar.py")] == ["imports pickle", "Unpickler"]
    assert found == {}
