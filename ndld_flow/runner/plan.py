"""Decide for each step whether its stored result is reused, with the reason."""

from __future__ import annotations

import contextlib
import enum
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import BackendError, NdldFlowError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.text import first_of
from ndld_flow.execution.keys import HIDDEN_VALUES, Site, describe_key, find_misfit, join_keys, make_key
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.host import UNKNOWN_HOST
from ndld_flow.recipe.calibrated_checks import doubt_checks
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.step import Foresight, Reuse
from ndld_flow.store.found_files import DECODED_SUFFIXES
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.cache import Cache
    from ndld_flow.records.run_record import StepRecord


class Reason(enum.Enum):
    """Each decision of the plan has exactly one reason."""

    REUSED = ("reused", "=", "green")
    CACHED = ("reused from cache", "=", "green")
    """The shared cache has it."""
    SHARED = ("shared", "=", "green")
    """Another point of the same sweep computed it."""
    NEW = ("new", "+", "cyan")
    SETTINGS = ("settings changed", "~", "yellow")
    INPUT = ("input changed", "~", "yellow")
    VERSION = ("step version", "~", "yellow")
    TOOL = ("tool version", "~", "yellow")
    MACHINE = ("machine", "~", "yellow")
    TOGETHER = ("measured in turns", "~", "yellow")
    FORCED = ("forced", "!", "magenta")
    NEVER = ("never reused", "!", "magenta")
    DAMAGED = ("artifact damaged", "x", "red")

    def __init__(self, text: str, symbol: str, colour: str) -> None:
        self.text = text
        self.symbol = symbol
        self.colour = colour


Unit = tuple[RecipeStep, ...]
"""Steps that run together: measuring steps that take turns, or one step."""


def arrange_steps(recipe: Recipe) -> list[Unit]:
    """Return the recipe's steps in the order in which they run.

    That is the recipe's own order, except for measuring steps that take turns: they all run at the position of the last
    one, and the steps that read them run later.
    """
    positions = {step.name: position for position, step in enumerate(recipe.steps)}
    # Measuring steps are grouped by type, device, target and depth: the number of measuring steps on the longest path.
    # Therefore no two units wait for each other.
    depths = dict.fromkeys(recipe.models, 0)
    units: dict[Hashable, list[RecipeStep]] = defaultdict(list)
    measures = {step.name: step.type.cls.takes_turns for step in recipe.steps}
    for step in recipe.steps:
        depths[step.name] = max(depths[name] + measures.get(name, False) for name in step.reads.values())
        key = (step.type.name, step.step.device, step.target, depths[step.name]) if measures[step.name] else step.name
        units[key].append(step)
    waiting = sorted([tuple(unit) for unit in units.values()], key=lambda unit: positions[unit[-1].name])
    ready, ordered = set(recipe.models), []
    while waiting:
        unit = next(unit for unit in waiting if all(ready.issuperset(step.reads.values()) for step in unit))
        waiting.remove(unit)
        ordered.append(unit)
        ready |= {step.name for step in unit}
    return ordered


@dataclass(frozen=True)
class Decision:
    """The decision whether a step runs, with the reason."""

    step: RecipeStep
    reason: Reason
    detail: str = ""
    parts: KeyParts | None = None
    """None while one of its inputs does not exist yet."""
    record: StepRecord | None = None
    """The record that is reused."""
    model_problems: tuple[str, ...] = ()
    """Problems with the model that the step will read, if that is known."""
    doubts: tuple[str, ...] = ()
    """Reasons why its result proves less than it seems to."""
    site: Site | None = None
    """The machine on which it would run, if that is not this one."""

    def foresee(self) -> Foresight:
        """Return the step's own foresight, with the problems of its model."""
        own = self.step.step.foresee() if self.site is None else self.site.foresight
        problems, notes = (*own.problems, *self.model_problems), (*own.notes, *self.doubts)
        return replace(own, notes=notes, problems=problems).of_step(self.step.name)

    @property
    def reused(self) -> bool:
        """Return whether the step does not run: the store, or the shared cache, has its result."""
        return self.reason in (Reason.REUSED, Reason.CACHED)

    @property
    def key(self) -> str:
        return make_key(self.parts) if self.parts is not None else ""


