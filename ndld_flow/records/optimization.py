"""The record of `optimize`: the model to ship, what it gains and costs, and why the others lost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, Self

from pydantic import field_validator

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import (
    counted,
    milliseconds,
    percent,
    ratio_change,
    seconds,
    size,
    speedup_interval,
    times_as_fast,
)
from ndld_flow.base.text import first_of, joined, short_name
from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.measurement import BUSY, Metric

VariantOutcome = Literal[
    "delivered",
    "on the front",
    "not the best",
    "the same",
    "failed",
    "not right",
    "not faster",
    "not right on held-out data",
    "near the bound",
    "not judged",
    "not found",
    "not proved",
    "not tried",
    "cannot win",
]
"""`not tried`, `not proved`: the search or the proofs ended before, or noise left it open; `cannot win`: others show
it, so that it was not tried; `not the best`: others were better in the search; `the same`: its model is that of another
variant; `failed`: it could not be made or run; `not right`: a condition failed there; `near the bound`: all samples
hold the conditions, and as many new ones may not; `not judged`: the samples do not show whether it is right; `not
found`: its search ran out of time before it found a model that is right and faster; `not faster`: at 95 % confidence it
is not 1 % better than the source; `on the front`: proved too, and another is better in the first objective;
`delivered`."""
Ending = Literal["faster", "nothing pays", "not decided"]
"""`faster`: a variant is right, and better at 95 % confidence; `nothing pays`: everything was tried, and no variant is
right and better; `not decided`: the source is delivered, and a variant may still be better. The budget or Ctrl-C ended
the search first, or noise or too few samples leave it open."""
_AT_LEAST = 0.99
"""Largest upper end of a ratio that is a gain: two equal models may differ by 1 %."""
_OPEN_BELOW = 0.97
"""Lower end of a ratio below which an unproved gain may be worth having."""
_OPEN: tuple[VariantOutcome, ...] = ("not tried", "not proved", "not judged", "not found")
"""Outcomes that leave open whether a variant is better than the source."""
_COSINES = (0.999, 0.99)
"""Bounds that users choose where the default bounds of each slice are stricter than they need."""
_EXACT = 1e-6
"""The cosine of a wrong output that is closer to 1 shows nothing: that of one positive value is always 1."""
_ROOM = 5
"""Number of times that an error on the samples must fit into a bound, so that it is not near the bound."""
_USUAL = ("cosine", "slice_rms", "relative_rms", "max_abs")
"""Metrics that describe an accuracy where no condition names any."""
_NAMED = 3
"""Number of variants that the conclusion names; the report has all."""
_SLOW = 1.1
"""Ratio to the source from which the first pass at a new size is reported."""
_SHORT_MS = 0.5
"""Duration of a pass below which the call in Python counts: 30 µs in OpenVINO for two inputs, 5 µs in ONNX Runtime."""
_LONG = 100
"""Characters of a reason in the conclusion."""


class Speed(Record):
    """The latency of a model divided by that of the source, measured in alternating passes."""

    ratio: float
    low: float
    high: float
    """The ends of the interval of 95 % confidence."""
    clock: str
    """`cpu` or `wall`: the clock of the rounds that decided; empty if process runs did."""
    proved: bool = False
    """True if new processes measured it; else the one process of the race did."""

    @property
    def is_possible(self) -> bool:
        """Return whether it is the result of a measurement: a record can be edited."""
        return all(0 < ratio < inf for ratio in (self.ratio, self.low, self.high))

    def describe(self) -> tuple[str, str]:
        """Return how many times as fast it is, `2.00x`, and the interval, `1.92x to 2.08x`; only if it is possible."""
        return times_as_fast(self.ratio), speedup_interval(self.low, self.high)


class TriedVariant(Record):
    """A variant that was tried."""

    name: str
    runtime: str
    outcome: VariantOutcome
    why: str = ""
    speed: Speed | None = None
    """Its latency divided by the source's, from alternating passes: of its proof, or else in the race, which is one
    process; None if it was in neither."""
    metrics: dict[str, Metric] = {}
    """Metrics on the samples of the search, or on those of the proof that refuted it; empty if it was not judged."""
    took_s: float | None = None
    """Seconds to build, judge and race it; None for a variant of a sweep."""
    latency: Metric | None = None
    """The objective of the search; None if it was not measured."""

    objectives: dict[str, Metric] = {}
    """Objective -> its value in the search, or in its repetition in turns; those that were not measured are missing."""
    hint: str = ""
    """What may make one that failed run."""
    on_front: bool = False
    """True if no other variant is better in one objective and not worse in any; only with several objectives."""

    @property
    def is_tried(self) -> bool:
        """Return whether it is a variant other than the source, and was built, judged or measured."""
        is_judged = self.outcome != "not judged" or self.speed is not None
        return self.name != "source" and self.outcome not in ("not tried", "cannot win") and is_judged

    def describe_accuracy(self, wanted: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the wanted metrics, else the usual ones, else the first: `cosine 0.9993` and `slice_rms 2.1 %`."""
        known = [[name for name in names if name in self.metrics] for names in (wanted, _USUAL, self.metrics)]
        first = next((names[:most] for names, most in zip(known, (5, 2, 2), strict=True) if names), [])
        found = ((name, self.metrics[name]) for name in dict.fromkeys(first))
        texts = ((name, metric_text(name, metric.value, metric.unit)) for name, metric in found)
        return tuple(f"{short_name(name, 40)} {short_name(text, 40)}" for name, text in texts)

    @property
    def is_open(self) -> bool:
        """Return whether it may be better than the source, for all that is known."""
        may_be_right = self.outcome == "near the bound" and (self.speed is None or self.speed.ratio < _AT_LEAST)
        return may_be_right or self.outcome in _OPEN


