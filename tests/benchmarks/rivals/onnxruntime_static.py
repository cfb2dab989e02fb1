"""ONNX Runtime's `quantize_static` with its defaults, after `quant_pre_process`, as its documentation has it."""

from __future__ import annotations

from tests.benchmarks.rivals.onnxruntime_dynamic import prepare
from tests.benchmarks.rivals.protocol import Delivery, Request, Sample, serve

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The samples, one after the other."""

        def __init__(self) -> None:
            self.samples = iter(request.samples())

        def get_next(self) -> Sample | None:
            return next(self.samples, None)

    quantized = request.folder / "model.onnx"
    quantize_static(str(prepare(request)), str(quantized), Reader())
    return [Delivery(str(quantized))]


if __name__ == "__main__":
    serve(deliver)
