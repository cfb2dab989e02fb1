"""TensorRT and TensorRT-RTX: which is here, what its release can do, and engines built, opened and measured with it."""
