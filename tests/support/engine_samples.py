"""Builds of engines as TensorRT makes them, by code: a detector of about 80 layers, one of any size, a hostile one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.records.build import Build, BuildMemory, BuiltProfile, Constraint, ShapeRange, TimingCacheUse
from ndld_flow.records.profile import Layer, TensorInfo
from tests.support.run_fixtures import MACHINE, MIB, StepSketch, digest_of, run_record, write_run

BUILT_AT = datetime(2026, 11, 21, 9, 30, 4, tzinfo=UTC)
SHAPES = ShapeRange(min=(1, 3, 320, 320), opt=(1, 3, 640, 640), max=(4, 3, 960, 960))


def tensor(name: str, *shape: int, dtype: str = "float16", layout: str = "hwc8") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape, format=layout)


def detector(blocks: int = 16) -> tuple[Layer, ...]:
    """A detector in FP16: four layers a block, reformats at both ends and every fourth block, fp32 at the end."""
    layers: list[Layer] = []

    def add(name: str, kind: str, reads: Sequence[TensorInfo], writes: TensorInfo, **more: Any) -> TensorInfo:
        given = {"precision": writes.dtype, "stream": 0, "onnx_nodes": (name,), "samples_ms": ()} | more
        layers.append(Layer(index=len(layers), name=name, type=kind, inputs=tuple(reads), outputs=(writes,), **given))
        return writes

    def reformat(read: TensorInfo, wrote: TensorInfo, target: str) -> TensorInfo:
        name = f"Reformatting CopyNode for Input Tensor 0 to {target}"
        return add(name, "Reformat", [read], wrote, role="reformat", onnx_nodes=())

    image = tensor("x", -1, 3, -1, -1, dtype="float32", layout="linear")
    now = reformat(image, tensor("x reformatted", -1, 3, -1, -1), "/stem/Conv + /stem/Relu")
    for block in range(blocks):
        wide, at = 16 * (1 + block // 4), f"/blocks.{block}"
        if block % 4 == 3:
            linear = tensor(f"{at}/linear", -1, wide, -1, -1, layout="linear")
            now = reformat(now, linear, f"{at}/pool/MaxPool")
        read = now
        for part, nodes in (("expand", 2), ("depthwise", 3), ("project", 1)):
            name = f"{at}/{part}/Conv" + (f" + {at}/{part}/Relu" if nodes > 1 else "")
            now = add(
                name,
                "CaskConvolution",
                [now],
                tensor(f"{at}/{part}/out", -1, wide, -1, -1),
                tactic=f"sm86_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x{32 << block % 3}",
                onnx_nodes=tuple(f"{at}/{part}/{text}" for text in ("Conv", "Relu", "Mul")[:nodes]),
                weight_bytes=wide * wide * 18,
                stream=block % 2,
            )
        now = add(
            f"PWN({at}/sigmoid/Sigmoid, {at}/Mul)",
            "PointWiseV2",
            [now, read],
            tensor(f"{at}/gate", -1, wide, -1, -1),
            tactic="generatedNativePointwise",
            onnx_nodes=(f"{at}/sigmoid/Sigmoid", f"{at}/Mul"),
        )
    now = add("/head/Resize", "Resize", [now], tensor("r", -1, 64, -1, -1, dtype="float32"))
    now = add("/head/Softmax", "CaskSoftMaxV2", [now], tensor("s", -1, 64, -1, -1, dtype="float32"))
    reformat(now, tensor("y", -1, 1, -1, -1, dtype="float32", layout="linear"), "y")
    return tuple(layers)


def build(**more: Any) -> Build:
    """The detector, built weakly typed with constraints."""
    layers: tuple[Layer, ...] = more.pop("layers", detector())
    options = BuildSettings(fp16=True, hardware_compatibility="ampere_plus", optimization_level=4)
    given: dict[str, Any] = {
        "label": "source",
        "model_digest": digest_of("model"),
        "backend": "tensorrt",
        "version": "10.16.1.11",
        "versions": {"tensorrt": "10.16.1.11", "ndld-flow": "0.1.0"},
        "machine": MACHINE.model_copy(update={"gpus": ("NVIDIA RTX A4000",), "driver": "580.82"}),
        "built_at": BUILT_AT,
        "typing": "weakly typed: FP16, TF32",
        "profiles": (BuiltProfile(inputs={"x": SHAPES}, basis="inputs"),),
        "options": options.model_dump(mode="json"),
        "flags": ("FP16", "TF32", "PREFER_PRECISION_CONSTRAINTS"),
        "applied": {"builder_optimization_level": 4, "max_aux_streams": -1, "avg_timing_iterations": 1},
        "constraints": (
            Constraint(node="/head/Softmax", precision="fp32", outcome="set on 1 layer"),
            Constraint(node="/head/Resize", precision="fp32", outcome="ignored: the layer was fused away"),
        ),
        "inputs": (tensor("x", -1, 3, -1, -1, dtype="float32", layout="linear"),),
        "outputs": (tensor("y", -1, 1, -1, -1, dtype="float32", layout="linear"),),
        "layers": layers,
        "layers_basis": "engine inspector",
        "network_layer_count": 4 * len(layers),
        "engine_bytes": 7_235_444,
        "engine_digest": digest_of("engine"),
        "parse_s": 0.31,
        "build_s": 84.2,
        "memory": BuildMemory(
            build_peak_bytes=1800 * MIB, activation_bytes=254 * MIB, weights_bytes=5 * MIB, scratch_bytes=2 * MIB
        ),
        "timing_cache": TimingCacheUse(
            file="tensorrt-10.16.1.11-a4000.cache", saved_bytes=411_332, loaded_entries=0, saved_entries=812
        ),
        "warnings": ("- 12 weights are affected by this issue: Detected subnormal FP16 values.",),
        "notes": ("input x: the batch of the recipe's inputs was taken for opt",),
    }
    return Build(**(given | more))


def rtx_build(**more: Any) -> Build:
    """The same by TensorRT-RTX, strongly typed, for GPUs that are not here."""
    single = tuple(
        layer.model_copy(
            update={
                "precision": "float32",
                "inputs": tuple(item.model_copy(update={"dtype": "float32"}) for item in layer.inputs),
                "outputs": tuple(output.model_copy(update={"dtype": "float32"}) for output in layer.outputs),
            }
        )
        for layer in detector(12)
    )
    given: dict[str, Any] = {
        "backend": "tensorrt_rtx",
        "version": "1.7.1.116",
        "compute_capabilities": ("8.6", "8.9", "12.0"),
        "typing": "strongly typed",
        "layers": single,
        "layers_basis": "build log",
        "constraints": (),
        "build_s": 1.2,
        "engine_bytes": 9_833_676,
        "options": BuildSettings(compute_capabilities=("8.6", "8.9", "12.0")).model_dump(mode="json"),
        "flags": ("TF32",),
        "warnings": (),
        "timing_cache": None,
    }
    return build(**(given | more))


def write_engine_run(folder: Path, builds: dict[str, Build]) -> Path:
    """A run that built these engines of its source."""
    steps = [
        StepSketch(
            name,
            "build_engine",
            "engine",
            summary="built",
            size_bytes=build.engine_bytes,
            wall_s=build.parse_s + build.build_s,
        )
        for name, build in builds.items()
    ]
    recipe: dict[str, Any] = {"model": "det.onnx", "steps": {name: {"step": "build_engine"} for name in builds}}
    run = run_record(steps, name="engines", recipe=recipe)
    return write_run(folder, run, {f"{name}/build.json": build for name, build in builds.items()})
