"""Readers for the profiles of other tools: trtexec, TREx, ONNX Runtime."""
