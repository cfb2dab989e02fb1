"""Compare two profiles and check the differences against gates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import Fraction, Milliseconds, counted
from ndld_flow.machine.host import describe_machine
from ndld_flow.profiles.compare.written_gates import PROFILE_METRICS, check_known, parse_comparison_gates
from ndld_flow.records.document import read_document
from ndld_flow.records.measurement import FEWEST_ROUNDS, Allowance
from ndld_flow.step import Context, DataFile, Reads, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import Artifact, ComparisonDocument, Onnx, ProfileDocument

if TYPE_CHECKING:
    from ndld_flow.measure.process_runs import Side
    from ndld_flow.profiles.compare.comparison import RoundsEvidence
    from ndld_flow.profiles.compare.measured import Measured, Rules
    from ndld_flow.profiles.compare.rounds import RoundsPlan
    from ndld_flow.records.comparison import Comparison, ProfileComparison
    from ndld_flow.records.model_diff import GraphChange
    from ndld_flow.records.noise import Round
    from ndld_flow.steps.profile import ProfileModel


class CompareProfiles(Step[ProfileDocument, ComparisonDocument]):
    """Compare two profiles by metrics and by layers, and check gates; `from` is the candidate.

    The two models are measured again, against each other: each round starts a new process for each model, the two
    alternate pass by pass, and rounds continue until the evidence is sufficient or a limit is reached. Rounds decide
    the median and the minimum latency; the profiles' own process runs, paired if they were measured in turns, decide
    the other metrics. Both models are in memory at the same time.
    """

    also_called: ClassVar[tuple[str, ...]] = ("compare", "compareperf", "regression")
    synonyms: ClassVar[Mapping[str, str]] = {"baseline": "base"}

    version: ClassVar[int] = 9
    # The profiles that it reads were measured on this machine, and so are its rounds.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    reads_through: ClassVar[tuple[str, ...]] = ("base", "from")
    returns: ClassVar[tuple[Returns, ...]] = (
        *(
            each
            for name in PROFILE_METRICS
            for each in metrics(
                f"{name}.ratio", f"{name}.ratio_low", f"{name}.ratio_high", when="both profiles have the metric"
            )
        ),
        *metrics("layers.matched_share", when="both profiles have layers"),
        *metrics("graph.differences", when="both profiles are of private environments and kept their graphs"),
    )

    base: Annotated[str, Reads(ProfileDocument)]
    """The step whose profile is the base."""
    gates: tuple[str, ...] = ()
    """Conditions that must hold: `latency.median <= +5 %`, `latency.median <= -10 %`, `load <= +20 ms`, `latency.p99
    <= 30 ms`. A signed limit is relative to the base."""
    when_undecided: Literal["inconclusive", "pass", "fail"] = "inconclusive"
    """Outcome of a gate that remains undecided because the interval contains its limit: the run ends as inconclusive
    with exit code 4, or the gate passes or fails."""
    metric: str | None = None
    """The metric that determines the verdict; by default `latency.median` if rounds were measured, else `latency.min`:
    the fastest pass of a process run is disturbed least by other load."""
    threshold: Fraction = 0.03
    """Smallest relative difference that matters: a metric improved or regressed if the interval of its ratio is
    entirely beyond it, and is unchanged if the interval is entirely within it."""
    rounds: Annotated[int, Field(ge=0)] = 12
    """Maximum number of rounds while a gate or the verdict is undecided. With 0, the process runs of the two profiles
    decide everything."""
    min_rounds: Annotated[int, Field(ge=FEWEST_ROUNDS)] = FEWEST_ROUNDS
    """Minimum number of rounds before anything is decided."""
    budget: Annotated[Milliseconds, Field(gt=0)] = 60_000.0
    """No further round starts once at least `min_rounds` have run and taken this long."""
    noise: Annotated[Path | None, DataFile()] = None
    """A file written by `ndld-flow noise`: the difference between two processes that run the same model on this
    machine. By default 1 %, or the spread of the rounds if that is larger."""
    allow: tuple[Allowance, ...] = ()
    """Conditions that may differ or be unknown without making the profiles incomparable; `unknown` allows all that were
    not recorded."""

    @field_validator("gates")
    @classmethod
    def _read_gates(cls, gates: tuple[str, ...]) -> tuple[str, ...]:
        try:
            check_known(parse_comparison_gates(gates), PROFILE_METRICS)
        except RequestError as error:
            raise ValueError(str(error)) from None
        return gates

    @model_validator(mode="after")
    def _check_rounds(self) -> CompareProfiles:
        if 0 < self.rounds < self.min_rounds:
            raise ValueError(
                f"`rounds: {self.rounds}` is less than `min_rounds: {self.min_rounds}`, so nothing would be decided; "
                "0 measures no rounds"
            )
        return self

    def run(self, source: ProfileDocument, out: Path, context: Context) -> Result:
        from ndld_flow.profiles.compare.comparison import compare
        from ndld_flow.profiles.compare.measured import Measured
        from ndld_flow.records.comparison import Subject
        from ndld_flow.records.profile import Profile

        base = context.read("base")
        measured = [
            Measured(index, document.label, read_document(Profile, document.path))
            for index, document in enumerate((base, source))
        ]
        evidence = self.measure(measured, context)
        rules = self._rules(evidence)
        labels = [each.step for each in measured]
        if labels[0] == labels[1]:
            labels[1] += " again"
        subjects = [
            Subject(label=label, location=f"step {each.step}", kind="profile", measured_at=each.profile.measured_at)
            for label, each in zip(labels, measured, strict=True)
        ]
        comparison = compare(subjects, {source.label: measured}, rules, self.gates, evidence=evidence)
        (compared,) = comparison.profiles
        graphs, missing = _compare_graphs(measured, [base, source], context)
        compared = compared.model_copy(update={"graphs": graphs, "graphs_missing": missing})
        comparison = comparison.model_copy(update={"when_undecided": self.when_undecided, "profiles": (compared,)})
        comparison.write(out)
        _log(comparison, context)
        outcomes = {gate.outcome for gate in comparison.gates}
        wrong = {"failed", "incomparable"} | ({"inconclusive"} if self.when_undecided == "fail" else set())
        undecided = self.when_undecided == "inconclusive" and "inconclusive" in outcomes
        failed = bool(outcomes & wrong)
        return Result(
            _summary(comparison),
            passed=not failed and not undecided,
            metrics=_metrics(comparison.profiles[0]),
            inconclusive=undecided and not failed,
        )

    def _rules(self, evidence: RoundsEvidence) -> Rules:
        from ndld_flow.profiles.compare.measured import Rules

        metric = self.metric or ("latency.median" if evidence.rounds is not None else Rules.metric)
        return Rules(threshold=self.threshold, metric=metric, allow=frozenset(self.allow))

    def measure(self, measured: Sequence[Measured], context: Context) -> RoundsEvidence:
        """Measure rounds until the gates and the verdict are decided, or return the reason why none can be measured.

        `context` has the base's and the candidate's model as `base/from` and `from/from`, and their engines.
        """
        from ndld_flow.measure.pair_rounds import RoundLimits, measure_rounds
        from ndld_flow.profiles.compare.comparison import RoundsEvidence
        from ndld_flow.profiles.compare.rounds import FLOOR, RoundsPlan, describe_rounds
        from ndld_flow.records.noise import Noise

        missing, models = self._find_models(measured)
        if missing:
            return RoundsEvidence(missing=missing)
        learned = None
        if self.noise is not None:
            try:
                learned = read_document(Noise, self.noise).rounds_spread
            except (OSError, ValidationError):
                raise RequestError(f"`noise`: {self.noise} is not a file that `ndld-flow noise` wrote") from None
        plan = RoundsPlan(
            models[0].device != "cpu", self.rounds, self.budget, self.threshold, max(FLOOR, learned or 0.0)
        )
        with context.hold_device(models[0].device):
            measured_rounds = measure_rounds(
                [_side("base", measured[0], models[0], context), _side("from", measured[1], models[1], context)],
                context.scratch,
                RoundLimits(self.rounds, self.budget, self.min_rounds),
                lambda rounds: self._is_decided(rounds, measured, plan),
            )
        return RoundsEvidence(describe_rounds(measured_rounds.rounds, plan, measured_rounds.stopped_because))

    def _find_models(self, measured: Sequence[Measured]) -> tuple[str, list[ProfileModel]]:
        """Return why the pair cannot be measured in rounds, or the settings that it was profiled with."""
        from ndld_flow.profiles.compare.differences import circumstances_of
        from ndld_flow.steps.profile import ProfileModel

        profiles = [each.profile for each in measured]
        if not self.rounds:
            return "`rounds: 0` measures none", []
        if circumstances_of(profiles[0], profiles[1], frozenset(self.allow)).forbidden:
            return "the conditions differ", []
        if any(profile.machine != describe_machine() for profile in profiles):
            return "the profiles were measured on another machine", []
        try:
            models = [ProfileModel.model_validate_json(json.dumps(profile.options)) for profile in profiles]
        except ValidationError:
            return "the profiles were not written by the step `profile`", []
        if models[0].device != models[1].device:
            return "the profiles were measured on two devices", []
        return "", models

    def _is_decided(self, rounds: Sequence[Round], measured: Sequence[Measured], plan: RoundsPlan) -> bool:
        """Return whether everything that rounds can decide is decided: the verdict, and the gates on their metrics."""
        from ndld_flow.profiles.compare.comparison import RoundsEvidence, compare
        from ndld_flow.profiles.compare.rounds import ESTIMATES, describe_rounds

        if len(rounds) < self.min_rounds:
            return False
        evidence = RoundsEvidence(describe_rounds(rounds, plan, ""))
        rules = self._rules(evidence)
        # Rounds do not decide layers, and matching them takes time.
        no_layers = {"layers": (), "layer_runs": ()}
        pair = [replace(each, profile=each.profile.model_copy(update=no_layers)) for each in measured]
        comparison = compare((), {"pair": pair}, rules, self.gates, evidence=evidence)
        outcomes: list[str] = [comparison.verdict] if rules.metric in ESTIMATES else []
        outcomes += [
            decided.outcome
            for gate, decided in zip(parse_comparison_gates(self.gates), comparison.gates, strict=True)
            if gate.metric in ESTIMATES and gate.kind != "value"
        ]
        return "inconclusive" not in outcomes


def _side(setting: str, measured: Measured, model: ProfileModel, context: Context) -> Side:
    """Return the model and the engine that the profile's step read, with its settings."""
    from ndld_flow.measure.process_runs import Side

    prefix = f"{setting}/"
    read = {key.removeprefix(prefix): each for key, each in context.artifacts.items() if key.startswith(prefix)}
    source = read["from"]
    assert isinstance(source, Onnx)
    request = model.request(source, replace(context, artifacts=read))
    return Side(request, context.scratch, context.progress, step=measured.step)


