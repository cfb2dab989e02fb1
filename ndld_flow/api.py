"""The Python API: the same words as the command line, one function each.

::

    from ndld_flow import api

    finished = api.run("pipelines/quickstart.yaml", ["steps.speed.passes=50"])
    print(finished.passed, finished.report)

All of them raise `ndld_flow.base.errors.NdldFlowError`; none prints or exits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import OutputsError

if TYPE_CHECKING:
    import pandas

    from ndld_flow.drawing.choices import Look, Reading
    from ndld_flow.graph.inspect.inspect_model import Query
    from ndld_flow.models.op_listing import ListedOperator
    from ndld_flow.profiles.compare.measured import Rules
    from ndld_flow.recipe.step_types import StepType
    from ndld_flow.records.inspection import Inspection
    from ndld_flow.records.model_diff import ModelDiff, Part
    from ndld_flow.records.noise import Noise
    from ndld_flow.runner.collect_garbage import Freed
    from ndld_flow.runner.compare_runs import Compared
    from ndld_flow.runner.doctor import Check
    from ndld_flow.runner.events import Listener, RunFinished, SweepFinished
    from ndld_flow.runner.list_runs import RunSummary
    from ndld_flow.runner.plan import Decision
    from ndld_flow.runner.profile_model import Profiled
    from ndld_flow.runner.state import Placement
    from ndld_flow.runner.verify import Verified

DEFAULT_OUTPUTS = "outputs"


def run(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    listener: Listener | None = None,
) -> RunFinished:
    """Run a recipe and write its run folder and report; what is done already is not done again.

    `overrides` are in Hydra's grammar; `force` names steps to run though nothing changed; `trust` allows code that the
    recipe names; `listener` is told every event of `ndld_flow.runner.events`.
    """
    from ndld_flow.runner.events import ignore
    from ndld_flow.runner.run import run_recipe
    from ndld_flow.runner.state import Request

    request = Request(Path(recipe), tuple(overrides), Path(outputs), tuple(force), trust)
    return run_recipe(request, listener or ignore)


def sweep(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    place: Placement | None = None,
    listener: Listener | None = None,
) -> SweepFinished:
    """Run a recipe at many points: those of its `sweep:`, and of overrides such as `steps.speed.threads=1,2,4`.

    What points share is done once; a point that fails is a result. ``place=Placement(jobs=4)`` has worker processes do
    steps that do not measure, ``Placement(ray="auto")`` a cluster all of them.
    Raises RequestError for a recipe that sweeps over nothing.
    """
    from ndld_flow.runner.events import RunFinished, ignore
    from ndld_flow.runner.run_request import run_request
    from ndld_flow.runner.state import Placement, Request

    request = Request(
        Path(recipe), tuple(overrides), Path(outputs), trust=trust, multirun=True, place=place or Placement()
    )
    finished = run_request(request, listener or ignore)
    assert not isinstance(finished, RunFinished)  # with `multirun`, what sweeps over nothing is refused
    return finished


def plan(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    listener: Listener | None = None,
) -> list[Decision]:
    """Say for each step whether a run would do it or reuse it, and why."""
    from ndld_flow.runner.events import ignore
    from ndld_flow.runner.run import plan_recipe
    from ndld_flow.runner.state import Request

    request = Request(Path(recipe), tuple(overrides), Path(outputs), tuple(force), trust)
    return plan_recipe(request, listener or ignore)


def report(run: str, *, outputs: str | Path = DEFAULT_OUTPUTS, to: str | Path | None = None) -> Path:
    """Draw the report of a run or a sweep (tag, recipe, id, path), or of a sweep's point (`RUN#17`, `RUN#best`), again
    from its records; returns its path.

    A profile file or a folder of exports gets a page of its own: at `to`, or beside where you stand.
    """
    from ndld_flow.runner.draw import draw_any

    return draw_any(run, Path(outputs), Path(to) if to is not None else None)


def compare(
    subjects: Sequence[str],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    to: str | Path | None = None,
    measure: Listener | None = None,
) -> Compared:
    """Compare runs, tags, ids, points of sweeps (`SWEEP#17`), `RUN:STEP`, profile files and folders of exports, the
    first being the base.

    `gates` are sentences such as `latency.min <= +5 %`; `rules` define which differences count; `to` is the folder to
    write instead of one below `outputs/comparisons/`. With `measure`, a listener of events, two profiles of runs are
    measured again, against each other, until they are decided.
    """
    from ndld_flow.runner.compare_runs import compare_runs

    return compare_runs(
        subjects,
        gates,
        rules,
        outputs=Path(outputs),
        to=Path(to) if to is not None else None,
        measure=measure,
    )


def diff(
    before: str | Path,
    after: str | Path,
    *,
    parts: Collection[Part] | None = None,
    compare_values: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> ModelDiff:
    """What is different in the model `after`: nodes, wires, attributes, weights, inputs, outputs, functions, versions.

    Each is a model's file, `RUN:STEP`, `RUN:source`, or a run, which stands for the last model it made. Nodes are
    matched by what they are and where they stand, so that other names are other names and nothing more. `parts` are
    those looked at, all unless told; without `compare_values` weights' values are left out; `page` is where an HTML
    page is written.
    """
    from ndld_flow.report.diff.draw import draw_diff
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import diff_subjects

    names = str(before), str(after)
    found = diff_subjects(*names, Outputs(Path(outputs)), parts=parts, compare_values=compare_values)
    if page is not None:
        draw_diff(found, names, Path(page))
    return found


def profile(
    model: str | Path,
    settings: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> Profiled:
    """Measure a model anew without a recipe; `settings` such as `passes=200` or `inputs.x.shape=[1,3,64,64]`."""
    from ndld_flow.runner.events import ignore
    from ndld_flow.runner.profile_model import profile_model

    return profile_model(str(model), settings, outputs=Path(outputs), listener=listener or ignore)


def layers(subject: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> pandas.DataFrame:
    """The layers of one profile as a table for notebooks; `subject` as `compare` takes it, such as `quickstart:speed`.

    Raises RequestError where it names several profiles.
    """
    from ndld_flow.report.exports.layers_frame import layers_frame
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import find_profile

    return layers_frame(find_profile(subject, Outputs(Path(outputs))))


def noise(
    model: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    comparisons: int = 8,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> Noise:
    """Compare a model with itself `comparisons` times; what was learned is kept and used by `compare`."""
    from ndld_flow.runner.events import ignore
    from ndld_flow.runner.learn_noise import MODEL, learn_noise

    chosen = str(model) if model is not None else MODEL
    return learn_noise(chosen, settings, comparisons=comparisons, outputs=Path(outputs), listener=listener or ignore)


def inspect(
    model: str | Path,
    query: Query | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    export: str | Path | None = None,
) -> Inspection:
    """Look things up in a model's file, or in what `RUN:STEP` made: its summary, or what a query asks.

    ``api.inspect("model.onnx", Query(nodes=NodeSelect(op_type=("Conv",))))``. `export` is a `.npy` file for the numbers
    of the tensor that the query names.
    """
    from ndld_flow.graph.inspect.inspect_model import Query, export_tensor, inspect_model
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import find_model

    path, asked = find_model(str(model), Outputs(Path(outputs))), query or Query()
    found = inspect_model(path, asked)
    if export is not None and asked.tensor is not None:
        export_tensor(path, asked.tensor, Path(export))
    return found


def draw(
    model: str | Path, target: str | Path | None = None, *, reading: Reading | None = None, look: Look | None = None
) -> Path:
    """Draw a model's graph, or an engine's, as SVG, PNG or JPEG, by the target's suffix; returns the file's path.

    `model` is an ONNX file, or any profile with layers, such as what TensorRT's engine inspector wrote. The target is
    `<model>.svg` where one stands unless told. Weights are not read. With the suffix `.html` it is a page of a model
    that opens bodies, searches, and shows attributes and what tensors hold: for that weights below 64 MiB are read,
    unless `reading.values` is False.
    """
    from ndld_flow.drawing.choices import Look, Reading
    from ndld_flow.drawing.draw import check_look, picture_bytes
    from ndld_flow.runner.draw import SUFFIXES, draw_page, read_drawn
    from ndld_flow.store.files import write_bytes_atomically

    path = Path(target) if target is not None else Path(f"{Path(model).stem}.svg")
    if path.suffix.lower() in SUFFIXES:
        return draw_page(Path(model), path, reading or Reading(), look or Look())
    check_look(path.suffix, look or Look())
    picture = picture_bytes(read_drawn(Path(model), reading or Reading()), path.suffix, look or Look())
    try:
        write_bytes_atomically(path, picture)
    except OSError as error:
        raise OutputsError(f"{path}: the picture cannot be written ({error.strerror}).") from None
    return path


def runs(recipe: str = "*", *, outputs: str | Path = DEFAULT_OUTPUTS) -> list[RunSummary]:
    """Finished runs and sweeps, newest first."""
    from ndld_flow.runner.list_runs import list_runs
    from ndld_flow.runner.outputs import Outputs

    return list_runs(Outputs(Path(outputs)), recipe)


def tag(run: str, name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> Path:
    """Give a run, a sweep or a sweep's point a lasting name; `gc` never removes it then. Returns its folder."""
    from ndld_flow.runner.outputs import Outputs

    kept = Outputs(Path(outputs))
    folder = kept.find_any(run)
    kept.set_tag(folder, name)
    return folder


