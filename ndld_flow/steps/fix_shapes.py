"""Fix the model's input shapes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import Dimension, InputSpec, Shape
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx


class FixShapes(LoadsCustomOps, Step[Onnx, Onnx]):
    """Fix the shapes of inputs and infer all shapes that depend on them, in subgraphs too.

    Without `shapes` and `dims` the shapes of the recipe's `inputs:` are used.
    """

    also_called: ClassVar[tuple[str, ...]] = ("fixdims", "staticshapes", "makestatic", "freezeshapes", "shapes")

    keeps_inputs: ClassVar[bool] = True
    sets_shapes: ClassVar[bool] = True
    version: ClassVar[int] = 3
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime")
    uses_inputs: ClassVar[bool] = True
    adds_no_quantization: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("dynamic_tensors")

    shapes: dict[str, Shape] = Field(default={})
    """Input -> its shape, such as `{x: [1, 3, 640, 640]}`."""
    dims: dict[str, Dimension] = Field(default={})
    """Named dimension -> its size wherever it appears, such as `{batch: 1}`."""

    @property
    def keeps_values(self) -> bool:
        return True

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        return None if self.shapes or self.dims else InputSpec(shape=spec.run_shape)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.models.input_shapes import dynamic_values, fix_shapes_file, real_inputs, show_shape

        shapes = self.shapes
        if not self.shapes and not self.dims:
            shapes = {name: spec.run_shape for name, spec in context.inputs.items() if spec.run_shape is not None}
            if not shapes:
                raise RequestError(
                    f"steps.{context.name}: nothing to fix: give `shapes` or `dims`, or shapes in the recipe's "
                    "`inputs:`"
                )
        change, model = fix_shapes_file(source.path, out / Onnx.main, shapes, self.dims, context.log)
        dynamic = dynamic_values(model)
        for value in dynamic:
            context.log.info("%s is still dynamic: %s", value.name, show_shape(value.shape))
        inputs = ", ".join(f"{value.name} {show_shape(value.shape)}" for value in real_inputs(model))
        rest = f"; still dynamic: {', '.join(str(value.name) for value in dynamic)}" if dynamic else ""
        return Result(summary=f"{inputs}{rest}", metrics={"dynamic_tensors": len(dynamic)}, change=change)
