"""Find the smallest model with which a recipe still fails in the same way, and pack it to be sent to others."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.execution.events import Notice
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.execution.request import Request
from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept, needed_pieces, smallest_count
from ndld_flow.processes.fork_server import ForkServer
from ndld_flow.recipe.recipe import SOURCE, Recipe
from ndld_flow.reduce.failure import FailedRun, Failure, failures_of_record, run_once, words_in
from ndld_flow.reduce.inspect_model import Inspector
from ndld_flow.reduce.pack import Reduced, draw_reduced, write_zip
from ndld_flow.reduce.part import MODEL, NodeFacts, ReduceOptions, Whole
from ndld_flow.reduce.search import (
    NodeSearch,
    bypass,
    failing_steps,
    files_in,
    measure_as,
    measure_quickly,
    models_between,
    shorten_recipe,
)
from ndld_flow.reduce.trials import Original, Stage, TrialOutcome, Trials
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder
from ndld_flow.store.kinds import Onnx
from ndld_flow.sweep.run_request import digest_recipe, open_single, working_on

_FIRST_RUNS = 6
"""Runs of the whole model before a failure is held to have vanished."""
_LAST_RUNS, _LAST_RUNS_OF_FLAKY = 2, 10
_MISSED = 0.05
"""Accepted probability that a part passes by chance although it can fail."""
_MOST_REPEATS = 20
_STRUCTURAL = ("error", "bug", "killed")
"""Failures that mostly do not depend on values."""
_NO_LAYERS = {"reference_runtime", "layers_engine", "reference_environment"}


def reduce_recipe(request: Request, target: Path, options: ReduceOptions, listener: Listener) -> Reduced:
    """Run a recipe, reduce its model while the recipe fails in the same way, and write the result as a zip.

    Raises RequestError if the recipe does not fail, or not on the part that contains all nodes, and as `run_request`
    does for a recipe that cannot start.
    """
    with working_on(request, "run") as recipe:
        if not isinstance(recipe, Recipe):
            raise RequestError(f"{request.recipe} sweeps: reduce one of its points. Override what it sweeps over.")
        record, error = run_once(recipe, request)
        failures = failures_of_record(record)
        if not failures:
            raise RequestError(f"{request.recipe} does not fail ({record.outcome}), so there is nothing to reduce.")
        listener(Notice(text=f"reducing the model while {failures[0]}"))
        with tempfile.TemporaryDirectory(prefix="ndld-flow-reduce-") as scratch, ForkServer(Path(scratch)) as server:
            failed = FailedRun(recipe, record, failures[0], error)
            return _Reduction(failed, request, options, listener, server).run(target)


class _Reduction:
    def __init__(
        self, failed: FailedRun, request: Request, options: ReduceOptions, listener: Listener, server: ForkServer
    ) -> None:
        self._recipe, self._record, self._failure = failed.recipe, failed.record, failed.failure
        self._failed = failed
        self._options, self._listener, self._scratch = options, listener, server.folder
        self._outputs = Outputs(request.outputs)
        self._failing = failing_steps(failed.failure, [step.name for step in failed.recipe.steps])
        # Outcomes hold for these data, code, libraries and options.
        digest = digest_recipe(self._recipe, open_single(self._recipe, request, ignore, looks_only=True))
        chosen: list[JsonValue] = [self._options.samples, self._options.strict]
        identity = digest_json([digest, self._failure.kind, self._failure.where, *chosen])
        journal = request.outputs / "reductions" / f"{identity[:16]}.jsonl"
        make_folder(journal.parent)
        self._inspector = Inspector(server, self._scratch)
        self._trials = Trials(
            server, self._scratch, journal, request.trust, options.strict, options.trials, self._report_trial
        )
        self._minimal = True
        self._tried: list[tuple[int, str, bool]] = []
        self._message = ""
        """Message of the reduced model's failure."""
        self._suspects: dict[str, float] = {}
        self._original: Original = None
        self._runs = self._failed_runs = 0
        """Number of runs of the reduced model, and of those that failed in the same way."""
        self._needs_values: bool | None = True if options.keep_values else None
        """True if the failure needs original values; None as long as that is not known."""

    def run(self, target: Path) -> Reduced:
        full = self._first_stage()
        nodes = self._inspector.list_nodes(full.whole.path)
        quick = replace(full, name="source, measured quickly", recipe=measure_quickly(full.recipe))
        for stage in (full,) if quick.recipe == full.recipe else (quick, full):
            same = self._failed.read_evidence(self._outputs, nodes)
            if same is not None:
                self._take(same)
            smallest, kept = self._reduce(stage, nodes)
            smallest = replace(smallest, recipe=measure_as(full.recipe, smallest.recipe))
            self._verify(smallest, kept)
            if self._failed_runs:
                return self._pack(target, smallest, kept, len(nodes))
        raise RequestError(
            "the failure is not the same each time: the reduced model failed, and then passed in "
            f"{counted(self._runs, 'run')}. Make the recipe deterministic, or its gate less close to the limit."
        )

    def _reduce(self, stage: Stage, nodes: Sequence[NodeFacts]) -> tuple[Stage, Kept]:
        try:
            stage, kept = self._find_nodes(stage, nodes)
            stage = self._fewer_samples(stage, kept)
            self._original = self._needed_values(stage, kept)
        except _StoppedError as stopped:
            return stopped.stage, stopped.kept
        return stage, kept

    def _take(self, failure: Failure) -> None:
        self._trials.reference = failure.model_copy(update={"suspects": {}})
        self._suspects = failure.suspects

    def _find_nodes(self, stage: Stage, nodes: Sequence[NodeFacts]) -> tuple[Stage, Kept]:
        """Find the nodes that the failure needs: near the evidence of the run, or else by reducing the whole model."""
        everything = frozenset(node.index for node in nodes)
        if self._trials.reference is not None and not stage.feedback:
            located = self._locate(stage, nodes)
            if located is not None:
                stage, kept = self._fewer_nodes(stage, nodes, located)
                with _stopping_at(stage, kept):
                    for name in models_between(self._recipe, stage.recipe, self._failing):
                        stage = self._without(stage, kept, name)
                return stage, kept
        self._establish(stage, everything)
        with _stopping_at(stage, everything):
            stage, everything, nodes = self._fewer_steps(stage, everything, nodes)
            if stage.feedback:
                stage = self._shorter_sequence(stage, everything)
        return self._fewer_nodes(stage, nodes, None)

    def _first_stage(self) -> Stage:
        short = shorten_recipe(self._recipe, self._record, self._failure)
        resolved = self._record.recipe["steps"]
        assert isinstance(resolved, dict)
        by_name = {step.name: step for step in self._recipe.steps}
        settings = [resolved[name] for name in self._failing]
        lengths = [found.get("steps") for found in settings if isinstance(found, dict)]
        inputs = next((by_name[name].inputs for name in self._failing if by_name[name].inputs is not None), None)
        whole = Whole(
            path=Path(self._record.source.path).absolute(),
            inputs=dict(self._recipe.file.inputs if inputs is None else inputs),
            samples=self._options.samples,
            values=self._scratch / "values",
            steps=next((length for length in lengths if isinstance(length, int)), None),
        )
        takes_steps = [step for step in self._recipe.steps if "steps" in type(step.step).model_fields]
        names = tuple(step.name for step in takes_steps if step.type.cls.runs_sequences)
        return Stage("source", whole, short, feedback=whole.is_sequence, sequence_steps=names)

    def _establish(self, stage: Stage, everything: Kept) -> None:
        """Try the whole model as a part, and take the evidence for the cause from its failure.

        A failure that comes and goes sets the number of runs by which a part is judged.
        """
        inside = self._with_layers(stage)
        passed, error = 0, ""
        if self._needs_values is None and self._failure.kind in _STRUCTURAL:
            outcome = self._trials.run(inside, everything, ())
            if (not self._trials.reference or self._trials.is_same(outcome)) and self._is_established(
                outcome, everything
            ):
                self._needs_values, self._original = False, frozenset()
                return
            self._needs_values = True
        for _ in range(min(_FIRST_RUNS, self._options.trials)):
            outcome = self._trials.run(inside, everything)
            if self._is_established(outcome, everything):
                if passed:
                    self._expect_flaky(1, passed + 1)
                return
            passed, error = passed + 1, outcome.error
        if error:
            raise RequestError(f"the recipe cannot run on values that were captured: {error}")
        raise RequestError(
            "the failure cannot be reduced: it vanishes when all steps read the values that the recipe's `inputs:` "
            f"give in the first {counted(self._options.samples, 'sample')}. Give more with --samples, or move the "
            "data of single steps to `inputs:`."
        )

    def _is_established(self, outcome: TrialOutcome, everything: Kept) -> bool:
        same = next((failure for failure in outcome.failures if self._failure.resembles(failure)), None)
        self._report_trial(self._trials.count, len(everything), same is not None)
        if same is not None:
            self._take(same)
        return same is not None

    def _with_layers(self, stage: Stage) -> Stage:
        """Return a stage whose checks of accuracy show where two models begin to differ, for the first trial."""
        steps = {
            name: {**settings, "layers": True}
            if settings["step"] == "check_accuracy" and not stage.feedback and not _NO_LAYERS & settings.keys()
            else settings
            for name, settings in stage.recipe["steps"].items()
        }
        return replace(stage, recipe={**stage.recipe, "steps": steps})

    def _expect_flaky(self, failed: int, runs: int) -> None:
        """Set the number of runs by which a part is judged, from how often it failed."""
        share = failed / runs
        repeats = math.ceil(math.log(_MISSED) / math.log(1 - share)) if share < 1 else 1
        self._trials.repeats = min(_MOST_REPEATS, max(self._trials.repeats, repeats))
        self._listener(
            Notice(
                text=f"the failure comes and goes ({failed} of {counted(runs, 'run')}): a part passes only if it does "
                f"{counted(self._trials.repeats, 'time')}",
                warning=True,
            )
        )

    def _fewer_steps(
        self, stage: Stage, kept: Kept, nodes: Sequence[NodeFacts]
    ) -> tuple[Stage, Kept, Sequence[NodeFacts]]:
        """Leave out steps that only change the model, or start at the model that they have written."""
        for name in models_between(self._recipe, stage.recipe, self._failing):
            shorter = self._without(stage, kept, name)
            if shorter is not stage:
                stage = shorter
                continue
            later = self._start_at(stage, name)
            if later is not None:
                found = self._inspector.list_nodes(later.whole.path)
                everything = frozenset(node.index for node in found)
                if self._fails(later, everything):
                    return later, everything, found
        return stage, kept, nodes

    def _without(self, stage: Stage, kept: Kept, name: str) -> Stage:
        """Return the stage without a step, if it still fails."""
        if name not in stage.recipe["steps"]:
            return stage
        recipe = bypass(self._recipe, stage.recipe, name, self._failing)
        if recipe is None:
            return stage
        shorter = replace(stage, name=f"{stage.name} without {name}", recipe=recipe)
        return shorter if self._fails(shorter, kept) else stage

    def _start_at(self, stage: Stage, name: str) -> Stage | None:
        short = bypass(self._recipe, stage.recipe, name, self._failing, SOURCE)
        step = next(step for step in self._record.steps if step.name == name)
        if short is None or step.record is None:
            return None
        path = self._outputs.store.object_folder(step.record.artifact.digest) / Onnx.main
        whole = stage.whole.model_copy(update={"path": path.absolute(), "values": self._scratch / f"values-{name}"})
        return replace(stage, name=f"after {name}", whole=whole, recipe=short)

    def _fewer_samples(self, stage: Stage, kept: Kept) -> Stage:
        """Keep the fewest samples with which the recipe fails."""
        count = 1 if stage.feedback else self._count_samples(stage, kept)
        if count < 2:
            return stage

        def fails(pieces: Kept, _: str) -> bool:
            return bool(pieces) and self._fails(replace(stage, chosen=tuple(sorted(pieces))), kept)

        with _stopping_at(stage, kept):
            needed = needed_pieces([(str(index), frozenset({index})) for index in range(count)], fails)
        return replace(stage, chosen=tuple(sorted(index for _, piece in needed for index in piece)))

    def _count_samples(self, stage: Stage, kept: Kept) -> int:
        written = self._trials.write(self._scratch / "counted", stage, kept, None).part
        return written.samples if written is not None else 1

    def _shorter_sequence(self, stage: Stage, kept: Kept) -> Stage:
        """Return the stage with single steps of the sequence, or with its shortest beginning that fails."""
        each = replace(stage, feedback=False)
        if self._fails(each, kept):
            return each
        count = smallest_count(
            lambda count: self._fails(replace(stage, chosen=tuple(range(count))), kept),
            1,
            self._count_samples(stage, kept),
        )
        return replace(stage, chosen=tuple(range(count)))

    def _fails(self, stage: Stage, kept: Kept) -> bool:
        return self._trials.fails(stage, kept, self._original)

    def _fewer_nodes(self, stage: Stage, nodes: Sequence[NodeFacts], located: NodeSearch | None) -> tuple[Stage, Kept]:
        kept = self._search(stage, nodes, located)
        with _stopping_at(stage, kept):
            closed = set[str]()
            while owner := next(
                (node for node in nodes if node.index in kept and node.bodies and node.name not in closed), None
            ):
                closed.add(owner.name)
                opened = self._inspector.open_node(
                    stage.whole.model_copy(update={"capture": self._trials.capture}), kept, owner.index
                )
                if opened is None:
                    continue
                path, found = opened
                values = path.with_suffix(".values")
                inner = replace(
                    stage,
                    name=f"{stage.name}, {owner.name} opened",
                    whole=stage.whole.model_copy(update={"path": path, "values": values}),
                )
                if found.kept and self._fails(inner, frozenset(found.kept)):
                    stage, nodes = inner, found.nodes
                    kept = self._search(stage, [node for node in nodes if node.index in found.kept])
        return self._hollow(stage, kept, nodes), kept

    def _hollow(self, stage: Stage, kept: Kept, nodes: Sequence[NodeFacts]) -> Stage:
        """Replace nodes in the bodies of kept nodes by constants."""
        if not any(node.bodies for node in nodes if node.index in kept):
            return stage
        labels = self._inspector.list_body_nodes(stage.whole.path, kept)

        def emptied(needed: Collection[str]) -> Stage | None:
            path = self._inspector.hollow(stage.whole.path, kept, needed)
            if path is None:
                return None
            return replace(
                stage,
                name=f"{stage.name}, hollow {digest_json([*sorted(needed)])[:16]}",
                whole=stage.whole.model_copy(update={"path": path}),
            )

        def fails(pieces: Kept, _: str) -> bool:
            tried = emptied([labels[index] for index in pieces])
            return tried is not None and self._fails(tried, kept)

        with _stopping_at(stage, kept):
            every = [(label, frozenset({index})) for index, label in enumerate(labels)]
            if not labels or not fails(frozenset(range(len(labels))), ""):
                return stage
            needed = needed_pieces(every, fails)
        return emptied([label for label, _ in needed]) or stage

    def _search(self, stage: Stage, nodes: Sequence[NodeFacts], located: NodeSearch | None = None) -> Kept:
        """Return the smallest set of these nodes that was found to fail."""
        search = located or self._locate(stage, nodes)
        search = search or NodeSearch(nodes, self._severities(nodes), lambda kept: self._fails(stage, kept))
        search.run()
        self._minimal = search.minimal
        if self._trials.is_spent:
            raise _StoppedError(stage, search.smallest)
        return search.smallest

    def _locate(self, stage: Stage, nodes: Sequence[NodeFacts]) -> NodeSearch | None:
        """Search near the suspects, with random values first; return None if nothing fails there."""
        severity, before = self._severities(nodes), self._original
        for original in self._choices_of_values() if severity else ():
            self._original = original
            search = NodeSearch(nodes, severity, lambda kept: self._fails(stage, kept))
            try:
                if search.locate():
                    return search
            except BudgetSpentError:
                if len(search.smallest) < len(nodes):
                    raise _StoppedError(stage, search.smallest) from None
                break
        self._original = before
        return None

    def _choices_of_values(self) -> tuple[Original, ...]:
        if self._needs_values is None:
            return (frozenset(),) if self._failure.kind in _STRUCTURAL else (frozenset(), None)
        return (frozenset(), None) if self._needs_values and not self._options.keep_values else (self._original,)

    def _severities(self, nodes: Sequence[NodeFacts]) -> dict[int, float]:
        """Return the evidence against nodes: from the values of tensors, and from names in the message, among which the
        operators of their neighbours may be."""
        words = words_in(self._failure.message)
        named = [node for node in nodes if node.name in words]
        read, written = ({name for node in named for name in getattr(node, of)} for of in ("inputs", "outputs"))
        near = [
            node for node in nodes if node.op_type in words and (read & set(node.outputs) or written & set(node.inputs))
        ]
        found = {
            node.index: max(self._suspects.get(name, 0.0) for name in (node.name, *node.outputs)) for node in nodes
        }
        strong = dict.fromkeys((node.index for node in [*named, *near]), 1.0)
        return {index: value for index, value in (found | strong).items() if value}

    def _needed_values(self, stage: Stage, kept: Kept) -> Original:
        """Return the weights and inputs whose values the failure needs; None for all, if the trials are spent."""
        if self._options.keep_values or self._original is not None:
            return self._original
        written = self._trials.write(self._scratch / "labels", stage, kept, None)
        assert written.part is not None
        labels = sorted(written.part.replaceable)

        def fails(pieces: Kept, _: str) -> bool:
            return self._trials.fails(stage, kept, [labels[index] for index in pieces])

        try:
            needed = needed_pieces([(label, frozenset({index})) for index, label in enumerate(labels)], fails)
        except BudgetSpentError:
            return None
        return frozenset(label for label, _ in needed)

    def _verify(self, stage: Stage, kept: Kept) -> None:
        """Run the result again, and count how often, and how often it fails."""
        runs = failed = int(self._trials.has_failed(stage, kept, self._original))
        while runs < (_LAST_RUNS if failed == runs and self._trials.repeats == 1 else _LAST_RUNS_OF_FLAKY):
            runs += 1
            outcome = self._trials.run(stage, kept, self._original)
            same = next((each for each in outcome.failures if self._trials.is_same_failure(each)), None)
            failed += same is not None
            self._message = same.message if same is not None else self._message
        if failed < runs:
            self._minimal = self._minimal and self._trials.repeats > 1
        self._runs, self._failed_runs = runs, failed

    def _pack(self, target: Path, stage: Stage, kept: Kept, nodes_before: int) -> Reduced:
        folder = self._scratch / "packed"
        written = self._trials.write(folder, stage, kept, self._original)
        part = written.part
        assert part is not None
        page = target.with_suffix(".page.html" if target.suffix == ".html" else ".html")
        reduced = Reduced(
            path=str(target),
            page=str(page),
            failure=str(self._failure),
            nodes=self._inspector.count_nodes(folder / "model.onnx"),
            nodes_before=nodes_before,
            trials=self._trials.count,
            minimal=self._minimal,
            captured=part.is_captured,
            original_values=tuple(part.replaceable if self._original is None else sorted(self._original)),
            other_files=tuple(sorted({*files_in(stage.recipe)})),
            samples=max((len(files) for files in part.inputs.values()), default=1),
            steps=tuple(stage.recipe["steps"]),
            verified=self._runs,
            failed=self._failed_runs,
        )
        message = self._message or self._failure.message
        write_zip(folder, target, reduced, self._record.versions, message)
        self._trials.journal.unlink(missing_ok=True)
        try:
            files = {name: folder / files[0] for name, files in part.inputs.items()}
            draw_reduced(reduced, message, folder / MODEL, files, self._tried)
        except NdldFlowError as error:
            self._listener(Notice(text=f"the reduced model cannot be drawn: {error}", warning=True))
            return reduced.model_copy(update={"page": ""})
        return reduced

    def _report_trial(self, trial: int, nodes: int, fails: bool) -> None:
        self._tried.append((trial, counted(nodes, "node"), fails))
        outcome = "still fails" if fails else "another result"
        self._listener(Notice(text=f"trial {trial}: {counted(nodes, 'node')}: {outcome}"))


class _StoppedError(Exception):
    """The limit of trials was reached; the smallest model so far is that of a stage."""

    def __init__(self, stage: Stage, kept: Kept) -> None:
        super().__init__()
        self.stage, self.kept = stage, kept


@contextlib.contextmanager
def _stopping_at(stage: Stage, kept: Kept) -> Iterator[None]:
    """Turn the end of the budget into a stop at a stage."""
    try:
        yield
    except BudgetSpentError:
        raise _StoppedError(stage, kept) from None
