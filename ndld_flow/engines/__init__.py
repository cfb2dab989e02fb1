"""TensorRT engines: their settings, and how they are built."""
