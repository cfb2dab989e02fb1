"""Records of what ran a model: library, device, and the file that ran instead of it."""

from __future__ import annotations

from ndld_flow.records.document import Record


class BuiltFile(Record):
    """A file that ran instead of its model, such as an engine."""

    name: str
    """The step that built it, or its path."""
    digest: str
    """blake3 of the file."""
    model: str = ""
    """The step whose model it was built from; empty for an unknown source: a prebuilt file without a record."""
    built_with: str = ""
    """Library that built it, with its version; empty if that is not known."""
    precision: str = ""
    """Types that its layers may have: `weakly typed: FP16, TF32`; empty if that is not known."""
    marked: tuple[str, ...] = ()
    """Tensors that are outputs for inspection only: it fuses layers differently from a file without them."""

    @property
    def described(self) -> str:
        """Return `engine, built by TensorRT 10.8.0.43 from half (weakly typed: FP16)`."""
        if not self.model:
            return f"{self.name}, of unknown source"
        precision = f" ({self.precision})" if self.precision else ""
        return f"{self.name}, built by {self.built_with} from {self.model}{precision}"


class Execution(Record):
    """What ran a model."""

    library: str
    """Its distribution or name, and its version: `onnxruntime 1.31.1`, `TensorRT 10.8.0.43`."""
    device: str
    """The device's name, or that of the execution provider: `NVIDIA H200`, `CPUExecutionProvider`."""
    built: BuiltFile | None = None
    """The file that ran instead of the model; None if the library read the model itself."""

    @property
    def described(self) -> str:
        """Return `TensorRT 10.8.0.43 on NVIDIA H200`."""
        return f"{self.library} on {self.device}"
