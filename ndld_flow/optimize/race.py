"""Race the variants of a model: build each when its turn comes, judge it, and keep it while it may be the best.

A variant leaves the race for the first of these reasons: one that quantizes less is wrong; it cannot be built or run;
alternating passes show that it is slower than the leader; the samples of the search show that it is wrong, or so near a
bound that others may be. Those that stay are right on these samples, so that the last rounds choose among them by
speed.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ndld_flow.accuracy.accuracy_record import metrics_of
from ndld_flow.accuracy.model_comparison import ReferenceRun, run_reference
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.errors import ModelError, NdldFlowError
from ndld_flow.base.quantities import times_as_fast
from ndld_flow.execution.devices import Claim, holding
from ndld_flow.execution.events import RACE
from ndld_flow.execution.executor import InProcess
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.messages import Waits
from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.hardware import usable_cpus
from ndld_flow.measure.samples_in_turn import SamplesInTurn, bind_samples
from ndld_flow.models.external_files import model_bytes
from ndld_flow.models.files import load_model
from ndld_flow.models.input_shapes import fix_shapes_file
from ndld_flow.optimize.compose import SOURCE
from ndld_flow.optimize.goals import PAYS, Conditions, near_default_bound
from ndld_flow.optimize.race_process import USELESS, Finished, RaceJob, Racing, Ranked, Tried, find_useless
from ndld_flow.optimize.rounds import EQUAL, Racer, Ratio, Rounds, compare
from ndld_flow.optimize.variant import MADE
from ndld_flow.processes.lines import Line
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.accuracy import BLIND, Accuracy
from ndld_flow.records.document import read_document
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import Speed, TriedVariant, VariantOutcome
from ndld_flow.records.placement import Placement
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runner.run import run_steps
from ndld_flow.runner.run_state import RunOpener
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runtimes.protocol import Session, SessionRequest
from ndld_flow.step import Context
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import Artifact, Onnx
from ndld_flow.store.locks import WAITS

_SLOWER = 0.03
"""Logarithm of the ratio from which a slower variant leaves: one of equal speed may be more right."""
_LAST_ROUNDS, _MOST_ROUNDS = 6, 18
_TOLD_APART = 9
"""Number of rounds after which the slower of two leaves although its interval does not show it."""
_END_S, _END_PASSES, _END_SHARE = 5.0, 150, 0.3
"""Time, at least that of so many passes of the leader, that is left for the last rounds: no variant starts then. It is
at most this share of the race."""
_LARGEST_COMPARED = 256 * 2**20
"""Bytes of the largest model that is compared with the source."""
_EXACT = 1e-3
"""Error of the worst slice below which it is one of rounding: in FP16 and bfloat16, and in INT8, it is larger."""
_FALLBACKS = 3
"""Number of variants that may have to be proved: fresh processes may veto the first."""


@dataclass
class Entrant:
    """A variant in the race."""

    name: str
    runtime: str
    recipe: Recipe
    model: Onnx
    racer: Racer
    close: Callable[[], None]
    took_s: float = 0.0
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Those of its latest judgement."""


