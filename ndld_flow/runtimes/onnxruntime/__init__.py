"""Sessions in ONNX Runtime."""
