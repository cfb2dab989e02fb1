"""Profiles that other tools wrote: trtexec, TREx, ONNX Runtime."""