def _log(comparison: Comparison, context: Context) -> None:
    (compared,) = comparison.profiles
    rounds = compared.rounds
    if compared.rounds_missing:
        context.log.info("no rounds: %s", compared.rounds_missing)
    if rounds is not None:
        limits = f"at most {rounds.rounds_limit} rounds and {rounds.budget_ms / 1e3:g} s"
        context.log.info("%s (%s); %s decides: %s", rounds.stopped_because, limits, rounds.clock, rounds.clock_reason)
    for verdict in compared.verdicts:
        if verdict.base == 0:
            context.log.info("%s %s: %s", verdict.metric, verdict.verdict, verdict.why)
    for gate in comparison.gates:
        context.log.info("gate %s %s: %s", gate.gate, gate.outcome, gate.why)


def _compare_graphs(
    measured: Sequence[Measured], documents: Sequence[Artifact], context: Context
) -> tuple[GraphChange | None, str]:
    """Return the difference of the graphs that ran, or None and the reason why it is not known.

    No reason is needed for profiles that are not of private environments.
    """
    profiles = [each.profile for each in measured]
    if not any(profile.options.get("environment") for profile in profiles):
        return None, ""
    kept = [document.path.with_name(ProfileDocument.graph) for document in documents]
    for each, path in zip(measured, kept, strict=True):
        if not path.is_file():
            return None, _why_no_graph(each)
    from ndld_flow.graph.diff.diff_models import compare_executed_graphs

    sources = {context.artifacts[f"{side}/from"].path for side in ("base", "from")}
    try:
        change = compare_executed_graphs(sources, *kept)
    except ModelError as error:
        return None, f"a graph cannot be read: {error.message}"
    return change.model_copy(update={"notes": tuple(_count_fusions(measured))}), ""


