"""TensorRT engines: their settings and their build."""
