"""Export a C++ program that runs the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from ndld_flow.base.quantities import counted
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.onnxruntime.settings import CustomOps
from ndld_flow.step import Context, Reads, Result, Returns, Step, metrics
from ndld_flow.store.kinds import CppProject, Engine, Onnx


class ExportCpp(Step[Onnx, CppProject]):
    """Export a CMake project in C++ that runs the model in ONNX Runtime, or its engine in TensorRT.

    It has a small library (load, describe, run, typed tensors), a sample program, the model with its external data or
    the engine, the inputs of the recipe's first sample, and a README. PNG and JPEG images are converted as `inputs:`
    declares: resized, letterboxed or cropped, normalized, in its layout and order of colours. The step fails for a
    conversion that the program does not have, such as that of audio or text. Operations of the recipe
    (`add_preprocessing`, `add_nms`) are part of the model.
    """

    also_called: ClassVar[tuple[str, ...]] = ("cpp", "cplusplus", "cmake", "exportcplusplus", "codegen")
    synonyms: ClassVar[Mapping[str, str]] = {"npy": "arrays", "custom_op_libraries": "custom_ops"}

    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow", "ml-dtypes")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("inputs", "outputs", "left_out")

    engine: Annotated[str | None, Reads(Engine)] = None
    """A step `build_engine` that read the same model: the program runs its engine in TensorRT 10 or 11, or in
    TensorRT-RTX. By default it runs the model in ONNX Runtime."""
    arrays: tuple[str, ...] = ()
    """Inputs that the program takes only as `.npy` files: their conversion in the recipe is left out, and the README
    names it."""
    custom_ops: CustomOps = ()
    """Libraries with custom operators for ONNX Runtime, such as `libmy_ops.so`, which are copied to the project and
    loaded by the program. They need a trusted recipe. The program of an `engine` does not use them."""

    def samples_read(self) -> int:
        return 1

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.export.cpp.write_project import EngineFile, ExportRequest, write_project
        from ndld_flow.records.build import Build

        engine = None
        if self.engine is not None:
            read = context.read("engine")
            engine = EngineFile(read.path, read_document(Build, read.folder / Build.file_name), source.digest)
        custom_ops = self.custom_ops if engine is None else ()
        request = ExportRequest(source.path, source.label, context.inputs, self.arrays, custom_ops, out, engine)
        project = write_project(request)
        for described in project.inputs:
            context.log.info("sample of input %s: %s", described.spec.name, described.feed.description)
        for line in project.left_out:
            context.log.warning("not in the C++ program: %s", line)
        left_out = len(project.left_out)
        counts = {"inputs": len(project.inputs), "outputs": len(project.outputs), "left_out": left_out}
        parts = [counted(counts["inputs"], "input"), counted(counts["outputs"], "output")]
        parts += [f"{counted(left_out, 'conversion')} left out"] if left_out else []
        return Result(f"C++ project for {project.runtime}: {', '.join(parts)}", metrics=counts)
