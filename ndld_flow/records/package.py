"""Records of model packages: their contents, and which variant fits a machine."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.quantities import counted, number
from ndld_flow.records.document import VERSIONS, Document, InnerPath, Record
from ndld_flow.records.inspection import Dims
from ndld_flow.records.measurement import Machine

Runtime = Literal["onnxruntime", "tensorrt", "tensorrt_rtx"]


class PackagedFile(Record):
    """One file of a package."""

    path: InnerPath
    """Relative to the package, with forward slashes."""
    sha256: str
    size_bytes: int


class PackagedTensor(Record):
    """An input or output of a variant."""

    name: str
    dtype: str
    """`float32`; other types in ONNX's notation, such as `seq(tensor(float))`."""
    shape: Dims | None
    """A name or None for a dynamic dimension; None as a whole if the rank is unknown."""
    is_shape_tensor: bool = False
    """True for an input of an engine whose values determine shapes."""


class PackagedLicense(Record):
    """A licence that applies to the model."""

    license: str
    """As it was stated, such as `Apache-2.0`."""
    basis: str
    """The source of the statement: `recipe`, or the key of the model's metadata."""
    files: tuple[InnerPath, ...] = ()
    """Files with its text."""


class PackagedLatency(Record):
    """The measured latency of a variant, valid on the machine and with the version named here."""

    record: InnerPath
    """The `Profile` in the package."""
    median_ms: float
    run_count: int
    """Number of process runs."""
    machine: Machine
    version: str
    """Version of the runtime; empty if it was not recorded."""
    providers: tuple[str, ...]
    inputs: str
    """Shapes that were measured: `x float32 1x3x640x640`."""
    measured_at: datetime | None


class PackagedAccuracy(Record):
    """The comparison of a variant's outputs with those of a reference."""

    record: InnerPath
    """The `Accuracy` in the package."""
    passed: bool
    subject: Literal["model", "model before the build"]
    """`model before the build`: the engine itself was not compared, but the ONNX model from which it was built."""
    reference: str
    """The step that produced the reference, or `source`."""
    provider: str
    sample_count: int
    worst: dict[str, float]
    """Metric with a tolerance -> its worst value over all outputs."""

    @property
    def text(self) -> str:
        """The result in a phrase: `within tolerance against source, 1 sample: slice_rms 3.7e-06`."""
        verdict = "within tolerance" if self.passed else "FAILED"
        worst = ", ".join(f"{name} {number(value)}" for name, value in list(self.worst.items())[:3])
        subject = " (of the model before the build)" if self.subject != "model" else ""
        against = f"against {self.reference}, {counted(self.sample_count, 'sample')}"
        return f"{verdict} {against}{subject}{f': {worst}' if worst else ''}"


