"""Compile a model to a file that a runtime opens faster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from ndld_flow.base.quantities import seconds, size
from ndld_flow.base.settings import FlatUnion
from ndld_flow.machine.hardware import read_instructions
from ndld_flow.runtimes.registry import find_compilers, plugin_versions
from ndld_flow.runtimes.settings import CompileSettings
from ndld_flow.step import Context, Foresight, Metric, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import CompiledModel, Onnx

_COMPILERS = FlatUnion("backend", find_compilers)


class CompileModel(Step[Onnx, CompiledModel]):
    """Compile a model to a file that a runtime opens faster.

    It is a blob of OpenVINO, or a model that ONNX Runtime has optimized. `profile` and `check_accuracy` run the file
    with `compiled:`. It is for the release of the library and, mostly, for the instruction sets of the CPU that
    compiled it: elsewhere it is refused. For TensorRT, `build_engine` does this.
    """

    also_called: ClassVar[tuple[str, ...]] = (
        "compile",
        "blob",
        "exportmodel",
        "compiletool",
        "epcontext",
        "optimizedmodel",
        "saveoptimized",
        "ort",
    )
    synonyms: ClassVar[Mapping[str, str]] = {"runtime": "backend"}

    keeps_inputs: ClassVar[bool] = True
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    returns: ClassVar[tuple[Returns, ...]] = (*metrics("compile_s", unit="s"), *metrics("bytes", unit="bytes"))

    runtime: Annotated[CompileSettings, _COMPILERS] = Field(default_factory=_COMPILERS.default)
    """Settings of the runtime that `backend` names, which a recipe writes among the others."""

    @model_serializer(mode="wrap")
    def _write_flat(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """Return the settings as they are in a recipe."""
        values = write(self)
        chosen: dict[str, JsonValue] = values.pop("runtime")
        return {**values, **chosen}

    def foresee(self) -> Foresight:
        return self.runtime.foresee()

    def reused_where(self) -> Reuse:
        return self.runtime.reused_where

    def library_versions(self) -> dict[str, str]:
        versions = self.runtime.library_versions() | plugin_versions(self.runtime)
        # Virtual machines of one CPU's name differ in these.
        here = {"instruction sets": " ".join(read_instructions())}
        return versions | (here if self.runtime.reused_where is not Reuse.ANYWHERE else {})

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.runtimes.compiled_models import record_of

        request = self.runtime.request(source, context.read)
        started = time.perf_counter()
        request.compile(source.path, out)
        took_s = time.perf_counter() - started
        file = out / CompiledModel.main
        [version] = request.library_versions({}).values()
        record = record_of(self.runtime, source, version, file)
        (out / CompiledModel.record).write_text(record.to_json(), encoding="utf-8")
        size_bytes = sum(path.stat().st_size for path in out.iterdir() if path.name != CompiledModel.record)
        where = "for CPUs with this one's instruction sets" if record.instructions else "for any CPU"
        summary = f"{size(size_bytes)} in {seconds(took_s)}, by {record.library} {version}, {where}"
        return Result(
            summary,
            metrics={"compile_s": Metric(value=took_s, unit="s"), "bytes": Metric(value=size_bytes, unit="bytes")},
        )
