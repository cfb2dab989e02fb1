"""Find the nodes that a reduced precision breaks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Milliseconds, count, counted, milliseconds
from ndld_flow.base.text import first_of, short_name
from ndld_flow.engines.building import TrialEngineSettings
from ndld_flow.machine.host import describe_machine
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.runtimes.one_runtime import OneRuntime, request_of, versions_of
from ndld_flow.runtimes.onnxruntime.settings import CustomOps, loaded_paths
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.samples.sample_settings import FittedSettings, MadeSettings
from ndld_flow.step import Context, Foresight, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.digest import digest_file, digest_json
from ndld_flow.store.kinds import Onnx, PrecisionDocument

if TYPE_CHECKING:
    from ndld_flow.precision_search.reducers import Reducer
    from ndld_flow.records.precision_search import PrecisionSearch
    from ndld_flow.samples.sample_feeds import Samples

_NOT_SHAPING = {"tolerance", "trials", "time"}
"""Settings that determine which trials run, but not the outcome of any."""
_NAMED = 3


class FindPrecision(MadeSettings, FittedSettings, Step[Onnx, PrecisionDocument]):
    """Find a small set of nodes to keep in fp32, with the reason for each.

    The model is converted repeatedly with different nodes kept, run on the samples with every tensor rounded as
    hardware stores it, and compared with the original. The search starts with the error of each node on its own and
    with its values and weights relative to the format's limits, then bisects over operators, regions and nodes; in the
    end, no single node can be left out of the set. If the tolerance cannot be met, the step fails and still returns the
    best set. `found_by` of `convert_fp16`, `constrain_precision` and `quantize` accepts the result.
    """

    also_called: ClassVar[tuple[str, ...]] = (
        "mixedprecision",
        "automixedprecision",
        "amp",
        "autoconvertmixedprecision",
    )
    synonyms: ClassVar[Mapping[str, str]] = {"max_trials": "trials", "timeout": "time"}

    # 12: the result counts all parts that the samples reach in one form.
    version: ClassVar[int] = 16
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "ml-dtypes", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("kept", "candidates", "trials"),
        *Tolerance.declared(),
        *Tolerance.declared("whole."),
        *metrics("top{k}", "whole.top{k}", "nonfinite", "whole.nonfinite", when="outputs have rankings, or NaN"),
    )

    precision: Literal["fp16", "bf16", "int8"] = "fp16"
    """The precision of the rest of the model."""
    tolerance: Annotated[Tolerance, Field(validate_default=True)] = Tolerance()
    """Bounds on the differences of outputs. By default every channel is judged by the `default` bounds of `slices`
    for fp16 and by the `loose` ones for bf16 and int8."""
    keep_io: bool = True
    """For fp16: keep the model's inputs and outputs in fp32, as in `convert_fp16`."""
    sensitive: bool = True
    """For fp16: keep the operators that `block.sensitive` of `convert_fp16` keeps."""
    keep: tuple[NamePattern, ...] = ()
    """Names of nodes that are always kept and not searched: globs (`head.*`), or `/.../` for a regular expression
    (RE2's syntax)."""
    op_types: tuple[str, ...] = ()
    """Search only nodes of these operators; all others are converted. Empty: search all."""
    trials: Annotated[int, Field(ge=1)] = 200
    """Maximum number of trials."""
    time: Milliseconds = 600_000.0
    """Time limit of the search, with the calibration before it; when it is reached, the trial that runs ends, and the
    result is the best set so far, and reported as such."""
    int8: QuantizeSettings = QuantizeSettings()
    """For int8: the settings of `quantize`."""
    custom_ops: CustomOps = ()
    """Libraries with custom operators for ONNX Runtime, such as `libmy_ops.so`. They need a trusted recipe."""

    # Only int8 follows the recipe's runtime: fp16 and bf16 are emulated in ONNX Runtime.
    runtime: Annotated[
        RuntimeSettings | None,
        OneRuntime(engines=False, more=(TrialEngineSettings,), follows=lambda entry: entry.get("precision") == "int8"),
    ] = None
    """Another runtime for the trials, with its settings as in `profile`, such as `openvino`; for TensorRT those of
    `build_engine`, such as `{backend: tensorrt, fp16: true}`: each trial is built into an engine, and run. The original
    runs in ONNX Runtime. A runtime that removes the Casts by which fp16 or bf16 are emulated is refused for that
    precision."""

    @field_validator("tolerance")
    @classmethod
    def _loosen(cls, given: Tolerance, info: ValidationInfo) -> Tolerance:
        return given if info.data.get("precision") == "fp16" else given.or_loose()

    @model_validator(mode="after")
    def _check_precision(self) -> FindPrecision:
        if self.precision != "fp16" and not (self.keep_io and self.sensitive):
            raise ValueError("`keep_io` and `sensitive` apply only to fp16: remove them for other precisions")
        return self

    @property
    def calibrates(self) -> bool:
        return True

    def foresee(self) -> Foresight:
        seen = Foresight() if self.runtime is None else self.runtime.foresee()
        notes = (f"{self.precision}, at most {count(self.trials)} trials in {milliseconds(self.time)}", *seen.notes)
        return replace(seen, notes=notes)

    def library_versions(self) -> dict[str, str]:
        return super().library_versions() | versions_of(self.runtime)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.sequence_runs import read_samples
        from ndld_flow.graph.edit.edit_file import raise_opset
        from ndld_flow.models.files import model_inputs
        from ndld_flow.precision_search.search import PrecisionSearcher, SearchRequest
        from ndld_flow.precision_search.trials import TrialFile, digest_samples
        from ndld_flow.samples.images import write_received_images

        start = time.monotonic()
        samples = read_samples(source.path, model_inputs(source.path), context.inputs, self, source.label)
        samples = self._extended(samples, source.path)
        path, raised = raise_opset(source.path, context.scratch, context.log)
        context.log_lines(*samples.described, *raised)
        key = digest_json([self._trial_key(), source.digest, digest_samples(samples)])
        reducer = self._reducer(path, samples, context)
        request = SearchRequest(
            path=path,
            label=source.label,
            samples=samples,
            reducer=reducer,
            precision=self.precision,
            tolerance=self.tolerance,
            op_types=self.op_types,
            trials=self.trials,
            time_s=self.time / 1000 - (time.monotonic() - start),
            custom_ops=loaded_paths(self.custom_ops),
            runtime=request_of(self.runtime, source, context),
            scratch=context.scratch,
            trial_file=TrialFile(context.caches / "precision" / f"{key}.jsonl"),
            progress=context.progress,
        )
        search = PrecisionSearcher(request).run()
        write_received_images(next(iter(samples)).feeds, out)
        search.write(out)
        _log(search, context)
        metrics = {
            "kept": len(search.kept),
            "candidates": search.candidate_count,
            "trials": len(search.trials),
            **search.metrics_found,
            **{f"whole.{name}": value for name, value in search.metrics_whole.items()},
        }
        return Result(_summary(search, self.tolerance.bounds()), search.passed, metrics)

    def _extended(self, samples: Samples, model: Path) -> Samples:
        """Return the samples followed by made ones."""
        from ndld_flow.accuracy.made_choice import extend_samples
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        if self.precision == "int8" and self.made == "auto":  # it is calibrated on the samples
            return samples
        settings = OnnxruntimeRequest(custom_ops=loaded_paths(self.custom_ops))
        # Engines of trials accept the sizes that they are built for.
        return extend_samples(samples, self.made, model, settings, one_size=self.runtime is not None)

    def _reducer(self, source: Path, samples: Samples, context: Context) -> Reducer:
        if self.precision == "int8":
            from ndld_flow.quantize.int8_reducer import Int8Reducer

            libraries = loaded_paths(self.custom_ops)
            return Int8Reducer(source, self.int8, self.keep, samples, context.scratch, libraries)
        if self.precision == "bf16":
            from ndld_flow.precision_search.reducers import Bf16Reducer

            return Bf16Reducer(source, self.keep)
        from ndld_flow.precision_search.reducers import Fp16Reducer

        return Fp16Reducer(source, self.keep, self.keep_io, self.sensitive)

    def _trial_key(self) -> JsonValue:
        """Return the settings that determine the outcome of a trial; of the tolerance, only those that decide which
        elements are counted.
        """
        settings = json.loads(self.model_dump_json(exclude=_NOT_SHAPING))
        libraries: dict[str, JsonValue] = {**self.library_versions()}
        elementwise = list(self.tolerance.elementwise())
        machine = describe_machine()  # a store may be shared, and kernels differ between CPUs
        return {
            **settings,
            "version": type(self).version,
            "libraries": libraries,
            "custom_ops": [digest_file(library) for library in self.custom_ops],
            "elementwise": elementwise,
            "machine": [machine.architecture, machine.cpu],
        }


