"""ONNX Runtime's `quantize_static` with its defaults, after `quant_pre_process`, as its documentation has it."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, Sample, serve

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The samples, one after the other."""

        def __init__(self) -> None:
            self.samples = iter(request.samples())

        def get_next(self) -> Sample | None:
            return next(self.samples, None)

    prepared, quantized = request.folder / "prepared.onnx", request.folder / "model.onnx"
    quant_pre_process(str(request.model), str(prepared))
    quantize_static(str(prepared), str(quantized), Reader())
    return [Delivery(str(quantized))]


if __name__ == "__main__":
    serve(deliver)
