"""Simplify a model without changing its results."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from ndld_flow.base.quantities import size_change
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx


class Sanitize(LoadsCustomOps, SanitizeSettings, Step[Onnx, Onnx]):
    """Fold constants, remove nodes without effect, merge duplicates, and fuse patterns of nodes.

    Inputs and outputs stay as they are, remaining nodes keep their names, only standard operators of the model's own
    opset are used, and the result passes the ONNX checker. Weights in external data stay on disk.
    """

    also_called: ClassVar[tuple[str, ...]] = (
        "simplify",
        "onnxsim",
        "onnxslim",
        "slim",
        "optimize",
        "fold",
        "foldconstants",
        "constantfolding",
    )
    synonyms: ClassVar[Mapping[str, str]] = {
        "overwrite_input_shapes": "input_shapes",
        "size_threshold": "fold_size_threshold",
        "num_passes": "passes",
    }

    keeps_inputs: ClassVar[bool] = True
    version: ClassVar[int] = 6
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy")
    adds_no_quantization: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("nodes", "parameters"),
        *metrics("initializer_bytes", unit="bytes"),
    )

    @property
    def keeps_values(self) -> bool:
        return True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.sanitize.folding import LEFT_UNFOLDED
        from ndld_flow.graph.sanitize.pipeline import sanitize_file

        context.progress(0, 0, "sanitizing")
        change = sanitize_file(source.path, out / Onnx.main, self, context.log)
        for note in change.notes:
            context.log.info(note)
        before, after = change.before, change.after
        weights = (before.initializer_bytes, after.initializer_bytes)
        sizes = [f"weights {size_change(*weights)}"] if any(weights) else []  # trees have their numbers in attributes
        left = [note for note in change.notes if note.startswith(LEFT_UNFOLDED)]
        nodes = f"{before.node_count} -> {after.node_count} nodes"
        summary = "; ".join((", ".join((nodes, *sizes)), *left))
        return Result(
            summary=summary,
            metrics={
                "nodes": after.node_count,
                "initializer_bytes": after.initializer_bytes,
                "parameters": after.parameter_count,
            },
            change=change,
        )
