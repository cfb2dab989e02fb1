"""TensorRT and TensorRT-RTX: installations, releases, and loaded engines."""
