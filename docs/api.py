"""Writes docs/api.md, the API by module, from signatures and docstrings: `python docs/api.py`.

Reads the source and imports none of it; needs ruff, of the extra "test". A test compares the page with what this
writes.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"

INTRODUCTION = """\
# API

What notebooks and scripts build on, module by module. Pictures are uint8 `(B, H, W, C)`, as data sets have them.
Pixels of attention are those after down-sampling, from 0, row first, and lengths are in these pixels. Axis letters: `b`
picture, `i j` query row and column, `k l` key row and column, `h` head, `q` a flattened query pixel, `p` a flattened
key pixel, `d` channel. What a person can put right raises `attn_cnn_jax.errors.UserError`.

Written by `python docs/api.py`; do not edit.
"""

# Public names of each module; () for all that have no underscore and are no command.
PUBLIC = {
    "runs": ("load_run", "Run"),
    "config": ("attention_config", "resnet_config", "validate", "complete"),
    "errors": (),
    "data.sources": ("Spec", "Split", "Dataset", "load", "split_validation"),
    "data.augment": (),
    "models": (),
    "models.encoder": ("AttentionClassifier", "Block", "space_to_depth"),
    "models.attention": ("SelfAttention",),
    "models.encodings": ("Encoding", "Quadratic", "GeneralizedQuadratic", "Learned"),
    "models.content_encodings": ("Content", "Relative", "Absolute"),
    "models.merging": ("merged",),
    "models.resnet": ("ResNet",),
    "models.scores": (),
    "models.shifts": (),
    "models.kernels": (),
    "models.moments": (),
    "models.from_convolution": ("conv_to_attention", "convolutions_to_attention"),
    "models.pruning": (),
    "models.variables": (),
    "training.loop": ("run",),
    "training.metrics": ("read_metrics",),
    "training.positions": ("read_positions",),
    "analysis.heads": (
        "Statistics",
        "layer_statistics",
        "run_statistics",
        "grid_shifts",
        "grid_coverage",
        "rows",
        "to_text",
    ),
    "analysis.pictures": ("first_pictures", "mean_attention", "grid", "centre"),
    "analysis.theorem": (),
    "analysis.attention_to_conv": ("Convolution", "attention_to_conv", "output_error", "OutputError"),
    "analysis.convolution": ("measure_run", "to_text", "draw"),
    "analysis.summary": ("count_parameters", "count_flops", "Flops"),
    "analysis.figures.curves": ("draw",),
    "analysis.figures.centres": ("draw_run", "draw_training"),
    "analysis.figures.maps": ("draw", "title"),
    "interop.pytorch": ("import_checkpoint", "export_run"),
}


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([INTRODUCTION, *(section(module, names) for module, names in PUBLIC.items())])


def section(module: str, names: tuple[str, ...]) -> str:
    """One module: the first paragraph of its docstring, and its public names in the order of the source."""
    tree = ast.parse(source_of(module).read_text())
    summary = (ast.get_docstring(tree) or "").split("\n\n")[0]
    stubs = "\n\n".join(ast.unparse(stub(node)) for node in public(tree.body, names))
    return f"## attn_cnn_jax.{module}\n\n{summary}\n\n```python\n{formatted(stubs)}```\n"


def formatted(code: str) -> str:
    """Python code as this project lays it out."""
    command = [sys.executable, "-m", "ruff", "format", "-"]
    return subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True, check=True).stdout


def source_of(module: str) -> Path:
    """The file of a module or package of ours."""
    path = ROOT / "attn_cnn_jax" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public(body: list[ast.stmt], names: tuple[str, ...] = ()) -> list[ast.stmt]:
    """The functions and classes without an underscore, or those with these names; KeyError if one is not there."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {node.name: node for node in body if isinstance(node, kinds)}
    return [found[name] for name in names or found if name in names or not name.startswith("_") or name == "__call__"]


def stub(node: ast.FunctionDef | ast.ClassDef) -> ast.stmt:
    """A function's signature and docstring; of a class its docstring, fields and public methods."""
    rest = []
    if isinstance(node, ast.ClassDef):
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        rest = fields + [stub(method) for method in public(node.body)]
    docstring = node.body[:1] if ast.get_docstring(node) else []
    node.body = docstring + rest or [ast.Expr(ast.Constant(...))]
    return node


if __name__ == "__main__":
    PAGE.write_text(page())