@dataclass(frozen=True)
class Planner:
    """Decides steps by the contents of the store. It changes nothing but the list of keys that this process uses."""

    recipe: Recipe
    store: Store
    previous: Mapping[str, StepRecord]
    """Step name -> its record in the latest run of this recipe, with which the reasons compare."""
    forced: frozenset[str] = frozenset()
    known: Mapping[str, StepRecord] = field(default_factory=dict)
    """Records by key that other points of a sweep have just computed or checked."""
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step, if that is not this one."""
    cache: Cache | None = None
    """The shared cache, which is asked about results that the store does not have."""
    site_of: Callable[[RecipeStep], Site | None] = lambda step: None
    """Returns the machine on which a step would run, if that is a target."""
    in_sweep: bool = False
    """True if measuring steps join sessions with those of other points, so that their keys are not known here."""

    def decide(self, unit: Unit, digests: Mapping[str, str | None]) -> list[Decision]:
        """Decide steps that run together. `digests`: step name or `source` -> digest of its artifact, None while it
        does not exist.
        """
        waits = {step.name: [name for name in step.reads.values() if digests.get(name) is None] for step in unit}
        if any(waits.values()):
            return [self._decide_later(step, unit, waits[step.name]) for step in unit]
        keys = self.describe(unit, digests)
        decisions = [self._decide_by_key(step, parts) for step, parts in zip(unit, join_keys(keys), strict=True)]
        # Results that were measured in turns started at the same moment.
        beginnings = {decision.record.started_at if decision.record else None for decision in decisions}
        if len(unit) == 1 or (len(beginnings) == 1 and None not in beginnings):
            return self._find_cached(decisions)
        # Stored results are measured again with new ones: the machine may have drifted since.
        return self._find_cached(
            [
                replace(decision, reason=Reason.TOGETHER, detail=_partners(decision.step, unit), record=None)
                if decision.reused
                else decision
                for decision in decisions
            ]
        )

    def _find_cached(self, decisions: list[Decision]) -> list[Decision]:
        """Return the decisions with the records of the shared cache, if results are missing and it has all of them."""
        reasons = {decision.reason for decision in decisions}
        if self.in_sweep and decisions[0].step.type.cls.takes_turns:
            return decisions
        if self.cache is None or reasons == {Reason.REUSED} or not reasons.isdisjoint((Reason.FORCED, Reason.NEVER)):
            return decisions
        records = self.cache.find([decision.key for decision in decisions])
        if records is None or any(map(_find_misfit, records, decisions)):
            return decisions
        return [
            replace(decision, reason=Reason.CACHED, detail="", record=record)
            for decision, record in zip(decisions, records, strict=True)
        ]

    def _decide_later(self, step: RecipeStep, unit: Unit, waits: list[str]) -> Decision:
        reason = Reason.NEW if self.previous.get(step.name) is None else Reason.INPUT
        if waits:
            later = "" if self.cache is None else "; the cache is asked then"
            return Decision(step, reason, f"reads {', '.join(dict.fromkeys(waits))}, which this run computes{later}")
        return Decision(step, Reason.TOGETHER, _partners(step, unit))

    def describe(self, unit: Unit, digests: Mapping[str, str | None]) -> list[KeyParts]:
        """Return the parts of the keys of steps, each alone; all their inputs must exist."""
        reads = [{key: str(digests[name]) for key, name in step.reads.items()} for step in unit]
        machine_of = self.machine_of or (self.cache.machine_of if self.cache is not None else None)
        return [
            describe_key(step, read, self.recipe.file.inputs, self.store, machine_of, self.site_of(step))
            for step, read in zip(unit, reads, strict=True)
        ]

    def _decide_by_key(self, step: RecipeStep, parts: KeyParts) -> Decision:
        known = self.known.get(make_key(parts)) if self.known else None
        if known is not None:
            return Decision(step, Reason.REUSED, "", parts, known)
        self.store.locks.use([make_key(parts)])
        if step.name in self.forced:
            return Decision(step, Reason.FORCED, "", parts)
        if step.step.reused_where() is Reuse.NEVER:
            return Decision(step, Reason.NEVER, "", parts)
        if UNKNOWN_HOST in parts.machine:
            return Decision(step, Reason.NEVER, "this host cannot be identified: use `reuse_on: same_kind`", parts)
        record = self.store.read_record(make_key(parts))
        if record is None:
            return self._decide_anew(step, parts)
        damage = find_misfit(record, step.type.cls.kinds()[1]) or self.store.find_damage(record.artifact)
        if damage:
            return Decision(step, Reason.DAMAGED, damage, parts)
        if record.inconclusive and step.type.cls.retries_undecided:
            return Decision(step, Reason.NEVER, "the stored result is undecided", parts)
        return Decision(step, Reason.REUSED, "", parts, record)

    def _decide_anew(self, step: RecipeStep, parts: KeyParts) -> Decision:
        damage = self.store.find_broken_record(make_key(parts))
        if damage:
            return Decision(step, Reason.DAMAGED, damage, parts)
        reason, detail = _explain(parts, self.previous.get(step.name))
        return Decision(step, reason, detail, parts)


def _find_misfit(record: StepRecord, decision: Decision) -> str:
    cls = decision.step.type.cls
    undecided = "undecided" if record.inconclusive and cls.retries_undecided else ""
    return undecided or find_misfit(record, cls.kinds()[1])


def plan_steps(
    planner: Planner, models: Mapping[str, str | None], paths: Mapping[str, Path] | None = None
) -> list[Decision]:
    """Decide all steps without running any, given the models' digests by name.

    A step whose inputs will be computed counts as changed. Problems with models are found if their paths are given.
    """
    digests = dict(models)
    decided: dict[str, Decision] = {}
    for unit in arrange_steps(planner.recipe):
        for decision in planner.decide(unit, digests):
            decided[decision.step.name] = decision
            digests[decision.step.name] = decision.record.artifact.digest if decision.record else None
    known = {name: _KnownModel(path) for name, path in (paths or {}).items()}
    # Only another machine knows what it lacks.
    elsewhere = Site({}, "", Foresight()) if planner.machine_of is not None else None
    doubts = doubt_checks(planner.recipe)
    decisions = [
        replace(
            decided[step.name],
            site=planner.site_of(step) or elsewhere,
            doubts=(doubts[step.name],) if step.name in doubts else (),
        )
        for step in planner.recipe.steps
    ]
    return [_with_problems(decision, known, planner.store) for decision in decisions]


@dataclass(frozen=True)
class _KnownModel:
    """A model that exists, for itself and for those that steps will make of it."""

    path: Path
    requested: frozenset[str] = frozenset()
    """Precisions that these steps will request of nodes."""


def _with_problems(decision: Decision, known: dict[str, _KnownModel], store: Store) -> Decision:
    """Return a decision with the problems of the model that its step will read, and add the step's own to `known`.

    A model that does not exist yet is examined by its source, if the step between them adds no quantization.
    """
    step, cls = decision.step, decision.step.type.cls
    source = known.get(step.reads.get(cls.read_key, ""))
    if decision.reason is Reason.CACHED:
        known.pop(step.name, None)  # its model may not be here yet
    elif decision.record is not None and decision.record.artifact.kind == Onnx.kind:
        known[step.name] = _KnownModel(store.object_folder(decision.record.artifact.digest) / Onnx.main)
    elif source is not None and cls.adds_no_quantization:
        known[step.name] = _KnownModel(source.path, source.requested | step.step.requested_precisions)
    if source is None or decision.reused or not step.step.examines_model:
        return decision
    return replace(decision, model_problems=step.step.foresee_model(source.path, source.requested))


def _partners(step: RecipeStep, unit: Unit) -> str:
    return f"with {', '.join(other.name for other in unit if other is not step)}"


def _explain(parts: KeyParts, before: StepRecord | None) -> tuple[Reason, str]:
    """Return the part of the key that changed since the step's last run, the most important first."""
    if before is None or before.parts.step != parts.step:
        return Reason.NEW, ""
    old = before.parts
    if old.version != parts.version:
        return Reason.VERSION, f"{old.version} -> {parts.version}"
    settings = {"inputs": old.inputs, **old.settings}, {"inputs": parts.inputs, **parts.settings}
    if settings[0] != settings[1]:
        return Reason.SETTINGS, _differences(*settings)
    if old.reads.get(HIDDEN_VALUES) != parts.reads.get(HIDDEN_VALUES):
        return Reason.SETTINGS, HIDDEN_VALUES
    if old.reads != parts.reads:
        names = dict.fromkeys([*old.reads, *parts.reads])
        return Reason.INPUT, ", ".join(name for name in names if old.reads.get(name) != parts.reads.get(name))
    if old.libraries != parts.libraries:
        return Reason.TOOL, _differences(old.libraries, parts.libraries)
    if old.machine != parts.machine:
        return Reason.MACHINE, _differences(_circumstances(old.machine), _circumstances(parts.machine))
    return _explain_absence(parts, before)