class PackageVariant(Record):
    """A model or an engine of a package, its requirements, and its measured latency and accuracy.

    An empty requirement is unknown, not absent, unless its description says otherwise.
    """

    name: str
    kind: Literal["onnx", "engine"]
    folder: InnerPath
    """The folder of its files, which several variants may share."""
    file: str
    """Name of the main file in the folder."""
    digest: str
    """Digest of the model with its external data, or of the engine with the record of its build."""
    size_bytes: int
    """Size of the model with its external data, or of the engine."""
    runtime: Runtime
    version: str = ""
    """Version of the runtime that built the engine, or with which the model was measured."""
    version_compatible: bool = False
    """True for an engine that later releases of the same major version can load."""
    provider: str = ""
    """ONNX Runtime: the execution provider that it is for, such as `CUDAExecutionProvider`."""
    system: str = ""
    """Operating system of an engine: engines do not run on others."""
    architecture: str = ""
    """CPU architecture of an engine: engines do not run on others."""
    compute_capabilities: tuple[str, ...] = ()
    """Compute capabilities that an engine is for, such as `8.6`."""
    gpus: tuple[str, ...] = ()
    """GPUs of the machine that built the engine, or measured the model on a GPU."""
    hardware_compatibility: str = ""
    """Compatibility of an engine with other GPUs: `none`, `ampere_plus` or `same_compute_capability`."""
    driver: str = ""
    """Driver with which the engine was built, or the model measured on a GPU."""
    cpu_features: tuple[str, ...] = ()
    """CPU features that the recipe requires, by the names of /proc/cpuinfo; empty if it requires none."""
    memory_bytes: int | None = None
    """Largest memory of the process while the latency was measured."""
    device_memory_bytes: int | None = None
    """Memory for weights, activations and scratch that the builder of the engine reported."""
    opsets: dict[str, int] = {}
    """Domain -> version of an ONNX model."""
    custom_operators: tuple[str, ...] = ()
    """Operators of an ONNX model that need a library of its own, such as `com.acme::Scaled`."""
    inputs: tuple[PackagedTensor, ...]
    outputs: tuple[PackagedTensor, ...]
    latency: PackagedLatency | None = None
    """None if it was not measured."""
    accuracy: PackagedAccuracy | None = None
    """None if it was not checked."""
    build: InnerPath | None = None
    """The `Build` of an engine."""
    triton: InnerPath | None = None
    """Its folder in Triton's model repository; None if Triton cannot serve it, as `notes` state."""
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Its runtime and device in a phrase: `ONNX Runtime 1.32.0, CPUExecutionProvider`."""
        version = f" {self.version}" if self.version else ""
        if self.kind == "onnx":
            return f"ONNX Runtime{version}, {self.provider or 'execution provider unknown'}"
        title = "TensorRT-RTX" if self.runtime == "tensorrt_rtx" else "TensorRT"
        listed = ", ".join(self.compute_capabilities)
        return (
            f"{title}{version}, {f'compute capability {listed}' if listed else ', '.join(self.gpus) or 'GPU unknown'}"
        )

    @property
    def measured_on(self) -> str:
        """The machine and the inputs of its measurement; empty without one."""
        if self.latency is None:
            return ""
        machine = self.latency.machine
        is_on_gpu = self.kind == "engine" or self.provider not in ("", "CPUExecutionProvider")
        cpu = f"{machine.cpu} x {machine.cpu_count}" if machine.cpu and machine.cpu_count else machine.cpu
        return f"{(', '.join(machine.gpus) if is_on_gpu else '') or cpu or 'unknown machine'}, {self.latency.inputs}"

    @property
    def accuracy_text(self) -> str:
        """The result of its accuracy check in a phrase."""
        return self.accuracy.text if self.accuracy is not None else "not checked"


class Package(Document):
    """A model in variants for several targets: `package.json`.

    The same inputs give the same package, byte for byte; therefore it does not record when it was written.
    """

    document: Literal["package"] = "package"
    format_version: int = VERSIONS["package"]
    name: str
    package_version: str = ""
    description: str = ""
    licenses: tuple[PackagedLicense, ...]
    """Empty if no licence is known: neither the recipe nor the model's metadata state one."""
    variants: tuple[PackageVariant, ...]
    """In order of preference."""
    onnxruntime_schema: str = ""
    """Version of ONNX Runtime's model package schema in `manifest.json`; empty if no variant is for ONNX Runtime."""
    files: tuple[PackagedFile, ...]
    """All files except `package.json`, by path."""
    notes: tuple[str, ...] = ()


FitState = Literal["fits", "unknown", "does not fit"]


class FitCheck(Record):
    """One requirement of a variant against this machine."""

    name: str
    """`execution provider`, `compute capability`, `memory`, ..."""
    state: FitState
    required: str
    """Empty if the package does not record it."""
    found: str
    """Empty if this machine does not report it."""


class VariantFit(Record):
    """A variant of a package on this machine."""

    name: str
    state: FitState
    """The worst state of its checks."""
    checks: tuple[FitCheck, ...]
    """All requirements, known and unknown."""
    latency: str
    """The measured latency, and where it was measured; `not measured` without one."""
    accuracy: str
    """The result of the accuracy check; `not checked` without one."""


class HostFacts(Record):
    """The properties of this machine that variants require."""

    machine: Machine
    cpu_features: tuple[str, ...] | None
    """None if the system does not report them."""
    memory_bytes: int | None
    """Memory that this process may use; None if it is unknown."""
    compute_capabilities: tuple[str, ...] | None
    """Compute capability of each visible GPU; None if the driver does not report them."""
    device_memory_bytes: int | None
    """Memory of the largest GPU; None without one, or if it is unknown."""
    providers: tuple[str, ...]
    """Execution providers of the installed ONNX Runtime."""
    versions: dict[Runtime, str]
    """Runtime -> version in this Python environment; runtimes that are not installed are left out."""
    conditions: dict[str, JsonValue]
    """Load, governors, CPU set and GPU limits now, which must equal those of a measurement that decides."""


class PackageFit(Record):
    """The variant of a package for this machine, and the reasons against the others."""

    package: str
    package_version: str
    verified_count: int
    """Files whose SHA-256 was compared."""
    host: HostFacts
    chosen: str | None
    """The variant for this machine; None if none is known to fit."""
    basis: str
    """The reason of the choice, or why there is none."""
    variants: tuple[VariantFit, ...]
    """In the package's order of preference."""
