"""The folder of a sweep's point: a run's folder in which nothing is copied."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.recipe.gates import parse_expression
from ndld_flow.records.measurement import Metric
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.records.run_record import RunRecord, RunStep
from ndld_flow.report.run_page import draw_report
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.kinds import ProfileDocument
from ndld_flow.store.store import Store
from ndld_flow.sweep.run_sweep import write_point
from ndld_flow.sweep.winners import judge_winners
from tests.support.run_fixtures import MACHINE, STARTED, Sitting, StepSketch, profile, run_record


@dataclass
class Points:
    """Outputs with a sweep of two points, each of which measured."""

    root: Path
    runs: list[RunRecord]

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.root)

    def folder(self, number: int) -> Path:
        return self.root / "sweeps" / "ppocr-det" / "20261121T093000Z-3f9a1c" / "points" / f"{number:04}"


def keep_profile(store: Store, measured: Profile, sketch: StepSketch) -> RunStep:
    """A measuring step's place in a run, its profile in the store."""
    with store.building() as aside:
        built = aside / "out"
        built.mkdir()
        (built / ProfileDocument.main).write_text(measured.to_json(), encoding="utf-8")
        kept = store.keep(ProfileDocument.kind, built)
    [step] = run_record([sketch]).steps
    assert step.record is not None
    return step.model_copy(update={"record": step.record.model_copy(update={"artifact": kept})})


@pytest.fixture
def points(tmp_path: Path) -> Points:
    root = tmp_path / "outputs"
    runs = []
    for number, center_ms in enumerate((10.0, 14.0), 1):
        session = Sitting(place=number - 1, of=2, name="together")
        measured = profile("speed", center_ms, number * 20, 12, runs=7, passes=20, session=session)
        measured = measured.model_copy(update={"model_digest": f"blake3:{number:064x}"})
        metrics = {"latency.min": Metric(value=measured.latency.min_ms, unit="ms")}
        sketch = StepSketch("speed", "profile", kind="profile", log=f"measured {number}", metrics=metrics)
        step = keep_profile(Outputs(root).store, measured, sketch)
        runs.append(run_record([]).model_copy(update={"steps": (step,), "id": f"20261121T093000Z-3f9a1c#{number}"}))
    folders = Points(root, runs)
    (folders.folder(1).parent.parent).mkdir(parents=True)
    (folders.folder(1).parent.parent / "sweep.json").write_text('{"best": 1}')
    (folders.folder(1).parents[2] / "latest").symlink_to(folders.folder(1).parents[1].name)
    for number, run in enumerate(runs, 1):
        write_point(run, folders.folder(number), folders.folder(number), folders.outputs.store)
    return folders


def test_a_point_folder_is_a_run_folder_that_links_to_the_store(points: Points) -> None:
    folder = points.folder(1)
    assert sorted(path.name for path in folder.iterdir()) == [
        "command.txt", "log.txt", "recipe.yaml", "report.html", "run.json", "speed",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "speed").iterdir()) == ["log.txt", "record.json", "stored"]
    link = folder / "speed" / "stored"
    assert link.is_symlink() and not link.readlink().is_absolute()
    kept = points.runs[0].steps[0].record
    assert kept is not None
    assert link.resolve() == points.outputs.store.object_folder(kept.artifact.digest).resolve()
    assert "measured 1" in (folder / "log.txt").read_text()
    assert str(folder / "recipe.yaml") in (folder / "recipe.yaml").read_text()


def test_documents_are_read_through_links_and_reports_are_reproducible(points: Points) -> None:
    folder = points.folder(2)
    assert list(read_run(folder).of(Profile)) == ["speed"]
    drawn = (folder / "report.html").read_bytes()
    assert b'id="latency"' in drawn
    (folder / "report.html").unlink()
    assert draw_report(folder).read_bytes() == drawn


def test_a_point_written_elsewhere_has_its_profiles_in_its_report(points: Points) -> None:
    aside = points.root / "store" / "building" / "0001"
    write_point(points.runs[0], aside, points.folder(1), points.outputs.store)
    assert (aside / "report.html").read_bytes() == (points.folder(1) / "report.html").read_bytes()
    assert (aside / "speed" / "stored").readlink() == (points.folder(1) / "speed" / "stored").readlink()


def test_all_outputs_can_be_moved_together(points: Points, tmp_path: Path) -> None:
    shutil.move(points.root, tmp_path / "elsewhere")
    moved = Points(tmp_path / "elsewhere", points.runs)
    assert list(read_run(moved.folder(1)).of(Profile)) == ["speed"]


def test_points_are_compared_by_their_numbers(points: Points) -> None:
    compared = api.compare(["ppocr-det#1", "ppocr-det#2:speed"], outputs=points.root)
    [section] = compared.comparison.profiles
    [decided] = section.deciding
    assert decided.verdict == "regressed"
    assert decided.ratio == pytest.approx(1.4, rel=0.1)
    assert [subject.label for subject in compared.comparison.subjects] == ["ppocr-det#1", "ppocr-det#2:speed"]


def test_files_are_copied_where_links_are_not_supported(points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("links are for administrators")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = points.folder(3)
    write_point(points.runs[0], folder, folder, points.outputs.store)
    assert (folder / "speed" / ProfileDocument.main).is_file()
    assert list(read_run(folder).of(Profile)) == ["speed"]


def test_winners_are_ranked_by_the_profiles_in_the_store(points: Points) -> None:
    finals = {number: run.steps for number, run in enumerate(points.runs, 1)}
    stands = judge_winners(finals, 1, parse_expression("speed.latency.min"), "minimize", points.outputs)
    assert stands[1].verdict == "best"
    assert stands[2].verdict == "worse"
    assert stands[2].low is not None and stands[2].low > 1.3


def test_learned_noise_counts_in_rankings(points: Points) -> None:
    finals = {number: run.steps for number, run in enumerate(points.runs, 1)}
    noise = Noise(
        machine=MACHINE,
        backend="onnxruntime",
        provider="CPUExecutionProvider",
        model="m",
        measured_at=STARTED,
        samples=(NoiseSample(a_runs_ms=(1.0,), b_runs_ms=(1.0,), ratio=1.0),),
        threshold=0.6,
        run_cov=0.1,
        single_run_threshold=0.7,
    )
    (points.root / "noise").mkdir()
    (points.root / "noise" / "learned.json").write_text(noise.to_json())
    stands = judge_winners(finals, 1, parse_expression("speed.latency.min"), "minimize", points.outputs)
    assert stands[2].verdict == "tie"


def test_a_winner_with_a_removed_profile_has_a_ratio_without_an_interval(points: Points) -> None:
    finals = {number: run.steps for number, run in enumerate(points.runs, 1)}
    shutil.rmtree(points.root / "store" / "objects")
    # what was read lately is at hand: ask of another place
    elsewhere = points.root.rename(points.root.with_name("moved"))
    stands = judge_winners(finals, 1, parse_expression("speed.latency.min"), "minimize", Outputs(elsewhere))
    assert (stands[2].verdict, stands[2].low) == ("worse", None)
