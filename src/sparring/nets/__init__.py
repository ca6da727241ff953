"""A network as data, and the same network in torch, NumPy and ONNX; policies, distributions, model files."""