def _log(search: PrecisionSearch, context: Context) -> None:
    for note in search.notes:
        context.log.warning("%s", note)
    for trial in search.trials:
        context.log.info("trial %d (%s): %s: %s", trial.number, trial.phase, trial.what, trial.metrics or trial.trouble)
    for node in search.kept:
        name = short_name(node.node or node.outputs[0])
        context.log.info(
            "kept: %s %s: %s", node.op_type, name, "; ".join(evidence.sentence for evidence in node.evidence)
        )


def _summary(search: PrecisionSearch, bounds: Mapping[str, float]) -> str:
    """Return `keeps 3 of 331 nodes in fp32 (BatchNormalization): cosine 0.77 -> 0.99999, 9 trials`."""
    from ndld_flow.precision_search.search import CONVERTED, THIN_HEADROOM

    thin = next((f"; {note}" for note in search.notes if note.startswith(THIN_HEADROOM)), "")
    trials = f"{counted(len(search.trials), 'trial')}{thin}"
    if not search.candidate_count and search.passed:
        return f"no node of this model becomes {search.precision}: nothing to keep"
    if not search.kept and search.passed:
        return f"{search.precision} needs no node kept{_change(search)}, {trials}{_caveats(search)}"
    operators = [name for name, _ in Counter(node.op_type for node in search.kept).most_common()]
    kept = f"keeps {count(len(search.kept))} of {count(search.candidate_count)} nodes in {search.kept_precision}"
    named = f" ({first_of(operators, _NAMED)})" if operators else ""
    unmet = ""
    if not search.passed:
        reasons = [] if "nonfinite" in search.metrics_found else outside(search.metrics_found, bounds)
        reasons += [note for note in search.notes if note.startswith(CONVERTED)]
        unmet = f"; the tolerance is not met{f' ({reasons[0]})' if reasons else ''}"
    return f"{kept}{named}{_change(search)}, {trials}{unmet}{_caveats(search)}"


def _caveats(search: PrecisionSearch) -> str:
    from ndld_flow.records.power import qualify

    fitted = f"judged on the {counted(search.sample_count, 'sample')} that it was fitted to"
    return qualify(search.power, (fitted,) if search.is_fitted else ())


def _change(search: PrecisionSearch) -> str:
    """Return `: cosine NaN -> 0.99999`; the earlier value only where it was measured and nodes are kept."""
    metric = next((name for name in (*search.tolerance, "cosine") if name in search.metrics_found), "")
    if not metric:
        return ""
    before = "NaN -> " if "nonfinite" in search.metrics_whole else ""
    if not before and search.kept and metric in search.metrics_whole:
        before = f"{metric_text(metric, search.metrics_whole[metric])} -> "
    return f": {metric} {before}{metric_text(metric, search.metrics_found[metric])}"
