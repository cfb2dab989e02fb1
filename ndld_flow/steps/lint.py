"""Check a model for mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ndld_flow.graph.lint.settings import BUILT_IN, ENTRY_POINTS, LintSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.plugins import find_plugins, plugin_version
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import LintDocument, Onnx

if TYPE_CHECKING:
    from ndld_flow.records.inspection import Findings


class Lint(LoadsCustomOps, LintSettings, Step[Onnx, LintDocument]):
    """Check a model with onnx, ONNX Runtime and Polygraphy, and for mistakes that they do not report.

    The run stops after a lint that fails. Without an error, a check that did not finish leaves the run undecided.
    """

    also_called: ClassVar[tuple[str, ...]] = ("check", "checker", "checkmodel")
    synonyms: ClassVar[Mapping[str, str]] = {"severity": "fail_on"}

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "polygraphy", "onnx-graphsurgeon")
    version: ClassVar[int] = 7
    uses_inputs: ClassVar[bool] = True
    stops_run: ClassVar[bool] = True
    retries_undecided: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("errors", "warnings", "notes")

    fail_on: Literal["error", "warning", "never"] = "error"
    """Lowest severity that fails the step."""

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        return InputSpec(shape=spec.run_shape)

    def library_versions(self) -> dict[str, str]:
        """Return the libraries, and the packages of the installed checks that it runs."""
        plugins = {name: point for name, point in find_plugins(ENTRY_POINTS).items() if name not in BUILT_IN}
        used = {name: point for name, point in plugins.items() if name not in self.skip}
        if self.checks:
            used = {name: point for name, point in used.items() if name in self.checks}
        return super().library_versions() | {f"check {name}": plugin_version(used[name]) for name in sorted(used)}

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.lint.check import lint_file

        findings = lint_file(source.path, self, context.inputs, context.progress)
        findings.write(out)
        for finding in findings.findings:
            where = f" {finding.node or finding.op_type}:" if finding.node or finding.op_type else ""
            context.log.info(f"{finding.severity}: {finding.check}:{where} {finding.message}")
        for check, reason in findings.checks_skipped.items():
            context.log.info(f"skipped: {check}: {reason}")
        passed = self.fail_on == "never" or not (
            findings.count("error") or (self.fail_on == "warning" and findings.count("warning"))
        )
        return Result(
            summary=_summary(findings),
            passed=passed and not findings.undecided,
            inconclusive=passed and bool(findings.undecided),
            metrics={
                "errors": findings.count("error"),
                "warnings": findings.count("warning"),
                "notes": findings.count("info"),
            },
        )


def _summary(findings: Findings) -> str:
    counts = {"error": findings.count("error"), "warning": findings.count("warning"), "note": findings.count("info")}
    counted = ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts.items() if count)
    first = next(
        (f": {f.node + ': ' if f.node else ''}{f.message}" for f in findings.findings if f.severity == "error"), ""
    )
    found = f"{counted or 'nothing found'}{first[:200]}"
    if not findings.undecided:
        return found
    run, undecided = len(findings.checks_run), len(findings.undecided)
    reasons = "; ".join(dict.fromkeys(findings.undecided.values()))
    names = ", ".join(findings.undecided)[:100]
    return f"{found} by {run} of {run + undecided} checks, {names} undecided: {reasons[:200]}"
