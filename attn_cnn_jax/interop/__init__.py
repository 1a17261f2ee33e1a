"""Networks in other formats: exports as safetensors, StableHLO, ONNX or PyTorch; imports of the authors' release."""

FORMATS = ("safetensors", "jax", "onnx", "pytorch")  # of an exported network
