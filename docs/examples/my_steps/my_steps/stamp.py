"""The step `my_steps_stamp`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ndld_flow.plugin import Context, Onnx, Result, Returns, Step, metrics


class Stamp(Step[Onnx, Onnx]):
    """Write a text into the model's doc string."""

    libraries: ClassVar[tuple[str, ...]] = ("onnx",)
    returns: ClassVar[tuple[Returns, ...]] = metrics("length")

    text: str = "stamped"
    """The text to write."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx

        model = onnx.load(source.path)
        model.doc_string = self.text
        onnx.save(model, out / Onnx.main)
        return Result(f"wrote {self.text}", metrics={"length": len(self.text)})
