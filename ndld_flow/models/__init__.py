"""ONNX models: reading, writing and description, with weights left on disk."""
