"""Constrain the precision of layers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.records.layer_arithmetic import Precision
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, DataFile, Reads, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx, PrecisionDocument

if TYPE_CHECKING:
    from ndld_flow.precision.constraints.rules import Rule

_ALL = "*"
_LISTED = re.compile(r":\s*(\w+)\s*(?:,|#|$)", re.MULTILINE)
"""The precision of an entry of a list, without a check."""
PrecisionOrNone = Precision | Literal["none"]


class ConstrainPrecision(LoadsCustomOps, Step[Onnx, Onnx]):
    """Constrain the precision of layers; engines and `apply_precision` apply it.

    The constraints are written into the nodes' metadata; nothing else changes. `"*"` in `layers` is applied first, then
    `list_file`, `op_types` and the other `layers`, each in its order, and `found_by` last; later ones win, and `none`
    removes a constraint. Patterns and operators select only nodes that can have the precision: never a Shape for fp16,
    nor shape computations. Patterns also skip the operators that `convert_fp16` lists as sensitive.
    """

    also_called: ClassVar[tuple[str, ...]] = ("layerprecisions", "precisions", "precision")
    synonyms: ClassVar[Mapping[str, str]] = {"layerPrecisions": "layers"}

    keeps_inputs: ClassVar[bool] = True
    version: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir")
    adds_no_quantization: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes", "constrained")

    layers: dict[NamePattern, PrecisionOrNone] = Field(default={})
    """Node -> precision, such as `{head.*: fp32}`: names, globs, or `/.../` for a regular expression (RE2's syntax)
    searched in the name."""
    op_types: dict[str, PrecisionOrNone] = Field(default={})
    """Operator -> precision, such as `{Softmax: fp32}`."""
    list_file: Annotated[Path | None, DataFile()] = None
    """A list of `name:precision` entries, one per line or separated by commas, in TAO's format; names may be globs."""
    allow_empty: bool = False
    """Accept rules that select no node."""
    keep: bool = True
    """Keep constraints that the model already has."""
    found_by: Annotated[str | None, Reads(PrecisionDocument)] = None
    """A `find_precision` step: the nodes that it found get fp32, whatever other rules apply."""

    @property
    def requested_precisions(self) -> frozenset[str]:
        if self.allow_empty:
            return frozenset()  # the rules may select no node
        listed = ""
        if self.list_file is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):  # the step itself reports it
                listed = self.list_file.read_text(encoding="utf-8-sig").lower()
        named = (*self.layers.values(), *self.op_types.values(), *_LISTED.findall(listed))
        return frozenset(precision for precision in named if precision != "none")

    @property
    def keeps_values(self) -> bool:
        return True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.models.changed_model import check_changed_model
        from ndld_flow.precision.constraints.rules import constrain_file, read_search_result, settings_notes

        search = None if self.found_by is None else read_search_result(context.read("found_by").path)
        constrained_model = constrain_file(
            source.path, out / Onnx.main, self._rules(), self.keep, self.allow_empty, search
        )
        check_changed_model(source.path, out / Onnx.main, context.log)
        notes = [] if search is None else settings_notes(search, source.label, {})
        context.log_lines(*constrained_model.change.notes, *notes)
        for name, precision in constrained_model.constraints.items():
            context.log.info("%s: %s", precision, name)
        nodes, constrained = constrained_model.change.after.node_count, len(constrained_model.constraints)
        counts = ", ".join(f"{count} {precision}" for precision, count in constrained_model.counts.items())
        return Result(
            summary=f"{constrained} of {nodes} nodes constrained{f': {counts}' if counts else ''}",
            metrics={"nodes": nodes, "constrained": constrained},
            change=constrained_model.change,
        )

    def _rules(self) -> list[Rule]:
        from ndld_flow.precision.constraints.rules import Rule, read_precision_list

        layers = [Rule("layers", "name", pattern, precision) for pattern, precision in self.layers.items()]
        return [
            *(rule for rule in layers if rule.pattern == _ALL),
            *(() if self.list_file is None else read_precision_list(self.list_file)),
            *(Rule("op_types", "operator", op_type, precision) for op_type, precision in self.op_types.items()),
            *(rule for rule in layers if rule.pattern != _ALL),
        ]
