"""Describe a variant by its model or engine and its records, which must be of that model or engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ndld_flow.accuracy.accuracy_record import metrics_of
from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import all_graphs, load_structure, model_inputs, model_outputs
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.packages.settings import Variant
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.records.package import PackagedAccuracy, PackagedLatency, PackagedTensor, PackageVariant
from ndld_flow.records.profile import Profile, TensorInfo
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, known_name
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Artifact, Engine, Onnx

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc")


@dataclass(frozen=True)
class VariantSource:
    """A variant's settings and the artifacts that they name."""

    name: str
    settings: Variant
    read: Mapping[str, Artifact]
    """Setting -> artifact; `accuracy/candidate` and `accuracy/reference` are the models of the accuracy check."""

    @property
    def artifact(self) -> Artifact:
        """The model or engine."""
        return self.read["model" if self.settings.model is not None else "engine"]

    @property
    def build(self) -> Build | None:
        """The record of an engine's build."""
        if not isinstance(self.artifact, Engine):
            return None
        return read_document(Build, self.artifact.folder / Engine.build)

    def record_files(self) -> Iterator[Path]:
        """Yield the records to include."""
        for setting in ("latency", "accuracy"):
            if setting in self.read:
                yield self.read[setting].path
        if isinstance(self.artifact, Engine):
            yield self.artifact.folder / Engine.build

    def refuse(self, setting: str, what: str) -> RequestError:
        return RequestError(f"variants.{self.name}.{setting}: {what}")


def describe_variant(source: VariantSource, folder: str, records: str) -> PackageVariant:
    """Return the record of a variant.

    `folder` and `records` are the folders of its files and records in the package. Raises `RequestError` if its latency
    or accuracy is that of another model or engine.
    """
    latency = _read_profile(source)
    build = source.build
    if build is not None and build.marked_outputs:
        raise source.refuse(
            "engine",
            f"the engine of {source.artifact.label} has tensors marked as outputs for inspection (`mark_outputs`), and "
            "fuses layers differently: name an engine without them",
        )
    fields: dict[str, Any] = {
        "name": source.name,
        "folder": folder,
        "digest": source.artifact.digest,
        "cpu_features": source.settings.cpu_features,
        "memory_bytes": latency.peak_memory_bytes or None if latency is not None else None,
        "accuracy": _accuracy(source, build, records),
    }
    described = _describe_model(source, latency) if build is None else _describe_engine(source, build, records)
    version = described["version"]
    if latency is not None:
        fields["latency"] = _latency(latency, _version_of(latency, described["runtime"]) or version, records)
    return PackageVariant(**fields, **described)


def _describe_model(source: VariantSource, profile: Profile | None) -> dict[str, Any]:
    path = source.artifact.path
    provider = _provider(source, profile)
    on_gpu = profile is not None and provider not in ("", CPU)
    model = load_structure(path)
    files = [path, *_external(path)]
    return {
        "kind": "onnx",
        "file": Onnx.main,
        "size_bytes": sum(each.stat().st_size for each in files),
        "runtime": "onnxruntime",
        "version": _version_of(profile, "onnxruntime") if profile is not None else "",
        "provider": provider,
        "gpus": profile.machine.gpus if profile is not None and on_gpu else (),
        "driver": profile.machine.driver if profile is not None and on_gpu else "",
        "opsets": dict(sorted(model.opset_imports.items())),
        "custom_operators": tuple(_custom_operators(model)),
        "inputs": tuple(map(_declared, model_inputs(path))),
        "outputs": tuple(map(_declared, model_outputs(path))),
    }


def _custom_operators(model: ir.Model) -> Iterator[str]:
    """Yield the operators that neither ONNX nor ONNX Runtime defines, nor a function of the model."""
    used = {(node.domain, node.op_type) for graph in all_graphs(model) for node in graph}
    functions = {(domain, name) for domain, name, _ in model.functions}
    for domain, op_type in sorted(used - functions):
        if domain not in _KNOWN_DOMAINS:
            yield f"{domain}::{op_type}"


def _external(path: Path) -> list[Path]:
    from ndld_flow.models.external_files import external_files

    return [path.parent / name for name in external_files(path)]


