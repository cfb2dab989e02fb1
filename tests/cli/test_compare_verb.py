"""The verbs profile, compare and noise: their inputs, output and exit codes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RecipeError, RequestError, SourceError
from ndld_flow.cli.app import program
from ndld_flow.compare import measure_model as learn_noise
from ndld_flow.compare.compare_runs import pair_profiles
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile
from ndld_flow.report.run_page import draw_report
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.references import FoundProfile, FoundSubject, find_noise
from tests.support.a100_exports import a100_exports
from tests.support.graph_page import profile_of
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_tfm

RECIPE = """
name: pair
model: model.onnx
models: {other: other.onnx}
steps:
  sanitize: {}
  base: {step: profile, from: source, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 2, stable: 0 %}
  speed: {step: profile, from: sanitize, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 2, stable: 0 %}
"""
QUICK = ("runs=2", "passes=4", "duration=0", "warmup=0", "layer_passes=2", "stable=0 %")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of two profiles, tagged `first`, and one profiled model."""
    folder = tmp_path_factory.mktemp("measured")
    make_cnn(folder / "model.onnx")
    make_tfm(folder / "other.onnx")
    (folder / "pair.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.run("pair.yaml")
        api.tag("pair", "first")
        api.profile("model.onnx", QUICK)
    return folder


@pytest.fixture
def folder(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(measured)
    yield measured


def say(*words: str) -> Result:
    """Run a verb in this process."""
    return CliRunner().invoke(program, words, prog_name="ndld-flow", standalone_mode=False)


def code(*words: str) -> int:
    """The exit code that a person would see."""
    done = say(*words)
    if isinstance(done.exception, NdldFlowError):
        return done.exception.exit_code
    assert done.exception is None, done.exception
    value: Any = done.return_value
    return int(value or 0)


def labels(comparison: Comparison) -> list[str]:
    return [subject.label for subject in comparison.subjects]


def test_a_run_is_expanded_to_its_profiles(folder: Path) -> None:
    compared = api.compare(["pair"])
    assert labels(compared.comparison) == ["pair:base", "pair:speed"]
    (section,) = compared.comparison.profiles
    assert section.steps == ("base", "speed")
    by_name = {metric.metric: metric for metric in section.metrics}
    assert by_name["model.bytes"].values[0] == (folder / "model.onnx").stat().st_size
    assert len(by_name["latency.median"].runs[0]) == 2


@pytest.mark.parametrize(
    ("references", "names"),
    [
        pytest.param(["pair:base", "pair:speed"], ["pair:base", "pair:speed"], marks=pytest.mark.thorough),
        (["first", "latest"], None),
        (["first:base", "profile-model"], ["first:base", "profile-model"]),
        pytest.param(["first", "pair"], ["first", "pair"], marks=pytest.mark.thorough),
        (["pair:base", "pair:base"], ["pair:base (1)", "pair:base (2)"]),
    ],
)
def test_runs_are_named_by_tag_recipe_and_step(
    folder: Path, references: Sequence[str], names: Sequence[str] | None, check_message: CheckMessage
) -> None:
    if names is None:
        with pytest.raises(RequestError) as caught:
            api.compare(references)
        check_message(caught.value)
        return
    assert labels(api.compare(references).comparison) == list(names)


def test_two_runs_are_compared_step_by_step(folder: Path) -> None:
    comparison = api.compare(["first", "pair"]).comparison
    assert [profile.name for profile in comparison.profiles] == ["base", "speed"]
    assert comparison.geometric_mean_ratio == pytest.approx(1.0)
    assert comparison.verdict in ("unchanged", "inconclusive")


def test_files_and_folders_are_compared_too(folder: Path) -> None:
    steps = folder / "outputs" / "runs" / "pair" / "latest"
    comparison = api.compare([str(steps / "base" / "profile.json"), str(steps / "speed")]).comparison
    assert labels(comparison) == ["base", "speed"]
    assert {subject.kind for subject in comparison.subjects} == {"profile"}


@pytest.mark.thorough
def test_exports_of_an_a100_are_compared_as_improved(folder: Path) -> None:
    fp32, fp16 = (str(a100_exports() / precision) for precision in ("fp32", "fp16"))
    comparison = api.compare([fp32, fp16]).comparison
    assert comparison.verdict == "improved"
    assert "if both were measured" in comparison.why
    (profile,) = comparison.profiles
    assert profile.coverage[1] is not None
    assert profile.coverage[1].matched_share >= 0.91
    back = api.compare([fp16, fp32]).comparison
    assert back.verdict == "regressed"
    assert back.profiles[0].coverage[1] is not None
    assert back.profiles[0].coverage[1].matched_share >= 0.975
    assert code("compare", fp32, fp16) == 0
    assert code("compare", fp16, fp32) == 1


@pytest.mark.representatives("words7-0", "words3-2")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--gate", "latency.median <= 100 s"], 0, marks=pytest.mark.thorough),
        (["--gate", "latency.median <= 100 s", "--gate", "model.bytes <= 1 B"], 1),
        (["--gate", "latncy.median <= 5 %"], 2),
        (["--gate", "fast"], 2),
        (["--metric", "speed"], 2),
        (["--threshold", "much"], 2),
        (["--allow", "hardwere"], 2),
        (["--allow", "hardware", "--threshold", "5 %", "--metric", "model.bytes", "--gate", "load <= 1 min"], 0),
    ],
)
def test_gates_decide_the_exit_code(folder: Path, words: list[str], expected: int) -> None:
    assert code("compare", "pair:base", "pair:speed", *words) == expected


