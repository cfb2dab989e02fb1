"""The JSON of every verb that has `--json`, against the schema that `ndld-flow schema --verb` publishes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
import yaml

from ndld_flow import api
from ndld_flow.cli.verb_output import format_value
from ndld_flow.cli.verbs import list_outputs
from ndld_flow.execution.events import StepFinished
from ndld_flow.profiles.diagnose.diagnose import LayerGroup, ProfileOutput, TopLayer, Triage
from ndld_flow.profiles.diagnose.subject import Bound
from ndld_flow.records.measurement import Metric
from ndld_flow.verbs.profile import OUTPUT
from tests.support.busy_runs import write_busy_run
from tests.support.command_line import ndld_flow
from tests.support.compare_samples import profile_of
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import make_sweep_toy
from tests.support.toys import RECIPE, make_toy

PROFILED = ("runs=2", "passes=4", "duration=0", "warmup=0", "layer_passes=2", "stable=0 %")
PROFILE = "outputs/runs/profile-model/latest/profile/profile.json"
BUSY = "busy.json"
FIELDS = Path(__file__).parents[1] / "golden/outputs.txt"

ELSEWHERE = "--outputs elsewhere/outputs"
SCENES: Mapping[str, Sequence[tuple[str, int]]] = {
    "run": [
        ("toy.yaml --trust steps.first.word=new", 0),
        ("toy.yaml --trust steps.first.word=new", 0),
        ("strict.yaml --trust", 1),
        ("swept.yaml --trust", 0),
    ],
    "plan": [
        ("toy.yaml --trust", 0),
        ("swept.yaml --trust", 0),
        ("swept.yaml --trust steps.speed.step=stamp", 2),
        ("engine.yaml", 2),
    ],
    "profile": [(" ".join(["model.onnx", *(f"'{setting}'" for setting in PROFILED)]), 0), (PROFILE, 0)],
    "compare": [
        (f"{BUSY} {BUSY}", 0),
        (f"{BUSY} {BUSY} --gate 'latency.min <= 0 ms'", 1),
        ("engine:engine engine:engine", 0),
    ],
    "apply": [(f"busy {ELSEWHERE}", 0), (f"busy more_threads_than_cpus --show {ELSEWHERE}", 0)],
    "diff": [
        ("model.onnx model.onnx", 0),
        ("model.onnx other.onnx --exit-code", 1),
        ("engine:engine engine:engine", 0),
    ],
    "reduce": [("strict.yaml --trust", 0)],
    "optimize": [("model.onnx --budget '1 ms'", 0)],
    "noise": [("model.onnx --comparisons 3 passes=4 duration=0 warmup=0 warmup_passes=1", 0)],
    "inspect": [
        ("model.onnx", 0),
        ("model.onnx --nodes --op-type Conv", 0),
        ("other.onnx --initializers '*' --stats", 0),
        ("model.onnx --group-by op_type", 0),
        ("model.onnx --group-by dtype", 0),
    ],
    "runs": [("", 0)],
    "history": [("packed", 0)],
    "mlflow": [("packed --uri http://127.0.0.1:9", 2)],
    "steps": [("", 0), ("lint", 0), ("edit.rename_nodes", 0), ("stamp --from steps/stamp.py", 0)],
    "ops": [("Clip --opset 10", 0), ("--category normalization", 0), ("--model odd.onnx", 0)],
    "gc": [("--dry-run", 0), ("--keep 0 --dry-run", 0)],
    "doctor": [("", 0)],
    "verify": [("", 0)],
}
"""Verb -> its arguments, and the exit code."""
ENGINE = """
name: engine
model: model.onnx
steps:
  engine: {step: build_engine, backend: tensorrt, release: '8.6', typing: strong, flags: [tf32]}
"""

RTX = """
name: engine
model: model.onnx
steps:
  engine: {step: build_engine, backend: tensorrt_rtx, compute_capabilities: ["8.6"]}
"""


def words(arguments: str) -> list[str]:
    """Return the arguments; those in quotation marks may contain spaces."""
    return shlex.split(arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recipes, models and finished runs."""
    folder = tmp_path_factory.mktemp("json")
    make_sweep_toy(folder).recipe.rename(folder / "swept.yaml")
    make_toy(folder)
    model = onnx.load(folder / "model.onnx")
    model.graph.node[0].name = "another"
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(_infinite(model), model.graph.initializer[0].name))
    onnx.save(model, folder / "other.onnx")
    model.graph.node[0].op_type = "Unheard"
    onnx.save(model, folder / "odd.onnx")
    (folder / "torn.onnx").write_bytes((folder / "model.onnx").read_bytes()[:100])
    (folder / "engine.yaml").write_text(ENGINE)
    (folder / "packed.yaml").write_text("name: packed\nmodel: model.onnx\nsteps: {ship: {step: sanitize}}\n")
    (folder / "strict.yaml").write_text(RECIPE.replace(">= 2", ">= 200"))
    (folder / "wrong.yaml").write_text(RECIPE.replace("word:", "wrod:"))
    (folder / "file.txt").write_text("a file")
    (folder / "rtx.yaml").write_text(RTX)
    busy = write_busy_run(folder / "elsewhere")  # it has no models, which `verify` would report
    (folder / BUSY).write_bytes((busy / "speed/profile.json").read_bytes())
    assert ndld_flow("run", "rtx.yaml", cwd=folder).returncode == 0
    assert ndld_flow("run", "packed.yaml", cwd=folder).returncode == 0
    return folder


