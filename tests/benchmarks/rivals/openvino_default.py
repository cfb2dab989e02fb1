"""OpenVINO's defaults: convert the model, and compile it for latency; it chooses the precision (bf16 on some CPUs)."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("openvino==2026.4.1",)


def deliver(request: Request) -> list[Delivery]:
    import openvino as ov

    converted = request.folder / "model.xml"
    ov.save_model(ov.convert_model(request.model), converted, compress_to_fp16=True)  # the default of `save_model`
    return [Delivery(str(converted), "openvino", {"PERFORMANCE_HINT": "LATENCY"})]


if __name__ == "__main__":
    serve(deliver)
