"""ONNX models: read, written, and described, with their weights left on disk."""
