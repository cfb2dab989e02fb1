"""NNCF's accuracy-aware mode: INT8 for OpenVINO, whose worst layers return to float until the bound holds.

NNCF validates in f32. Its documentation then compiles the model by defaults, which on some CPUs compute the remaining
float layers in bf16; both ways are delivered, and the faster right one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.benchmarks.rivals.protocol import Delivery, Request, Sample, cosine, serve

PACKAGES = ("nncf==3.4.0", "openvino==2026.4.1")


def deliver(request: Request) -> list[Delivery]:
    import nncf
    import openvino as ov

    model = ov.convert_model(request.model)
    names = [port.get_any_name() for port in model.inputs]
    source = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    calibration, validation = request.split()
    pairs = [(sample, list(source(sample).values())) for sample in validation]

    def inputs(sample: Sample) -> Sample:
        return {name: sample[name] for name in names}

    def validate(compiled: Any, items: Iterable[Any]) -> tuple[float, list[float]]:
        values = [cosine(expected, list(compiled(inputs(sample)).values())) for sample, expected in items]
        return min(values), values

    quantized = nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(calibration, inputs),
        nncf.Dataset(pairs, lambda pair: inputs(pair[0])),
        validate,
        max_drop=1 - request.bound,
        drop_type=nncf.DropType.ABSOLUTE,
        model_type=nncf.ModelType.TRANSFORMER if request.is_transformer else None,
    )
    delivered = request.folder / "model.xml"
    ov.save_model(quantized, delivered, compress_to_fp16=False)
    latency = {"PERFORMANCE_HINT": "LATENCY"}
    validated = {**latency, "INFERENCE_PRECISION_HINT": "f32"}
    return [
        Delivery(str(delivered), "openvino", latency, "by default"),
        Delivery(str(delivered), "openvino", validated, "in f32"),
    ]


if __name__ == "__main__":
    serve(deliver)
