"""ONNX Runtime's `quantize_dynamic` with its defaults, after `quant_pre_process`, as its documentation has it."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, quantized = request.folder / "prepared.onnx", request.folder / "model.onnx"
    quant_pre_process(str(request.model), str(prepared))
    quantize_dynamic(str(prepared), str(quantized))
    return [Delivery(str(quantized))]


if __name__ == "__main__":
    serve(deliver)