def runtime_settings(runtime: str) -> str:
    """Return the settings of a step that is not to follow its recipe: `backend: openvino, threads: 2`."""
    return runtime.strip("{}") if runtime.startswith("{") else f"backend: {runtime}"


def describe_runtime(runtime: str) -> str:
    """Return a runtime of a recipe with its settings: `openvino (inference_precision: default)`."""
    backend, _, settings = short_name(runtime_settings(runtime).removeprefix("backend: "), 80).partition(", ")
    return f"{backend} ({settings})" if settings else backend


def find_ending(variants: Sequence[TriedVariant], *, faster: bool) -> Ending:
    """Return the ending of a search: nothing pays only if everything was tried."""
    if faster:
        return "faster"
    return "not decided" if any(each.is_open for each in variants) else "nothing pays"


class Gain(Record):
    """An objective of a model divided by that of the source; of throughput, the inverse. Below 1 is a gain."""

    objective: str
    ratio: float
    low: float
    high: float
    """The ends of the interval of 95 % confidence; both are the ratio where the evidence has none."""
    evidence: str
    """`alternating passes`, `process runs` (of both models, in turns), `exact`, or `single builds`, which have no
    interval."""

    @property
    def proved(self) -> bool:
        """Return whether it is at least 1 % with 95 % confidence, or exactly."""
        return self.high <= _AT_LEAST and self.evidence != "single builds"

    @property
    def is_open(self) -> bool:
        """Return whether noise leaves open that it is 3 % or more."""
        return not self.proved and self.low < self.high and self.low < _OPEN_BELOW

    def describe(self) -> str:
        """Return the change, such as `size -65 % (exact)`, with the interval where there is one."""
        sign = -1 if self.objective == "throughput" else 1
        ends = [ratio_change(end) for end in sorted((self.low**sign, self.high**sign))]
        change = ratio_change(self.ratio**sign)
        interval = f"{ends[0]} to {ends[1]} at 95 % confidence, " if self.low != self.high else ""
        return f"{self.objective.replace('_', ' ')} {change} ({interval}{self.evidence})"


