"""Models opened in ONNX Runtime, and the values they are fed."""