def test_profiles_are_paired_by_their_names_and_the_others_are_left_out(check_message: CheckMessage) -> None:
    def subject(label: str, *names: str) -> FoundSubject:
        return FoundSubject(label, "run", label, tuple(FoundProfile(name, profile_of([])) for name in names))

    pairing = pair_profiles([subject("a", "base", "speed", "extra"), subject("b", "speed", "base", "other")])
    assert {name: [place for place, _ in members] for name, members in pairing.sections.items()} == {
        "base": [0, 1],
        "speed": [0, 1],
    }
    assert [note.split()[:3] for note in pairing.left_out] == [["a:", "profile", "extra"], ["b:", "profile", "other"]]
    three = pair_profiles([subject("a", "base", "speed"), subject("b", "base"), subject("c", "speed")])
    assert {name: [place for place, _ in members] for name, members in three.sections.items()} == {
        "base": [0, 1],
        "speed": [0, 2],
    }
    with pytest.raises(RequestError) as caught:
        pair_profiles([subject("a", "base", "speed"), subject("b", "base"), subject("c", "gone")])
    check_message(caught.value)


@pytest.mark.thorough
def test_a_profile_without_a_partner_is_reported(folder: Path) -> None:
    extra = "  extra: {step: profile, from: other, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 0}\n"
    agree = "  agree: {step: check_accuracy, reference: source, candidate: sanitize}\n"
    (folder / "more.yaml").write_text(RECIPE.replace("name: pair", "name: more") + extra + agree)
    api.run("more.yaml", ["steps.extra.stable=0 %"])
    comparison = api.compare(["more", "pair"]).comparison
    assert [profile.name for profile in comparison.profiles] == ["base", "speed"]
    assert [note.split()[:3] for note in comparison.left_out] == [["more:", "profile", "extra"]]
    base, speed = ({metric.metric: metric.values for metric in profile.metrics} for profile in comparison.profiles)
    assert "agree.cosine" not in base
    assert speed["agree.cosine"][0] == pytest.approx(1.0)
    assert speed["agree.cosine"][1] is None
    (pair,) = api.compare(["more:base", "more:extra"]).comparison.profiles
    sizes = next(metric.values for metric in pair.metrics if metric.metric == "model.bytes")
    assert sizes == ((folder / "model.onnx").stat().st_size, (folder / "other.onnx").stat().st_size)


@pytest.mark.thorough
def test_incomparable_profiles_are_refused_unless_allowed(folder: Path) -> None:
    steps = folder / "outputs" / "runs" / "pair" / "latest"
    profile = Profile.model_validate_json((steps / "base" / "profile.json").read_text())
    machine = profile.machine.model_copy(update={"cpu": "another"})
    there = profile.model_copy(update={"machine": machine, "session": ""})
    (folder / "there.json").write_text(there.to_json())
    words = ["compare", "pair:base", "there.json"]
    assert code(*words) == 2
    assert "--allow hardware" in say(*words).output
    assert code(*words, "--allow", "hardware") in (0, 4)
    assert "(allowed)" in say(*words, "--allow", "hardware").output


