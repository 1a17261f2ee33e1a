"""Networks in other formats: exports as safetensors, StableHLO, ONNX or PyTorch; imports of safetensors and PyTorch."""