def untag(name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> None:
    """Forget a name. The run stays."""
    from ndld_flow.runner.outputs import Outputs

    Outputs(Path(outputs)).remove_tag(name)


def steps(files: Sequence[str | Path] = ()) -> list[StepType]:
    """All step types: built in, installed, and those in `files` (whose code is then run)."""
    from ndld_flow.recipe.step_types import StepTypes

    return list(StepTypes(tuple(Path(file).resolve() for file in files)))


def ops(
    name: str = "",
    *,
    opset: int | None = None,
    domain: str | None = None,
    category: str = "",
    search: str = "",
    model: str | Path | None = None,
) -> Sequence[ListedOperator]:
    """Operators with inputs, attributes, types and versions: ONNX's of every opset, and ONNX Runtime's own.

    All that is given must fit: `domain` is `ai.onnx` or another, `category` a family as `draw` colours them, `search`
    words of the name or the doc, `model` a file whose operators are meant.
    """
    from ndld_flow.models.op_listing import OpQuery, list_operators

    path = Path(model) if model is not None else None
    return list_operators(OpQuery(name, opset, domain, category, search, path))


def schema(files: Sequence[str | Path] = ()) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of recipes, with the steps in `files` too."""
    from ndld_flow.recipe.schema import describe_recipes

    return describe_recipes(steps(files))


def verify(
    *, outputs: str | Path = DEFAULT_OUTPUTS, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Verified:
    """Hash every stored artifact anew; what is damaged is set aside."""
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.verify import verify_outputs

    return verify_outputs(Outputs(Path(outputs)), progress)


def gc(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    keep: int | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Freed:
    """Free what no kept run or sweep needs; `keep` limits the untagged ones kept of each recipe.

    What runs at work use is left. `tell` hears why it waits.
    """
    from ndld_flow.runner.collect_garbage import collect_garbage
    from ndld_flow.runner.outputs import Outputs

    return collect_garbage(Outputs(Path(outputs)), keep, dry_run=dry_run, tell=tell)


def doctor(*, outputs: str | Path = DEFAULT_OUTPUTS, library: str | Path | None = None) -> list[Check]:
    """What works on this machine; of TensorRT, the one in `library` where that is given (its code is run)."""
    from ndld_flow.runner.doctor import examine

    return examine(Path(outputs), None if library is None else Path(library))


def init(model: str | Path, target: str | Path | None = None, *, overwrite: bool = False) -> Path:
    """Write a commented recipe for a model; returns its path."""
    from ndld_flow.recipe.write_recipe import write_recipe

    return write_recipe(Path(model), Path(target) if target is not None else None, overwrite=overwrite)