class LostError(Exception):
    """A variant has left the race."""

    def __init__(self, outcome: VariantOutcome, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.outcome: VariantOutcome = outcome
        self.why, self.hint = why, hint


class Race:
    """One race."""

    def __init__(self, job: RaceJob, emit: Callable[[Line], object]) -> None:
        self._job, self._emit, self._start = job, emit, time.monotonic()
        loaded = load_sweep(Path(job.recipe), trust=job.trust)
        assert isinstance(loaded, Sweep)
        self._sweep, self._outputs = loaded, Outputs(Path(job.outputs))
        self._opener = RunOpener(self._outputs, ignore)
        self._conditions = Conditions(job.accuracy)
        self._rounds = Rounds()
        self._entered: dict[tuple[str, str], str] = {}
        """Digest of the model and how it is opened -> the variant."""
        self._alive: list[Entrant] = []
        self._wrong = {name for name, outcome in job.known.items() if outcome == "not right"}
        self._useless = {name for name, outcome in job.known.items() if outcome in USELESS}
        self._cut_short: set[str] = set()
        """Variants whose search used up its time."""
        self._source: Entrant | None = None
        self._blind = False
        self._waited_s = 0.0
        self._reference: ReferenceRun | None = None

    def run(self) -> None:
        """Run the race. Raises NdldFlowError if the source cannot be built, run or judged."""
        with self._outputs.store.locks.working(), tempfile.TemporaryDirectory(dir=self._job.folder) as scratch:
            self._scratch = Path(scratch)
            self._source = self._leader = self._enter(SOURCE, self._sweep.point({"variant": SOURCE}))
            self._alive = [self._source]
            # What is wrong with any of the samples is known before a variant is tried.
            self._blind = self._agreement(self._source).blind
            slowest_s = 0.0
            for name in self._job.variants[1:]:
                # Leave time to finish the race, and start nothing that may be cut off: a second search for exceptions
                # once used up the minute that a proof needed.
                passes_s, start_s = _END_PASSES * self._leader.racer.ms / 1e3, self._worked_s()
                end_s = min(max(_END_S, passes_s), _END_SHARE * self._job.seconds)
                if self._left() <= max(end_s, slowest_s):
                    self._tell(TriedVariant(name=name, runtime="", outcome="not tried", why="too little time was left"))
                    continue
                self._emit(Racing(variant=name, doing="building"))
                self._try(name)
                slowest_s = max(slowest_s, self._worked_s() - start_s)
            self._emit(Racing(variant="", doing="measuring"))
            self._finish()

    def _wait(self, waits_for: str) -> None:
        self._emit(Waits(name=RACE, holder=waits_for.removeprefix(WAITS)))

    def _worked_s(self) -> float:
        """Return the seconds so far in which the race did not wait for the device."""
        return time.monotonic() - self._start - self._waited_s

    def _left(self) -> float:
        """Return the rest of the time; a variant that seems to be faster than the source needs some for its proof."""
        assert self._source is not None
        leader = self._leader
        is_new = leader.name not in (SOURCE, self._job.proved)
        is_faster = is_new and compare(leader.racer, self._source.racer).log < math.log(PAYS)
        reserved_s = self._job.proof_s if is_faster else 0.0
        return self._job.seconds - reserved_s - (time.monotonic() - self._start)

    def _try(self, name: str) -> None:
        """Let a variant enter; it stays if it may be the best."""
        start_s, entrant = self._worked_s(), None
        part, useless = self._job.extends.get(name), find_useless(name, self._job.needs, self._useless)
        try:
            if part in self._wrong:
                raise LostError("cannot win", f"{part} quantizes less, and is not right")
            if useless:
                raise LostError("cannot win", f"it needs {useless}, which failed or changed nothing")
            recipe = self._sweep.point({"variant": name})
            if self._blind and not _keeps_values(recipe):
                raise LostError("not judged", BLIND)
            entrant = self._enter(name, recipe)
            self._qualify(entrant)
        except LostError as lost:
            if name in self._cut_short:  # another model may be right and faster, whatever this one lacks
                found = "" if lost.outcome == "the same" else f"; what it found: {lost.why}"
                lost = LostError("not found", f"its search ran out of time{found}")
            self._lose(name, entrant, lost, self._worked_s() - start_s)
            return
        except NdldFlowError as error:
            self._lose(name, entrant, LostError("failed", str(error)), self._worked_s() - start_s)
            return
        entrant.took_s = self._worked_s() - start_s
        self._alive.append(entrant)
        self._show(entrant, leads=entrant is self._leader)

    def _lose(self, name: str, entrant: Entrant | None, lost: LostError, took_s: float) -> None:
        if lost.outcome == "not right":
            self._wrong.add(name)
        if lost.outcome in USELESS:
            self._useless.add(name)
        if entrant is None:
            self._tell(
                TriedVariant(name=name, runtime="", outcome=lost.outcome, why=lost.why, hint=lost.hint, took_s=took_s)
            )
            return
        entrant.close()
        self._show(replace(entrant, took_s=took_s), lost.outcome, lost.why)

    def _tell(self, variant: TriedVariant, *, leads: bool = False) -> None:
        self._emit(Tried(variant=variant, leads=leads))

    def _show(
        self, entrant: Entrant, outcome: VariantOutcome = "not proved", why: str = "", *, leads: bool = False
    ) -> None:
        """Report a variant; one that is still in the race is not proved."""
        known_ms = math.isfinite(entrant.racer.ms)
        variant = TriedVariant(
            name=entrant.name,
            runtime=entrant.runtime,
            outcome=outcome,
            why=why,
            speed=self._speed(entrant),
            metrics=dict(entrant.metrics),
            latency=Metric(value=entrant.racer.ms, unit="ms") if known_ms else None,
            took_s=entrant.took_s,
        )
        self._tell(variant, leads=leads)

    def _speed(self, entrant: Entrant) -> Speed | None:
        """Return the ratio to the source; that of the source itself is exact."""
        assert self._source is not None
        found = Ratio(0.0, 0.0, 1) if entrant is self._source else compare(entrant.racer, self._source.racer)
        if not found.rounds:
            return None
        low, high = math.exp(max(found.low, -5)), math.exp(min(found.high, 5))
        clock = "wall" if entrant.racer.parallel or self._source.racer.parallel else "cpu"
        return Speed(ratio=math.exp(found.log), low=low, high=high, clock=clock)

    # Building and opening

    def _enter(self, name: str, recipe: Recipe) -> Entrant:
        """Build a variant and open it. Raises NdldFlowError, and LostError for one that is the same as another."""
        speed = _step(recipe, "speed")
        model = self._build(name, recipe, speed.reads["from"])
        assert isinstance(speed.step, ProfileModel)
        request = speed.step.request(model, self._context(speed, {"from": model}, self._given(speed)))
        session = request.session
        same = self._entered.setdefault((model.digest, f"{session.runtime} {session.to_json()}"), name)
        if same != name:
            raise LostError("the same", f"it is the same model as {same}")
        samples = request.make_values()
        opened = self._open(session.in_turns(), model.path, {name: each.shape for name, each in samples[0].items()})
        try:
            binding = bind_samples(opened, samples)
            for _ in samples:
                binding.run()  # libraries start threads with the first pass, and adapt to each size
            racer = Racer(name, binding.run, parallel=request.options.get("threads") != 1 and len(usable_cpus()) > 1)
            if isinstance(binding, SamplesInTurn):
                racer.restart = binding.restart
            racer.measure(1, parallel=racer.parallel)
        except BaseException:
            opened.close()
            raise
        return Entrant(name, session.names().backend, recipe, model, racer, opened.close)

    def _open(self, session: SessionRequest, model: Path, shapes: Mapping[str, tuple[int, ...]]) -> Session:
        """Open a model. Raises LostError if it opens only with fixed sizes, else as `open` does."""
        try:
            return session.open(model)
        except ModelError as error:
            fixed = self._scratch / "fixed.onnx"
            with suppress(NdldFlowError):
                if self._job.may_fix_sizes:
                    fix_shapes_file(model, fixed, shapes, {})
                    session.open(fixed).close()
                    hint = f"{session.names().library} accepts this model only with fixed sizes: --fix-shapes tries it"
                    raise LostError("failed", f"{hint} ({error})", hint) from None
            raise

    def _build(self, name: str, recipe: Recipe, wanted: str) -> Onnx:
        """Run the steps that make a variant; their results stay in the store, where the proof finds them."""
        needed = _ancestors(recipe, wanted)
        steps = tuple(step for step in recipe.steps if step.name in needed)
        run = self._opener.open_run(replace(recipe, steps=steps, gates=()))
        run.keeps_folder = False
        with run.held:
            run_steps(run, lambda: InProcess(lambda _, wait: self._wait(wait)))
        if any(_ended_early(run.artifacts[step.name].path.parent) for step in run.steps if step.record):
            self._cut_short.add(name)
        failed = next((step.record.summary for step in run.steps if step.record and not step.record.passed), None)
        if failed is not None:
            raise LostError("not right", failed)
        model = run.artifacts[wanted]
        assert isinstance(model, Onnx)
        if wanted == MADE:
            # A placement says what was measured beside the model, which may be as it was.
            contents = {
                step.name: {file for file in step.record.artifact.files if file.path != Placement.file_name}
                for step in run.steps
                if step.record is not None
            }
            equal = [name for name, files in contents.items() if name != MADE and files == contents[MADE]]
            if equal:
                raise LostError("the same", f"its last step changes nothing: it is the same model as {equal[-1]}")
        elif wanted != SOURCE and model_bytes(model.path) <= _LARGEST_COMPARED:
            before, after = (load_model(each.path) for each in (run.artifacts[SOURCE], model))
            if diff_models(before, after).is_renaming:
                raise LostError("the same", "there is nothing to simplify: it is the same model as source")
        return model

    def _given(self, step: RecipeStep) -> Mapping[str, InputSpec]:
        return self._sweep.base.file.inputs if step.inputs is None else step.inputs

    def _context(self, step: RecipeStep, artifacts: Mapping[str, Artifact], given: Mapping[str, InputSpec]) -> Context:
        return Context(
            name=step.name,
            inputs=step.used_inputs(given),
            artifacts=artifacts,
            scratch=Path(tempfile.mkdtemp(dir=self._scratch)),
            log=logging.getLogger("ndld_flow.race"),
            progress=lambda *_: None,
            caches=self._outputs.store.caches,
        )

    # Judging

    def _qualify(self, entrant: Entrant) -> None:
        """Let a variant stay, or lead. Raises LostError if it cannot be the best, or is wrong."""
        leader, source = self._leader, self._source
        assert source is not None
        with self._measuring(entrant.name):
            beside = [] if leader is source else [source.racer]
            ratio = self._rounds.tell_apart(entrant.racer, leader.racer, beside)
        if ratio.low > 0 and ratio.log > _SLOWER:
            raise _slower_than(leader, ratio)
        self._judge(entrant)
        if ratio.log < 0 and ratio.high < _SLOWER:
            self._leader = entrant
            self._drop_slower()

    def _drop_slower(self) -> None:
        """Let those leave that are slower than the new leader, so that few models are open."""
        for entrant in [each for each in self._alive if each not in (self._leader, self._source)]:
            ratio = compare(entrant.racer, self._leader.racer)
            if ratio.rounds and ratio.low > 0 and ratio.log > 2 * _SLOWER and len(self._alive) > _FALLBACKS:
                self._alive.remove(entrant)
                self._lose(entrant.name, entrant, _slower_than(self._leader, ratio), entrant.took_s)

    def _judge(self, entrant: Entrant) -> None:
        """Judge a variant on all samples. Raises LostError if it is wrong, or may be on other samples."""
        accuracy = self._agreement(entrant)
        entrant.metrics = {
            name: metric
            for name, metric in metrics_of(accuracy).items()
            if name != "cosine" or accuracy.tells_by_cosine
        }
        if accuracy.failed:
            raise LostError("not right", accuracy.violations or "its own metric fails")
        if not accuracy.passed:
            undecided = (output.undecided for output in accuracy.outputs)
            raise LostError("not judged", next(filter(None, undecided), "the check would notice little"))
        metrics = {f"agree.{name}": metric for name, metric in entrant.metrics.items()}
        metrics["speed.model_bytes"] = Metric(value=model_bytes(entrant.model.path), unit="bytes")
        for gate in self._sweep.constraints:
            if not all(name in metrics for name in gate.names):
                continue
            result = gate.decide(metrics)
            if not result.passed:
                raise LostError("not right", f"{result.gate} fails: {result.left:.4g}")
        near = self._conditions.near_bound(accuracy.samples) or near_default_bound(accuracy)
        if near:
            raise LostError("near the bound", near)

    def _agreement(self, entrant: Entrant) -> Accuracy:
        """Compare a variant with the source, which runs on the samples once.

        What keeps all values is judged by the default bounds here: to measure how far rounding moves the source takes
        four times its passes, and the proof does that.
        """
        self._emit(Racing(variant=entrant.name, doing="judging"))
        step = _step(entrant.recipe, "agree")
        assert isinstance(step.step, CheckAccuracy)
        assert self._source is not None
        artifacts = {"candidate": entrant.model, "reference": self._source.model}
        context = self._context(step, artifacts, self._given(step))
        pair = step.step.pair(entrant.model, context)
        if self._reference is None:
            self._reference = run_reference(pair, Path(tempfile.mkdtemp(dir=self._scratch)), context.progress)
        is_kept = _keeps_values(entrant.recipe)
        check = step.step.model_copy(update={"tolerance": Tolerance()}) if is_kept else step.step
        return check.judge(pair, entrant.model, context, self._reference)[0]

    @contextmanager
    def _measuring(self, name: str = "") -> Iterator[None]:
        """Hold the device while passes are timed: of a variant, or of all that may be the best."""
        step = _step(self._sweep.base, "speed")
        claim = Claim("the race of optimize", self._wait)
        start = time.monotonic()
        with holding(step.step.device, self._outputs.store, claim):
            self._waited_s += time.monotonic() - start
            self._emit(Racing(variant=name, doing="measuring"))
            yield

    # The end

    def _finish(self) -> None:
        """Race those that are left, and report them, the best first."""
        order = self._order()
        self._emit(Ranked(ranking=tuple(entrant.name for entrant in order)))
        for entrant in order:
            self._show(entrant, leads=entrant is order[0])
        self._emit(Finished())

    def _order(self) -> list[Entrant]:
        """Return the variants that may be the best, the best first; the source may be among them.

        What computes other values than the source must be 3 % faster than what computes the same, and another file 3 %
        faster than the source's: of those that are about as fast, the one that changes least comes first.
        """
        best, source = self._run_rounds(), self._source
        assert source is not None
        ranked = sorted(self._alive, key=lambda each: compare(each.racer, best.racer).log)
        close = [each for each in ranked if compare(each.racer, best.racer).log < -math.log(PAYS)]
        least = [each for each in close if each is not source]
        least.sort(key=lambda each: (not _is_exact(each), each.model.digest != source.model.digest))
        ranked = [*least[:1], *(each for each in ranked if each not in least[:1])]
        for entrant in [each for each in ranked[_FALLBACKS:] if each is not self._source]:
            self._lose(entrant.name, entrant, _slower_than(best, compare(entrant.racer, best.racer)), entrant.took_s)
        return ranked[:_FALLBACKS]

    def _run_rounds(self) -> Entrant:
        """Let all that may be the best alternate until the best is known, or it does not matter; return it."""
        assert self._source is not None
        racing, rounds, source = list(self._alive), 0, self._source.racer
        by_racer = {id(each.racer): each for each in racing}
        with self._measuring():
            while True:
                racers = [each.racer for each in racing]
                self._rounds.run(racers if source in racers else [*racers, source], _LAST_ROUNDS if not rounds else 2)
                rounds += _LAST_ROUNDS if not rounds else 2
                best = min(racing, key=lambda each: compare(each.racer, racing[0].racer).log)
                ratios = {id(each.racer): compare(each.racer, best.racer) for each in racing if each is not best}
                apart = rounds >= _TOLD_APART
                racing = [
                    best,
                    *(
                        by_racer[key]
                        for key, ratio in ratios.items()
                        if ratio.low <= 0 and not (apart and ratio.log > 2 * EQUAL)
                    ),
                ]
                widest = max((ratio.half for key, ratio in ratios.items() if by_racer[key] in racing), default=0.0)
                if len(racing) == 1 or rounds >= _MOST_ROUNDS or widest < EQUAL or self._left() <= 0:
                    return best


def _keeps_values(recipe: Recipe) -> bool:
    """Return whether the steps and the runtime of a variant keep all values, so that its check is one of rounding."""
    check = _step(recipe, "agree").step
    return isinstance(check, CheckAccuracy) and check.tolerance == "rounding" and check.runtime is None


def _is_exact(entrant: Entrant) -> bool:
    """Return whether the outputs of a variant differ from the source's by the rounding of float32 only."""
    error = entrant.metrics.get("slice_rms")
    return error is not None and error.value < _EXACT


def _step(recipe: Recipe, name: str) -> RecipeStep:
    return next(step for step in recipe.steps if step.name == name)


def _ended_early(folder: Path) -> bool:
    """Return whether a folder has the record of a search whose time was used up before it was finished."""
    search, placement = folder / PrecisionSearch.file_name, folder / Placement.file_name
    if search.exists():
        return read_document(PrecisionSearch, search).ended_early
    return placement.exists() and read_document(Placement, placement).ended_early


def _ancestors(recipe: Recipe, wanted: str) -> set[str]:
    """Return a step, and the steps that it reads directly or through others."""
    needed = {wanted}
    for step in reversed(recipe.steps):  # each comes after those that it reads
        if step.name in needed:
            needed.update(step.own_reads.values())
    return needed


def _slower_than(best: Entrant, ratio: Ratio) -> LostError:
    return LostError("not the best", f"{times_as_fast(math.exp(ratio.log))} as fast as {best.name}")