def _describe_engine(source: VariantSource, build: Build, records: str) -> dict[str, Any]:
    shape_inputs = {name for profile in build.profiles for name, range_ in profile.inputs.items() if range_.values}
    memory = build.memory.weights_bytes + build.memory.activation_bytes + build.memory.scratch_bytes
    options = build.options
    return {
        "kind": "engine",
        "file": Engine.main,
        "size_bytes": source.artifact.path.stat().st_size,
        "runtime": build.backend,
        "version": build.version,
        "version_compatible": options.get("version_compatible") is True,
        "system": build.machine.system.partition(" ")[0],
        "architecture": build.machine.architecture,
        "compute_capabilities": build.compute_capabilities or source.settings.compute_capabilities,
        "gpus": build.machine.gpus if not build.compute_capabilities else (),
        "hardware_compatibility": str(options.get("hardware_compatibility") or ""),
        "driver": build.machine.driver,
        "device_memory_bytes": memory or None,
        "inputs": tuple(_bound(tensor, tensor.name in shape_inputs) for tensor in build.inputs),
        "outputs": tuple(_bound(tensor, False) for tensor in build.outputs),
        "build": f"{records}/{Engine.build}",
    }


def _declared(spec: TensorSpec) -> PackagedTensor:
    return PackagedTensor(name=spec.name, dtype=spec.dtype, shape=spec.shape)


def _bound(tensor: TensorInfo, is_shape_tensor: bool) -> PackagedTensor:
    shape = tuple(None if size < 0 else size for size in tensor.shape)
    return PackagedTensor(name=tensor.name, dtype=tensor.dtype, shape=shape, is_shape_tensor=is_shape_tensor)


def _provider(source: VariantSource, profile: Profile | None) -> str:
    """Return the execution provider that the recipe names, or that was measured; empty if both are unknown."""
    measured = profile.providers[0] if profile is not None and profile.providers else ""
    given = known_name(source.settings.provider) if source.settings.provider is not None else ""
    if measured and given and measured != given:
        raise source.refuse("latency", f"it was measured on {measured}, and `provider` is {given}")
    return given or measured


def _read_profile(source: VariantSource) -> Profile | None:
    """Return the profile of a variant. Raises `RequestError` for that of another model or engine."""
    if "latency" not in source.read:
        return None
    step = source.read["latency"].label
    profile = read_document(Profile, source.read["latency"].path)
    if isinstance(source.artifact, Onnx):
        if profile.runs_engine:
            raise source.refuse("latency", f"{step} measured an engine, and this variant is a model: name that engine")
        if profile.model_digest != source.artifact.digest:
            raise source.refuse("latency", f"{step} measured another model than that of {source.artifact.label}")
    elif profile.engine_digest != digest_file(source.artifact.path):
        raise source.refuse("latency", f"{step} did not measure the engine of {source.artifact.label}")
    return profile


def _version_of(profile: Profile, runtime: str) -> str:
    """Return the version of the runtime that ran; `onnxruntime-gpu` is a build of `onnxruntime`."""
    for name, version in profile.versions.items():
        if name == runtime.replace("_", "-") or (runtime == "onnxruntime" and name.startswith("onnxruntime-")):
            return version.rpartition(" ")[2]
    return ""


def _latency(profile: Profile, version: str, records: str) -> PackagedLatency:
    shapes = (f"{each.name} {each.dtype} {'x'.join(map(str, each.shape)) or 'scalar'}" for each in profile.inputs)
    return PackagedLatency(
        record=f"{records}/profile.json",
        median_ms=profile.latency.median_ms,
        run_count=len(profile.runs),
        machine=profile.machine,
        version=version,
        providers=profile.providers,
        inputs=", ".join(shapes),
        measured_at=profile.measured_at,
    )


def _accuracy(source: VariantSource, build: Build | None, records: str) -> PackagedAccuracy | None:
    """Return the result of the accuracy check. Raises `RequestError` if it is of another model, or shows nothing."""
    if "accuracy" not in source.read:
        return None
    step = source.read["accuracy"].label
    candidate, reference = source.read["accuracy/candidate"], source.read["accuracy/reference"]
    wanted = build.model_digest if build is not None else source.artifact.digest
    if candidate.digest != wanted:
        of = "the model from which the engine was built" if build is not None else f"that of {source.artifact.label}"
        raise source.refuse("accuracy", f"{step} checked the model of {candidate.label}, which is not {of}")
    accuracy = read_document(Accuracy, source.read["accuracy"].path)
    if reference.digest == candidate.digest and accuracy.provider_reference == accuracy.provider_candidate:
        raise source.refuse("accuracy", f"{step} compared the model with itself, which shows nothing: remove it")
    bounded = {*accuracy.tolerance, *(name for bounds in accuracy.output_tolerance.values() for name in bounds)}
    bounded |= {metric.name for metric in accuracy.labelled}
    return PackagedAccuracy(
        record=f"{records}/accuracy.json",
        passed=accuracy.passed,
        subject="model" if build is None else "model before the build",
        reference=accuracy.reference,
        provider=accuracy.provider_candidate,
        sample_count=accuracy.sample_count,
        worst={name: metric.value for name, metric in sorted(metrics_of(accuracy).items()) if name in bounded},
    )
