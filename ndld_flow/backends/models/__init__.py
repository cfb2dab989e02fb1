"""ONNX models: read and written with their weights left on disk, and what can be known of their graphs."""
