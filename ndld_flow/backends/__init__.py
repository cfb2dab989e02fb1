"""The only importers of onnx, onnxruntime, tensorrt and polygraphy, each imported when used."""
