"""Look for mistakes in a model."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from ndld_flow.base.units import Bytes, Milliseconds
from ndld_flow.inputs import InputSpec
from ndld_flow.records.finding import Findings
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import LintDocument, Onnx

CheckName = Literal[
    "external_data",
    "onnx.checker",
    "shape_inference",
    "versions",
    "unknown_op",
    "duplicate_name",
    "missing_name",
    "unused_node",
    "unused_initializer",
    "unused_input",
    "dynamic_output",
    "float64",
    "nan_inf",
    "fp16_range",
    "onnxruntime",
    "polygraphy",
    "channel_scales",
]


class Lint(Step[Onnx, LintDocument]):
    """Check a model with onnx, ONNX Runtime and Polygraphy, and look for what they do not say.

    The run stops after a lint that fails.
    """

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "polygraphy", "onnx-graphsurgeon")
    uses_inputs: ClassVar[bool] = True
    stops_run: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("errors", "warnings", "notes")

    fail_on: Literal["error", "warning", "never"] = "error"
    """The severity from which on the step fails."""
    checks: tuple[CheckName, ...] = ()
    """Run only these checks; empty runs all."""
    skip: tuple[CheckName, ...] = ()
    """Checks to leave out."""
    polygraphy: Literal["auto", "always", "never"] = "auto"
    """Polygraphy's lint, which runs the model: `auto` leaves it out for large models and where it is not installed."""
    large_model: Bytes = 2**30
    """Above this size checks that read all weights or run the model are left out, unless asked for."""
    time_limit: Milliseconds = 60_000.0
    """For all checks together; what does not fit is told as left out."""

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        return InputSpec(shape=spec.run_shape)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.lint import LintOptions, lint_file

        options = LintOptions(
            checks=self.checks,
            skip=self.skip,
            time_limit_s=self.time_limit / 1000,
            polygraphy=self.polygraphy,
            large_model_bytes=self.large_model,
            inputs=context.inputs,
        )
        found = lint_file(source.path, options, context.progress)
        (out / LintDocument.main).write_text(found.to_json(), encoding="utf-8")
        for finding in found.findings:
            where = f" {finding.node or finding.op_type}:" if finding.node or finding.op_type else ""
            context.log.info(f"{finding.severity}: {finding.check}:{where} {finding.message}")
        for check, reason in found.checks_skipped.items():
            context.log.info(f"left out: {check}: {reason}")
        return Result(summary=_summary(found), passed=self._passed(found), metrics=_metrics(found))

    def _passed(self, found: Findings) -> bool:
        if self.fail_on == "never":
            return True
        return not found.count("error") and not (self.fail_on == "warning" and found.count("warning"))


def _summary(found: Findings) -> str:
    counts = {"error": found.count("error"), "warning": found.count("warning"), "note": found.count("info")}
    told = ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts.items() if count)
    first = next(
        (f": {f.node + ': ' if f.node else ''}{f.message}" for f in found.findings if f.severity == "error"), ""
    )
    return f"{told or 'nothing found'}{first[:200]}"


def _metrics(found: Findings) -> dict[str, Metric]:
    return {
        "errors": Metric(value=found.count("error")),
        "warnings": Metric(value=found.count("warning")),
        "notes": Metric(value=found.count("info")),
    }