@pytest.mark.parametrize(
    "references",
    [
        ["profile-model"],
        ["pair", "nothing"],
        ["pair:spead", "pair:base"],
        ["model.onnx", "pair"],
        ["nothing:base", "pair"],
    ],
)
def test_missing_inputs_are_reported(folder: Path, references: list[str], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        api.compare(references)
    check_message(caught.value)


def test_the_terminal_shows_the_deciding_figures(folder: Path) -> None:
    done = say("compare", "pair:base", "pair:speed", "--gate", "latency.median <= 100 s")
    text = done.output
    assert "latency.min" in text
    assert "model.bytes" in text
    assert "✓ passed latency.median <= 100 s" in text
    assert text.splitlines()[-1].startswith("report outputs/comparisons/")
    json_text = say("compare", "pair:base", "pair:speed", "--json").output
    assert Comparison.model_validate_json(json_text).subjects[0].label == "pair:base"


def test_each_candidate_has_a_table_and_is_named_by_gates(folder: Path) -> None:
    steps = "outputs/runs/pair/latest"
    files = [f"{steps}/base/profile.json", f"{steps}/speed/profile.json", f"{steps}/base/profile.json"]
    text = say("compare", *files, "--gate", "latency.min <= 100 s").output
    assert text.count("95 % interval") == 2
    assert re.search(r"passed latency.min <= 100 s of speed: ", text)
    assert re.search(r"passed latency.min <= 100 s of base/profile.json \(2\): ", text)


def test_profile_prints_a_triage(folder: Path) -> None:
    done = say("profile", "model.onnx", *QUICK, "threads=1")
    assert "model.onnx: median" in done.output
    assert "slowest layers" in done.output
    assert "bound by" in done.output
    assert "run profile-model/" in done.output
    found = json.loads(say("profile", "outputs/runs/profile-model/latest/profile/profile.json", "--json").output)
    assert found["profile"]["options"]["threads"] == 1
    assert found["triage"]["top"][0]["share"] > 0


@pytest.mark.thorough
def test_profile_measures_each_time_and_explains_wrong_settings(folder: Path, check_message: CheckMessage) -> None:
    before = len(api.runs(outputs="outputs"))
    api.profile("model.onnx", QUICK)
    api.profile("model.onnx", QUICK)
    assert len(api.runs(outputs="outputs")) == before + 2
    with pytest.raises(RequestError, match="KEY=VALUE"):
        api.profile("model.onnx", ["fast"])
    with pytest.raises(RequestError) as caught:
        api.profile("model.onnx", ["pases=3"])
    check_message(caught.value)
    assert code("profile", "outputs/runs/pair/latest/base/profile.json", "passes=3") == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("fewest_rounds")
def test_two_profiles_of_different_runs_are_measured_again_against_each_other(folder: Path) -> None:
    before = len(api.runs(outputs="outputs"))
    done = say("compare", "first:base", "pair:speed", "--measure", "--gate", "latency.median <= +900 %")
    assert done.exception is None, done.exception
    assert done.return_value == 0
    assert "decide: compare_profiles starts" in done.output
    comparison_folder = folder / "outputs" / "comparisons" / "latest"
    comparison = Comparison.model_validate_json((comparison_folder / "comparison.json").read_text())
    assert labels(comparison) == ["first:base", "pair:speed"]
    assert [gate.outcome for gate in comparison.gates] == ["passed"]
    rounds = comparison.profiles[0].rounds
    assert rounds is not None
    assert len(rounds.rounds) >= 4
    assert len(api.runs(outputs="outputs")) == before + 1
    assert "latency.median" in (comparison_folder / "comparison.html").read_text()


@pytest.mark.parametrize("subjects", [("pair",), ("pair:base", "outputs/runs/pair/latest/speed/profile.json")])
def test_only_profiles_of_runs_are_measured_again(folder: Path, subjects: tuple[str, ...]) -> None:
    if len(subjects) == 1:  # its two profiles are two subjects
        assert code("compare", *subjects, "--measure", "--gate", "latency.median <= 5 %") == 2
    else:
        assert code("compare", *subjects, "--measure") == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("fewest_rounds")
def test_noise_is_learned_stored_and_used(folder: Path) -> None:
    done = say("noise", "model.onnx", "passes=24", "duration=0", "warmup=0", "--comparisons", "3")
    assert done.exception is None, done.exception
    assert "3 comparisons of model.onnx" in done.output
    (path,) = (folder / "outputs" / "noise").glob("*.json")
    noise = Noise.model_validate_json(path.read_text())
    assert len(noise.samples) == 3
    assert all(len(sample.a_runs_ms) == len(sample.b_runs_ms) == 2 for sample in noise.samples)
    assert noise.threshold > 0
    assert noise.rounds_spread is not None
    assert noise.rounds_spread > 0
    comparison = api.compare(["pair"]).comparison
    assert "model.onnx" in comparison.noise
    own = api.compare(["pair"], rules=Rules(noise=noise.model_copy(update={"model": "mine"})))
    assert "mine" in own.comparison.noise
    profile = Profile.model_validate_json((folder / "outputs/runs/pair/latest/base/profile.json").read_text())
    elsewhere = profile.model_copy(update={"machine": profile.machine.model_copy(update={"cpu": "another"})})
    assert find_noise(Outputs(Path("outputs")), profile) == noise
    assert find_noise(Outputs(Path("outputs")), elsewhere) is None
    path.write_text("{}")  # another version's
    assert find_noise(Outputs(Path("outputs")), profile) is None


@pytest.mark.parametrize("setting", ["runs=2", pytest.param("budget=1ms", marks=pytest.mark.thorough)])
def test_noise_with_too_few_runs_is_refused(
    folder: Path, setting: str, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(learn_noise, "ROUNDS", 4)
    kept = {path: path.read_bytes() for path in folder.glob("outputs/noise/*.json")}
    with pytest.raises(RequestError, match="comparisons"):
        api.noise("model.onnx", ["passes=3", "duration=0", "warmup=0", setting], comparisons=3)
    with pytest.raises(RequestError) as caught:
        api.noise("model.onnx", comparisons=2)
    check_message(caught.value)
    assert {path: path.read_bytes() for path in folder.glob("outputs/noise/*.json")} == kept


def test_a_run_writes_files_for_other_programs(folder: Path) -> None:
    step = folder / "outputs" / "runs" / "pair" / "latest" / "speed"
    assert {"profile.json", "layers.csv", "trace.json"} <= {path.name for path in step.iterdir()}
    assert json.loads((step / "trace.json").read_text())["traceEvents"]
    rows = list(csv.reader((step / "layers.csv").read_text().splitlines()))
    profile = Profile.model_validate_json((step / "profile.json").read_text())
    assert len(rows) == len(profile.layers) + 1


@pytest.mark.thorough
def test_layers_are_available_as_a_data_frame(folder: Path, check_message: CheckMessage) -> None:
    table = api.layers("pair:speed")
    assert len(table) > 3
    assert table["median_ms"].sum() > 0
    with pytest.raises(RequestError) as caught:
        api.layers("pair")
    check_message(caught.value)


def test_a_profile_without_a_run_has_a_page(folder: Path) -> None:
    profile = "outputs/runs/pair/latest/base/profile.json"
    page = api.report(profile, to="base.html")
    text = page.read_text()
    assert "<h1><bdi>base</bdi></h1>" in text
    assert 'id="layers"' in text
    assert 'id="steps"' not in text
    assert say("report", profile).output.strip() == str(folder / "base.html")
    assert code("report", "pair", "--to", "pair.html") == 2
    assert api.report("pair") == (folder / "outputs/runs/pair/latest/report.html").resolve()


@pytest.mark.thorough
def test_a_recipe_that_compares_shows_it_in_its_report(folder: Path) -> None:
    settings = "base: base, rounds: 0, when_undecided: pass, gates: ['latency.min <= 100 s']"
    decide = f"  decide: {{step: compare_profiles, {settings}}}\n"
    (folder / "decide.yaml").write_text(RECIPE.replace("name: pair", "name: decide") + decide)
    done = api.run("decide.yaml")
    assert done.passed
    folder = Path(done.folder)
    assert {"comparison.json", "comparison.md", "comparison.html", "comparison.png", "junit.xml"} <= {
        path.name for path in (folder / "decide").iterdir()
    }
    text = (folder / "report.html").read_text()
    assert '<section id="comparisons"' in text
    assert 'href="./decide/comparison.html"' in text
    assert "latency.min &lt;= 100 s" in text
    (folder / "decide" / "comparison.html").unlink()  # as in a point of a sweep, which has none
    redrawn = draw_report(folder).read_text()
    assert '<section id="comparisons"' in redrawn
    assert "comparison.html" not in redrawn
    assert not api.run(
        "decide.yaml", ["steps.decide.gates=['latency.min <= 1 ns']", "steps.decide.when_undecided=fail"]
    ).passed


def test_a_quiet_comparison_prints_the_verdict_and_the_report(folder: Path) -> None:
    verdict, report = say("compare", "pair:base", "pair:speed", "--quiet").stdout.splitlines()
    assert re.match(r"[?=✓✗] (INCONCLUSIVE|UNCHANGED|IMPROVED|REGRESSED): latency\.min", verdict)
    assert report.startswith("report outputs/comparisons/")


def test_a_comparison_lists_the_layers_that_changed_most(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = say("compare", "pair").stdout
    layers = text.split("layers that changed most, base to speed")[1]
    assert re.search(r"^ +base +candidate +difference +change +layer +type +matched by", layers, re.MULTILINE)
    assert re.search(r"(µs|ms) .* (nodes|weights|names|structure|unmatched)", layers)


def test_a_run_by_its_id_has_a_short_label(folder: Path) -> None:
    run = Path("outputs/runs/pair/latest").resolve().name
    assert labels(api.compare([f"pair/{run}:base", f"{run}:speed"]).comparison) == ["pair:base", "pair:speed"]


def test_a_fetched_model_is_profiled_with_its_digest(in_folder: Path, check_message: CheckMessage) -> None:
    model = "http://127.0.0.1:9/model.onnx"
    with pytest.raises(RecipeError, match=r"model\.sha256="):
        api.profile(model)
    with pytest.raises(SourceError) as caught:  # nothing listens there
        api.profile(model, [f"model.sha256={'0' * 64}"])
    check_message(caught.value)
