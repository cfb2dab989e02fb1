"""ndld_flow: declarative pipelines that make ONNX models fast and keep them correct."""

__version__ = "0.1.0"