def _infinite(model: onnx.ModelProto) -> Any:
    values = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    values.flat[0] = float("inf")
    return values


def validator(verb: str) -> jsonschema.Draft202012Validator:
    schema = api.schema(verb=verb)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def documents(verb: str, text: str) -> list[Any]:
    """Return what a verb printed: one document, or one on each line."""
    if list_outputs()[verb].is_lines:
        return [strict(line) for line in text.splitlines()]
    return [strict(text)]


def strict(text: str) -> Any:
    """Return JSON, in which NaN without quotation marks is refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_verb_with_json_is_tested_here() -> None:
    assert set(list_outputs()) == set(SCENES)


@pytest.mark.representatives("plan")
@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=pytest.mark.thorough) if verb in ("noise", "optimize") else verb for verb in SCENES],
)
def test_what_a_verb_prints_has_the_published_schema(verb: str, folder: Path) -> None:
    known = validator(verb)
    for arguments, code in SCENES[verb]:
        done = ndld_flow(verb, *words(arguments), "--json", cwd=folder)
        assert done.returncode == code, (arguments, done.stderr, done.stdout)
        for document in documents(verb, done.stdout):
            known.validate(document)


def test_the_problems_of_a_recipe_are_listed(folder: Path) -> None:
    done = ndld_flow("plan", "wrong.yaml", "--trust", "--json", cwd=folder)
    failure = strict(done.stdout)
    assert failure["kind"] == "RecipeError"
    assert failure["problems"]
    problem = failure["problems"][0]
    assert problem["path"].endswith("wrod")
    assert problem["hint"] == 'did you mean "word"?'


def test_an_error_names_its_step(folder: Path) -> None:
    recipe = yaml.safe_load(RECIPE) | {"steps": {"small": {"step": "fix_shapes", "shapes": {"nothing": [1]}}}}
    (folder / "failing.yaml").write_text(yaml.safe_dump({**recipe, "gates": []}))
    done = ndld_flow("run", "failing.yaml", "--trust", "--json", cwd=folder)
    events = [strict(line) for line in done.stdout.splitlines()]
    for event in events:
        validator("run").validate(event)
    assert (events[-1]["event"], events[-1]["step"], done.returncode) == ("error", "small", 2)


def test_a_bug_is_an_error_in_json_too(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("ndld_flow.verbs.runs.runs", lambda *_, **__: 1 / 0)
    done = ndld_flow("runs", "--json", cwd=tmp_path)
    failure = strict(done.stdout)
    validator("runs").validate(failure)
    assert (failure["kind"], failure["exit_code"], done.returncode) == ("Bug", 3, 3)


def test_numbers_that_json_does_not_have_are_texts() -> None:
    metrics = {"loss": Metric(value=float("nan")), "top": Metric(value=float("inf"))}
    event = StepFinished(
        name="a", step="b", outcome="done", reason="", detail="", summary="", wall_s=float("-inf"), metrics=metrics
    )
    text = event.model_dump_json()
    assert strict(text)["metrics"]["loss"]["value"] == "NaN"
    assert strict(text)["wall_s"] == "-Infinity"
    validator("run").validate(strict(text))
    bounded = TopLayer(layer=0, median_ms=float("nan"), share=float("inf"))
    triage = Triage(
        layers_ms=float("-inf"),
        top=(bounded,),
        by_type=(LayerGroup("Conv", 1, float("nan"), 0.5, 0),),
        by_precision=(),
        by_role=(),
        bound=Bound("unknown", ""),
        insights=(),
    )
    printed = strict(format_value(OUTPUT, ProfileOutput(profile=profile_of([[1.0, 2.0]]), triage=triage)))
    validator("profile").validate(printed)
    assert printed["triage"]["by_type"][0]["sum_ms"] == printed["triage"]["top"][0]["median_ms"] == "NaN"


def test_a_schema_of_a_verb_is_written_to_a_file(tmp_path: Path, check_message: CheckMessage) -> None:
    done = ndld_flow("schema", "plan.json", "--verb", "plan", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "plan.json\n")
    assert json.loads((tmp_path / "plan.json").read_text()) == api.schema(verb="plan")
    refused = ndld_flow("schema", "--verb", "tag", cwd=tmp_path)
    assert refused.returncode == 2
    check_message(refused.stderr)


def test_a_field_of_an_output_is_only_removed_with_a_new_version() -> None:
    """Where this fails: add new fields to tests/golden/outputs.txt; raise the version if one is gone or renamed."""
    described = []
    for verb, output in list_outputs().items():
        if output.version is None:
            continue
        described.append(f"{verb} {output.version}")
        definitions = api.schema(verb=verb)["$defs"]
        described += [
            f"  {name}: {', '.join(sorted(definitions[name]['properties']))}"
            for name in definitions
            if "properties" in definitions[name]
        ]
    assert FIELDS.read_text(encoding="utf-8").splitlines() == described
