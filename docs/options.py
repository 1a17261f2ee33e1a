"""Tables of all configuration keys for the page `options.md`, from attn_cnn_jax/config/base.py and its comments."""

import ast
import io
import tokenize
from pathlib import Path

from attn_cnn_jax.config import base
from attn_cnn_jax.models.encodings import REGISTRY

GROUPS = {  # heading and what it says, by the first part of a key
    "model": "## Network: `config.model`\n\nOf an attention network (`attention_config`):",
    "resnet": "Of a ResNet (`resnet_config`, `configs/resnet18.py`) instead:",
    "seed": "## Seed",
    "start": "## Start: `config.start`\n\n[Fine-tuning](fine_tuning.md) shows them in use.",
    "dataset": "## Data: `config.dataset`",
    "augment": "## Augmentation: `config.augment`",
    "optimizer": "## Optimizer: `config.optimizer`",
    "train": "## Training: `config.train`",
    "checkpoint": "## Checkpoints: `config.checkpoint`",
}


def tables() -> str:
    """Returns a heading and a Markdown table of keys for every group."""
    comments = comments_of(Path(base.__file__).read_text(encoding="utf-8"))
    groups = {"model": base.attention_fields(), "resnet": base.RESNET} | {
        name: field if isinstance(field, dict) else {name: field} for name, field in base.REST.items()
    }
    text = []
    for group, fields in groups.items():
        path = {"resnet": "config.model", "seed": "config"}.get(group, f"config.{group}")
        text += [
            GROUPS.get(group, f"## `config.{group}`"),
            "",
            f"| `{path}.` | default | meaning; allowed |",
            "|---|---|---|",
        ]
        for key, field in fields.items():
            if key == "name" and path == "config.model":  # one value for each kind of network
                continue
            of_encodings = [name for name, kind in REGISTRY.items() if key in kind.options]
            own = group == "model" and key not in base.ATTENTION
            says = f"of the encoding {', '.join(map(code, of_encodings))}" if own else comments.get((group, key), "")
            says = f"{says[:1].upper()}{says[1:].rstrip('.')}. Allowed: {field.allowed}" if says else field.allowed
            cells = (code(key), code(repr(field.default)), says)
            text.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        text.append("")
    return "\n".join(text)


def code(text: str) -> str:
    return f"`{text}`"


def comments_of(source: str) -> dict[tuple[str, str], str]:
    """Returns what comments say of each field, by group and key: those beside it, else those right above it."""
    found = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    comments = {}

    def read(group: str, fields: ast.Dict) -> None:
        for key, value in zip(fields.keys, fields.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Dict):
                read(key.value, value)
            elif isinstance(key, ast.Constant):
                last = value.end_lineno or key.lineno
                beside = [found[line].string for line in range(key.lineno, last + 1) if line in found]
                above, line = [], key.lineno - 1
                while not beside and line in found and lines[line - 1].lstrip().startswith("#"):
                    above, line = [found[line].string, *above], line - 1
                comments[group, key.value] = " ".join(comment.lstrip("# ") for comment in beside or above)

    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            for group in {"ATTENTION": ["model"], "RESNET": ["resnet"], "MODEL_COMMON": ["model", "resnet"]}.get(
                node.targets[0].id, ["rest"] if node.targets[0].id == "REST" else []
            ):
                read(group, node.value)
    return {("seed" if group == "rest" else group, key): text for (group, key), text in comments.items()}


if __name__ == "__main__":
    print(tables())
