"""ONNX Runtime's `quantize_dynamic` with its defaults, after `quant_pre_process`, as its documentation has it."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    from onnxruntime.quantization import quantize_dynamic

    quantized = request.folder / "model.onnx"
    quantize_dynamic(str(prepare(request)), str(quantized))
    return [Delivery(str(quantized))]


def prepare(request: Request) -> Path:
    """Return the model after `quant_pre_process`, without its symbolic inference of shapes where that fails."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = request.folder / "prepared.onnx"
    try:
        quant_pre_process(str(request.model), str(prepared))
    except Exception as error:  # of any kind: KeyError and TypeError too
        print(f"without symbolic inference of shapes: {error}", flush=True)
        quant_pre_process(str(request.model), str(prepared), skip_symbolic_shape=True)
    return prepared


if __name__ == "__main__":
    serve(deliver)
