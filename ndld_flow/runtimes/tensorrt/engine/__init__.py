"""TensorRT engines opened and run on a GPU, in measuring processes."""
