"""Runtimes that run models: ONNX Runtime and TensorRT."""