def _why_no_graph(measured: Measured) -> str:
    profile = measured.profile
    if not profile.options.get("environment"):
        return f"{measured.step} is not of a private environment, and only those keep their graphs"
    if not profile.layers:
        return f"{measured.step} has no layers: set its `layer_passes`"
    return f"{measured.step} did not keep its graph: {profile.backend} does not write it"


def _count_fusions(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield a sentence on each profile's layers that come from several nodes of the model."""
    from ndld_flow.runtimes.environments import Environment

    for each in measured:
        fused = [layer for layer in each.profile.layers if len(layer.onnx_nodes) > 1]
        nodes = sum(len(layer.onnx_nodes) for layer in fused)
        environment = each.profile.options.get("environment")
        release = f" ({Environment.model_validate(environment).label})" if environment else ""
        yield f"{each.step}{release}: {counted(len(fused), 'fused layer')}, of {nodes:,} nodes of the model"


def _metrics(profile: ProfileComparison) -> dict[str, float]:
    """Return the ratio of every metric with its interval, the share of the layers' time that was matched, and the
    number of differences of the graphs."""
    metrics: dict[str, float] = {}
    for verdict in profile.verdicts:
        if verdict.base == 0:
            metrics[f"{verdict.metric}.ratio"] = verdict.ratio
            metrics[f"{verdict.metric}.ratio_low"] = verdict.low
            metrics[f"{verdict.metric}.ratio_high"] = verdict.high
    if profile.coverage[1] is not None:
        metrics["layers.matched_share"] = profile.coverage[1].matched_share
    if profile.graphs is not None and profile.graphs.diff is not None:
        metrics["graph.differences"] = profile.graphs.diff.node_differences
    return metrics


def _summary(comparison: Comparison) -> str:
    verdict = f"{comparison.verdict}: {comparison.why}"
    graphs = comparison.profiles[0].graphs
    if graphs is not None and graphs.diff is not None:
        verdict += f"; optimized graphs: {graphs.diff.one_line}"
    undecided = [gate for gate in comparison.gates if gate.outcome != "passed"]
    if not undecided:
        return verdict
    gates = ";  ".join(gate.text for gate in undecided)
    return f"{gates}; {verdict}"
