"""Settings of a recipe for OpenVINO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.protocol import SessionRequest


class OpenvinoSettings(RuntimeSettings):
    """Settings of a model compiled by OpenVINO."""

    title: ClassVar[str] = "OpenVINO"
    libraries: ClassVar[tuple[str, ...]] = ("openvino",)
    synonyms: ClassVar[Mapping[str, str]] = {
        "performance_hint": "hint",
        "num_streams": "streams",
        "nstreams": "streams",
        "nireq": "requests",
        "num_requests": "requests",
        "inference_num_threads": "threads",
        "nthreads": "threads",
        "inference_precision_hint": "inference_precision",
        "infer_precision": "inference_precision",
        "dynamic_quantization_group_size": "dynamic_quantization",
    }

    quantize_target: ClassVar[str] = "openvino"
    own_precision: ClassVar[str] = "inference_precision: default"
    concurrency: ClassVar[str] = "hint: throughput"
    extra: ClassVar[str] = "openvino"

    backend: Literal["openvino"]
    inference_precision: Literal["f32", "bf16", "f16", "default"] = "f32"
    """OpenVINO: element type in which layers of floating-point numbers compute. With `default`, OpenVINO chooses bf16
    or f16 on a CPU with instructions for it, also for models of float32; the profile shows the types that were used."""
    dynamic_quantization: Annotated[int, Field(ge=0)] | None = None
    """OpenVINO: number of activations that share a scale where a layer with packed weights (of 4 or 8 bits, without
    Q/DQ of its input) quantizes its activations to int8; 0 never does. By default OpenVINO chooses, and quantizes on
    most CPUs."""
    free_dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """OpenVINO: dimension name -> size, fixed before compilation, so that shapes are constants."""

    hint: Literal["latency", "throughput"] = "latency"
    """OpenVINO: its performance hint. With `throughput`, a pass is as many concurrent inferences as OpenVINO advises,
    and layers are not timed."""
    streams: Annotated[int, Field(ge=0, le=1024)] = 0
    """OpenVINO: number of streams. Each runs one inference at a time, on its share of the threads. With 0, the hint
    decides."""
    requests: Annotated[int, Field(ge=0, le=1024)] = 0
    """OpenVINO: number of concurrent inferences in a pass; 0 is the number that OpenVINO advises for its streams."""
    threads: Annotated[int, Field(ge=0)] = 0
    """OpenVINO: threads of all streams together; 0 lets OpenVINO choose. It never uses more than it has cores."""

    @classmethod
    def find_own_precision(cls) -> str:
        from ndld_flow.runtimes.openvino.openvino_session import default_precision

        return default_precision()

    def opening(self, model: str) -> str:
        from ndld_flow.runtimes.openvino.openvino_session import properties_of
        from ndld_flow.runtimes.openvino.request import OpenvinoRequest

        compiled = f"openvino.Core().compile_model({model!r}, 'CPU', {properties_of(OpenvinoRequest.of(self))})"
        # Outputs that are shared, too, would change with the next pass: a caller who keeps them has the last ones only.
        infer = "request.infer(inputs, share_inputs=True)"
        return f"import openvino; request = {compiled}.create_infer_request(); {infer}"

    def request(self, model: Onnx, read: ReadArtifact) -> "SessionRequest":
        from ndld_flow.runtimes.openvino.request import OpenvinoRequest

        return OpenvinoRequest.of(self)