class FrontPoint(Record):
    """A variant on the Pareto front that is right on held-out samples, and better than the source in an objective."""

    name: str
    gains: tuple[Gain, ...]
    command: str
    """The command that repeats its proof and writes the model."""
    delivered: bool


def _first_clause(reason: str, end: str) -> str:
    """Return a reason, or its part before a mark if it is long."""
    return short_name(reason if len(reason) <= _LONG else reason.partition(end)[0], _LONG)


class Optimization(Document):
    """The model that `optimize` delivers, with the reasons: `optimization.json` in its folder and its run's."""

    document: Literal["optimization"] = "optimization"
    format_version: int = 8
    model: str
    target: str
    """The preset, such as `onnxruntime`, `any` or `rtx40`."""
    objectives: tuple[str, ...] = ("latency",)
    """The first decides which model is delivered."""
    keep: tuple[str, ...] = ()
    """The conditions; empty for the judgement of `check_accuracy`."""
    search_samples: int
    held_samples: int
    random_inputs: bool
    """True without data: accuracy is only as good as random inputs."""
    variants: tuple[TriedVariant, ...]
    not_tried: tuple[str, ...] = ()
    """Sentences on what was not tried, and why."""
    stopped_because: str
    """The reason why the search ended, such as `all 5 points tried`, a time limit, or `interrupted`."""
    ending: Ending
    """Unless it is `faster`, the source is delivered."""
    budget_s: float | None = None
    """The time that the command was given, or chose by the latency of the model; None without a limit."""
    delivered: str
    """The variant that is delivered."""
    runtime: str
    """The value of `runtime:` with which it was measured."""
    opening: str = ""
    """Python that opens the delivered model as it was measured; empty if its path suffices."""
    digest: str
    """The digest of the delivered model, which is the measured one."""
    size_bytes: int
    source_bytes: int
    file: str
    """Path of the delivered model: the source, or a file in the folder of the run that proved it."""
    exported: tuple[str, ...] = ()
    """Paths of the files that were asked for; the first is the model."""
    speed: Speed | None = None
    """None for the source itself, and without a device that runs it."""
    used_by_others: float = 0.0
    """Largest share of the CPUs that other processes used while it and the source were profiled for the proof."""
    load_of_others: float = 0.0
    """Share of the CPUs that other processes used from the beginning to the end of the command."""
    gains: tuple[Gain, ...] = ()
    """Each objective against the source; empty for the source itself."""
    front: tuple[FrontPoint, ...] = ()
    """The proved part of the Pareto front; empty with one objective."""
    new_size_ms: tuple[float, float] | None = None
    """Time of the first pass at a size that is new to the process, of the source and of the delivered model; None where
    all samples have one size."""
    fixed_shapes: str = ""
    """The only shapes that the delivered model accepts, of inputs that were free in the source."""
    unknown: str = ""
    """A sentence on what was not measured."""
    accuracy: str = ""
    """The judgement on held-out samples, with the worst slice; empty for the source itself."""
    worst_sample: str = ""
    metrics: dict[str, Metric] = {}
    """Metrics on held-out samples."""
    recipe: str
    """Path of the recipe that reproduces the result."""
    command: str
    """The command that does."""
    run: str
    """`RECIPE/ID` of the run that proved the result."""
    sweep: str = ""
    """`RECIPE/ID` of the search; empty if it was interrupted."""
    report: str = ""
    """Path of the report of the search, or of the run if there is none."""
    started_at: Time
    wall_s: float

    @field_validator("speed")
    @classmethod
    def _check_speed(cls, speed: Speed | None) -> Speed | None:
        if speed is not None and not speed.is_possible:
            raise ValueError("a model takes some time")
        return speed

    @property
    def faster(self) -> bool:
        """Return whether the delivered model is better than the source."""
        return self.ending == "faster"

    @property
    def exit_code(self) -> int:
        """0: the delivered model is right, and not slower than the source."""
        return 0

    def usable(self) -> Self:
        """Raise an error for a changed record, which may have ratios of zero, and lengths without an end."""
        self.conclude_fully()
        return self

    def conclude(self) -> tuple[str, ...]:
        """Return five lines: what to ship, its gain, its cost, what was tried, and how to repeat it."""
        gain = ": ".join(filter(None, self.headline))
        return self._ship(), gain, self._cost(), self._tried(), f"Repeat it: {self.command}"

    def conclude_fully(self) -> tuple[str, ...]:
        """Return the five lines, how to open the model if its path does not suffice, hints, and the front."""
        return *self.conclude(), *filter(None, [self._open_it]), *self._hints(), *self.describe_front()

    def conclude_page(self, longest: int) -> tuple[str, tuple[str, ...]]:
        """Return the headline of a page, and the lines below it: cost, what to ship and how many were tried; first the
        reason if it is that nothing pays, or that nothing is decided, which begins with the name of a variant.
        """
        headline, reason = self.headline
        ship, _, cost, *_ = self.conclude()
        reason = reason if self.ending == "not decided" else reason[:1].upper() + reason[1:]
        below = filter(None, (reason, cost, ship, self._open_it, self.describe_search(), *self._hints()))
        return short_name(headline, longest), tuple(short_name(line, longest) for line in below)

    @property
    def _open_it(self) -> str:
        return f"Open it: {self.opening}" if self.opening else ""

    def _hints(self) -> Iterator[str]:
        """Return sentences on what may make the fastest wrong variant right, and one that failed run."""
        failed = (short_name(each.hint, 120) for each in self.variants)
        hints = dict.fromkeys((self._slow_at_new_sizes(), self._call_counts(), self._right_by_cosine(), *failed))
        return filter(None, hints)

    def _slow_at_new_sizes(self) -> str:
        """Return how much longer the first pass at each size takes than in the source; empty if it does not."""
        if not self.faster or self.new_size_ms is None:
            return ""
        source_ms, ms = self.new_size_ms
        if ms < _SLOW * source_ms:
            return ""
        times = f"{milliseconds(ms)}, and {milliseconds(source_ms)} in the source"
        return f"The first pass at a size that is new to the process takes {times}: it pays if sizes repeat"

    def _call_counts(self) -> str:
        """Return that calls in another runtime, which are not timed, count for a pass this short; empty for others."""
        found = {each.name: each for each in self.variants}
        delivered, source = found.get(self.delivered), found.get("source")
        if not self.faster or delivered is None or source is None or delivered.latency is None:
            return ""
        ms, (own, before) = delivered.latency.value, (runtime_settings(each.runtime) for each in (delivered, source))
        if ms >= _SHORT_MS or own.split(",")[0] == before.split(",")[0]:
            return ""
        return (
            f"The pass of {milliseconds(ms)} is timed with bound inputs: a call in Python that passes arrays may take "
            "longer than what is gained"
        )

    def describe_front(self) -> tuple[str, ...]:
        """Return a line for each proved model on the Pareto front, with the command that exports it."""
        return tuple(
            f"{'delivered' if point.delivered else 'also'}: {point.name}: "
            f"{'; '.join(gain.describe() for gain in point.gains)}: {point.command}"
            for point in self.front
        )

    def _ship(self) -> str:
        where = joined([short_name(file) for file in self.exported or (self.file,)])
        unchanged = ", the source's file, unchanged" if self.faster else ""
        sizes = size(self.size_bytes) + (unchanged if self.is_source else f", source {size(self.source_bytes)}")
        runtime = describe_runtime(self.runtime)
        runs = runtime if self.target in (runtime.split(" ")[0], "any") else self.target
        shapes = f"; it accepts only {self.fixed_shapes}" if self.fixed_shapes else ""
        delivered = "the model itself, unchanged" if self.delivered == "source" and not self.faster else self.delivered
        return f"Ship {where}: {delivered}, for {runs} ({sizes}){shapes}"

    @property
    def is_source(self) -> bool:
        """Return whether the source itself is delivered, in any runtime."""
        return self.delivered.startswith("source")

    @property
    def headline(self) -> tuple[str, str]:
        """The gain; or that nothing pays, which only holds if everything was tried or is decided, and the reason."""
        if self.faster:
            return self._gain(), ""
        return ("Nothing pays", self._why_nothing_pays()) if self.ending == "nothing pays" else self._undecided()

    def _why_nothing_pays(self) -> str:
        decided = [each for each in self.variants if each.outcome != "cannot win" and each.name != "source"]
        outcomes = Counter(each.outcome for each in decided)
        if outcomes.keys() <= {"failed", "the same"}:
            found = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "none applies"
            return f"no variant is another model that runs: {found}"
        return (
            f"of {counted(len(decided), 'variant')}, none is both right and at least 1 % {self._better} than the "
            f"source at 95 % confidence{'; INT8 is tried only with --data' if self.random_inputs else ''}"
        )

    def _undecided(self) -> tuple[str, str]:
        open_ones = [each for each in self.variants if each.is_open]
        named: dict[str, list[str]] = {}
        for each in open_ones:  # many are open for one reason, such as the budget
            named.setdefault(_first_clause(each.why, ";") or each.outcome, []).append(short_name(each.name, 60))
        names = [f"{first_of(group, _NAMED)} ({why})" for why, group in named.items()]
        is_short = "budget" in self.stopped_because or any(each.outcome == "not tried" for each in open_ones)
        advised = [self._longer_budget()] if is_short else []
        if self.load_of_others >= BUSY:
            advised.append(f"a machine whose CPUs others do not use (here {percent(self.load_of_others)} of them)")
        elif not is_short:
            advised = ["another run"]
        advice = f"; {' or '.join(advised)} may decide it" if self.budget_s else ""
        if all(each.outcome == "not judged" for each in open_ones):
            advice = "; samples on which the outputs vary more decide it"
        elif all(each.outcome == "near the bound" for each in open_ones):
            advice = "; more samples decide it"
        reason = f"{first_of(names, _NAMED)} may be {self._better} than the source{advice}"
        return f"Not decided ({self.stopped_because})", reason

    def _gain(self) -> str:
        if self.objectives != ("latency",) or self.speed is None:
            found = "; ".join(gain.describe() for gain in self.gains)
            timed = not {"latency", "throughput"}.isdisjoint(self.objectives)
            slower = f"; latency {ratio_change(self.speed.ratio)}" if self.speed and not timed else ""
            several = len(self.front) > 1
            front = f"; the best in {self.objectives[0]} of {len(self.front)} models on the front" if several else ""
            return f"Against the source: {found}{slower}{front}{f'. {self.unknown}' if self.unknown else ''}"
        clock = {"cpu": "CPU time in rounds", "wall": "wall time in rounds", "": "wall time"}[self.speed.clock]
        ends = speedup_interval(self.speed.low, self.speed.high)
        busy = ""
        if self.speed.clock != "cpu" and self.used_by_others >= BUSY:
            busy = (
                f"; other processes used {percent(self.used_by_others)} of the CPUs just before: on a quiet machine, "
                "`ndld-flow compare` may show another gain"
            )
        return f"{times_as_fast(self.speed.ratio)} as fast as the source ({ends} at 95 % confidence; {clock}{busy})"

    @property
    def _better(self) -> str:
        words = {"latency": "faster", "size": "smaller"}
        return words.get(self.objectives[0], "better") if len(self.objectives) == 1 else "better in an objective"

    def _cost(self) -> str:
        if self.is_source and not self.speed:
            return "No cost in accuracy: it is the source"
        of_inputs = " of random inputs" if self.random_inputs else ""
        held = f"{counted(self.held_samples, 'sample')}{of_inputs} that the search has not seen"
        sample = (
            f"; worst sample {short_name(self.worst_sample, 100)}"
            if self.worst_sample and self.worst_sample not in self.accuracy
            else ""
        )
        kept = f"{' and '.join(self.keep)} {'holds' if len(self.keep) == 1 else 'hold'}; " if self.keep else ""
        return f"On {held}: {kept}{self.accuracy}{sample}"

    def _longer_budget(self) -> str:
        """Return three times the budget as an option to copy, in whole minutes from two on."""
        budget_s = 3 * (self.budget_s or 0.0)
        return f"--budget '{f'{budget_s / 60:.0f} min' if budget_s >= 120 else f'{budget_s:.0f} s'}'"

    def _tried(self) -> str:
        """Return how many variants were tried, with the outcomes of these and of the others."""
        others = [each for each in self.variants if each.name != "source"]
        unjudged = next((f" ({each.why})" for each in others if each.outcome == "not judged" and each.why), "")
        listed = []
        for tried in (True, False):
            counts = Counter(each.outcome for each in others if each.is_tried is tried)
            notes = {"not judged": unjudged}
            texts = (f"{count} {outcome}{notes.get(outcome, '')}" for outcome, count in counts.most_common())
            listed.append(", ".join(texts))
        losers = [each for each in others if each.outcome != "delivered"]
        found = "; ".join(filter(None, (*listed, self._fastest_loser(losers))))
        return f"{self.describe_search()}: {found or 'nothing else'}"

    def _fastest_loser(self, losers: Sequence[TriedVariant]) -> str:
        """Return the variant that may be faster than what ships, and is not known to be right; empty without one."""
        known = ("not the best", "not faster", "the same", "on the front")
        timed = [
            (each.speed.ratio, each)
            for each in losers
            if each.speed is not None and each.outcome not in known and each.speed.high < self._clearly_faster
        ]
        ratio, fastest = min(timed, key=lambda pair: pair[0], default=(inf, None))
        if fastest is None:
            return ""
        why = f" ({_first_clause(fastest.why, ',')})" if fastest.why else ""
        return f"of the others, {fastest.name} at {times_as_fast(ratio)} is {fastest.outcome}{why}"

    @property
    def _clearly_faster(self) -> float:
        """Return the ratio in the race below which a variant is faster than what ships, whose ratio is the proof's.

        The high end of its interval is compared: the race measures few rounds of what is wrong.
        """
        return _OPEN_BELOW * self.speed.ratio if self.speed is not None else _AT_LEAST

    def _right_by_cosine(self) -> str:
        """Return how to allow the fastest variant that is wrong by other bounds than a cosine; empty without one.

        A user who named conditions has decided what is right.
        """
        wrong = ("not right", "not right on held-out data")
        close = [each for each in self.variants if each.outcome in wrong and each.speed is not None]
        for each in sorted(close, key=lambda each: each.speed.ratio if each.speed else inf):
            cosine = each.metrics["cosine"].value if "cosine" in each.metrics else 0.0
            bound = next((bound for bound in _COSINES if _EXACT < _ROOM * (1 - cosine) <= 1 - bound), None)
            if self.keep or each.speed is None or each.speed.high >= self._clearly_faster or bound is None:
                continue
            name = f"{each.name} at {times_as_fast(each.speed.ratio)} has {metric_text('cosine', cosine, '')}"
            return f"If a cosine of {bound} suffices ({name}), give --keep 'cosine >= {bound}'"
        return ""

    def describe_search(self) -> str:
        """Return the number of variants, the time, and why the search ended, unless the headline says it."""
        others = [each.is_tried for each in self.variants if each.name != "source"]
        of_budget = f" of {seconds(self.budget_s)}" if self.budget_s is not None else ""
        tried = f"{sum(others)} of {counted(len(others), 'variant')} tried"
        is_short = self.budget_s is not None and any(each.outcome == "not tried" for each in self.variants)
        longer = f"; {self._longer_budget()} tries them" if is_short else ""
        why = f" ({self.stopped_because}{longer})" if self.ending != "not decided" else ""
        return f"{tried} in {seconds(self.wall_s)}{of_budget}{why}"
