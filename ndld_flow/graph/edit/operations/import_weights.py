"""Import weights from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ImportWeights(Operation):
    """Replace weights by those of a file, such as a state dict that was trained, by name and shape.

        import_weights: {weights_from: trained.safetensors, names: names.json}

    Every tensor without a counterpart, of the file or of the model, and every other shape or type is an error that
    names it, and so are NaN and infinity that the model does not have. Floats are converted to the model's type.
    """

    heading = "weights"
    libraries: ClassVar[tuple[str, ...]] = ("safetensors",)

    weights_from: Annotated[
        tuple[Path, ...],
        Field(min_length=1),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
        DataFile(),
    ]
    """A `.safetensors` file, or a folder of `.npy` files that are named after their tensors. A `.pt` file is read by
    PyTorch's loader of weights only, which runs no code of the file; other pickles are never loaded."""
    names: Annotated[Path | None, DataFile()] = None
    """`names.json` of `export_pytorch`, if keys of the state dict differ from names of the model."""
    tensors: tuple[str, ...] = ()
    """Names of the tensors in several `.npy` files, in order; by default those of the files."""
    partial: bool = False
    """Accept tensors without a counterpart on either side; they are named in the step's log and record."""

    @model_validator(mode="before")
    @classmethod
    def _list_files(cls, given: Any) -> Any:  # noqa: ANN401  anything that a recipe may contain
        """List the files of a folder, with their names as a setting: a key has contents of files, not their names."""
        named = given.get("weights_from") if isinstance(given, dict) else None
        files: list[str | Path] = list(named) if isinstance(named, list | tuple) else []
        if isinstance(named, str | Path):
            kind, path = type(named), Path(named)  # JSON has texts where Python has paths
            files = [kind(file) for file in sorted(path.glob("*.npy"))] if path.is_dir() else [named]
            if not files:
                raise ValueError(f"the folder {path} has no .npy files")
        if not all(isinstance(file, str | Path) for file in files) or not files:
            return given
        paths = [Path(file) for file in files]
        stems = [path.stem for path in paths] if all(path.suffix == ".npy" for path in paths) else []
        return {**given, "weights_from": tuple(files), "tensors": tuple(given.get("tensors") or stems)}

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.weight_import import import_weights, read_names, read_weights

        weights = read_weights(self.weights_from, self.tensors)
        return import_weights(edited, weights, read_names(self.names), self.partial)