def _explain_absence(parts: KeyParts, before: StepRecord) -> tuple[Reason, str]:
    """Return the reason why no result is stored although the step has not changed."""
    if before.parts.together != parts.together:
        return Reason.TOGETHER, "a step with which it takes turns changed"
    return Reason.DAMAGED, "it is no longer in the store"


def _circumstances(machine: str) -> dict[str, str]:
    """Return the properties of a key's machine, by name."""
    kind, *facts = machine.split("; ")
    named = (fact.partition(": ") for fact in facts)
    return {"machine": kind, **{name: value for name, _, value in named}}


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    old, new = _flatten(old), _flatten(new)
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    shown = [f"{name} {_short(old.get(name))} -> {_short(new.get(name))}" for name in names]
    return first_of(shown, 3)


def _flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested settings by dotted paths."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        inner = dict(enumerate(value)) if isinstance(value, list) and any(isinstance(v, dict) for v in value) else value
        if isinstance(inner, dict) and inner:
            flat |= _flatten(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _lacks_of_data(step: RecipeStep, inputs: Mapping[str, InputSpec]) -> Iterator[str]:
    """Yield the inputs of a step whose files cannot be read here: videos and compressed audio, or text, without the
    extra that reads them.
    """
    for name, spec in step.used_inputs(inputs).items():
        decoded = [pattern for pattern in spec.data_patterns if pattern.lower().endswith(DECODED_SUFFIXES)]
        lack = EXTRAS["video"].lack(f'input "{name}": {decoded[0]}') if decoded else ""
        if spec.tokenizer is not None:
            lack = lack or EXTRAS["text"].lack(f'input "{name}": {spec.tokenizer}')
        if lack:
            yield lack


def refuse_impossible_run(
    recipe: Recipe, planner: Planner, digests: Mapping[str, str | None], paths: Mapping[str, Path]
) -> None:
    """Raise BackendError with the reasons why steps cannot run here or with their models. Reused steps need nothing."""
    lacks = {step.name: tuple(_lacks_of_data(step, recipe.file.inputs)) for step in recipe.steps}
    if not any(
        lacks[step.name] or step.target or step.step.examines_model or step.step.foresee().obstacles
        for step in recipe.steps
    ):
        return
    needed = [decision for decision in plan_steps(planner, digests, paths) if not decision.reused]
    _refuse({each.step.name: (*each.foresee().obstacles, *lacks[each.step.name]) for each in needed})


def refuse_lacks(recipe: Recipe) -> None:
    """Raise BackendError with what this machine lacks to run the steps without a target, if they are sure to run."""
    here = [each for each in recipe.steps if not each.target]
    _refuse({each.name: each.step.foresee().of_step(each.name).obstacles for each in here})


def _refuse(obstacles: Mapping[str, Iterable[str]]) -> None:
    errors = [BackendError(text, step=name) for name, texts in obstacles.items() for text in texts]
    if errors:
        raise errors[0] if len(errors) == 1 else BackendError("\n".join(map(str, errors)))


@dataclass
class _Front:
    """The steps of one run about which the cache has not been asked."""

    planner: Planner
    digests: dict[str, str | None]
    """Model or step -> digest of its artifact, where it is known."""
    waiting: list[Unit]

    def take_ready(self) -> list[Unit]:
        """Remove and return the steps whose inputs are known."""
        ready = [
            unit
            for unit in self.waiting
            if all(self.digests.get(name) for step in unit for name in step.reads.values())
            and not (self.planner.in_sweep and unit[0].type.cls.takes_turns)
        ]
        self.waiting = [unit for unit in self.waiting if unit not in ready]
        return ready

    def ask(self, unit: Unit) -> None:
        """Start to look up steps that the store does not have."""
        assert self.planner.cache is not None
        with contextlib.suppress(NdldFlowError):  # raised again when the steps are decided
            keys = [make_key(parts) for parts in join_keys(self.planner.describe(unit, self.digests))]
            if any(self.planner.store.read_record(key) is None for key in keys):
                self.planner.cache.ask(keys)

    def decide(self, unit: Unit) -> Iterator[StepRecord]:
        """Yield the records that the cache has, and note the digests of all results that exist."""
        try:
            decisions = self.planner.decide(unit, self.digests)
        except NdldFlowError:
            return
        for decision in decisions:
            if decision.record is not None:
                self.digests[decision.step.name] = decision.record.artifact.digest
                if decision.reason is Reason.CACHED:
                    yield decision.record


def look_ahead(runs: Iterable[tuple[Planner, Mapping[str, str | None]]]) -> list[StepRecord]:
    """Ask the cache about the steps of runs, given with the digests of their models and finished steps.

    All steps whose inputs are known are looked up at the same time, then those whose inputs have become known. Returns
    the records that the cache has.
    """
    fronts = [
        _Front(planner, dict(digests), arrange_steps(planner.recipe))
        for planner, digests in runs
        if planner.cache is not None
    ]
    found: list[StepRecord] = []
    while ready := [(front, unit) for front in fronts for unit in front.take_ready()]:
        for front, unit in ready:
            front.ask(unit)
        for front, unit in ready:
            found += front.decide(unit)
    return found


class StepDecision(Record):
    """The decision whether a run would execute a step, from `ndld-flow plan`."""

    name: str
    step: str
    """The step's type."""
    reason: str
    """`reused`, or the reason why it would run, such as `settings changed`."""
    detail: str
    key: str
    """The digest of everything that the result depends on; empty while one of its inputs does not exist yet."""
    notes: tuple[str, ...]
    """Its work on this machine, such as `TensorRT 10.8: weakly typed; FP16, TF32`."""
    problems: tuple[str, ...]
    """Conflicts of the settings with the chosen libraries, each with a remedy. With one, the exit code is 2."""
    lacks: tuple[str, ...]
    """Requirements missing on this machine, each with the way to get it."""


def describe_decisions(decisions: Sequence[Decision], foreseen: Sequence[Foresight]) -> list[StepDecision]:
    """Return the plan of a run as `ndld-flow plan` prints it; `foreseen` has an entry for each decision."""
    return [
        StepDecision(
            name=decision.step.name,
            step=decision.step.type.name,
            reason=decision.reason.text,
            detail=decision.detail,
            key=decision.key,
            notes=seen.notes,
            problems=seen.problems,
            lacks=seen.lacks,
        )
        for decision, seen in zip(decisions, foreseen, strict=True)
    ]
