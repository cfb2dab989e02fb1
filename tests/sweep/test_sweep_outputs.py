"""Finished sweeps and their points: find, list, name, draw, compare and collect them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runs.collect_garbage import collect_garbage
from ndld_flow.runs.list_runs import list_runs
from ndld_flow.runs.outputs import NoPointError, Outputs, name_folder
from ndld_flow.runs.references import find_model
from ndld_flow.store.kinds import Onnx
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import SweepToy, make_sweep_toy

TRIED = """
name: toy
model: model.onnx
steps_from: [steps/dye.py, steps/gauge.py]
steps:
  tint: {step: dye, colour: red}
  speed: {step: gauge, limit: 4}
sweep:
  over: {speed.threads: [1, 2, 8, 4]}
  together: 1
  minimize: speed.ms
"""


@dataclass
class Kept:
    """Outputs with a run and a sweep of one recipe; the sweep came later."""

    toy: SweepToy
    run: Path
    sweep: Path

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.toy.outputs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("sweeps")
        patch.chdir(folder)
        toy = make_sweep_toy(folder, TRIED)
        run = Path(api.run(toy.recipe, ["~sweep"], outputs=toy.outputs, trust=True).folder).resolve()
        sweep = Path(toy.finish().folder).resolve()
    return Kept(toy, run, sweep)


@pytest.fixture
def kept(made: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A copy that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(made.toy.folder, folder, symlinks=True)
    monkeypatch.chdir(folder)
    base = made.toy.folder.resolve()
    return Kept(SweepToy(folder), folder / made.run.relative_to(base), folder / made.sweep.relative_to(base))


@pytest.mark.parametrize("head", ["toy", "{id}", "toy/{id}", "{short}", "outputs/sweeps/toy/{id}", "latest"])
def test_points_are_found_by_any_name_of_their_sweep(kept: Kept, head: str) -> None:
    reference = head.format(id=kept.sweep.name, short=kept.sweep.name[-6:])
    assert kept.outputs.find(f"{reference}#2") == kept.sweep / "points" / "0002"
    assert kept.outputs.find(f"{reference}#best") == kept.sweep / "points" / "0004"
    assert name_folder(kept.outputs.find(f"{reference}#2")) == f"toy/{kept.sweep.name}#2"


def test_a_recipe_name_refers_to_its_newest_run_or_sweep(kept: Kept) -> None:
    assert kept.outputs.find("toy") == kept.outputs.find("latest") == kept.run
    assert kept.outputs.find_any("toy") == kept.outputs.find_any("latest") == kept.sweep
    assert kept.outputs.find_any("toy#1") == kept.sweep / "points" / "0001"
    assert kept.outputs.find_any(kept.run.name) == kept.run


@pytest.mark.parametrize("reference", ["{id}", "toy/{id}", "outputs/sweeps/toy/{id}"])
def test_a_sweep_in_place_of_a_run_is_refused_with_a_hint_at_points(
    kept: Kept, reference: str, check_message: CheckMessage
) -> None:
    named = reference.format(id=kept.sweep.name)
    for ask in (lambda: kept.outputs.find(named), lambda: api.compare([named, named], outputs=kept.toy.outputs)):
        with pytest.raises(NoPointError) as caught:
            ask()
        check_message(caught.value)
    with pytest.raises(NoPointError) as caught:
        find_model(named, kept.outputs)
    check_message(caught.value)


def test_a_point_that_failed_has_a_folder_with_the_reason(kept: Kept) -> None:
    page = api.report("toy#3", outputs=kept.toy.folder / "outputs")
    record = read_run_record(page.parent)
    assert record.outcome == "error"
    assert record.failure is not None
    assert record.failure.message in (page.parent / "log.txt").read_text()
    assert [step.outcome for step in record.steps if step.name in record.failure.steps] == ["failed"]
    assert "Failure" in page.read_text()


@pytest.mark.parametrize("point", ["9", "0", "-1", "first", "1.5", "²", "../0001"])
def test_an_unknown_point_is_reported(kept: Kept, point: str, check_message: CheckMessage) -> None:
    with pytest.raises(NoPointError) as caught:
        kept.outputs.find(f"toy#{point}")
    check_message(caught.value)


def test_runs_have_no_points(kept: Kept, check_message: CheckMessage) -> None:
    for reference in ("nothing#1", f"{kept.run.name}#1", "#1", "#"):
        with pytest.raises(RequestError) as caught:
            kept.outputs.find(reference)
        check_message(caught.value)


def test_sweeps_and_points_have_tags(kept: Kept) -> None:
    for reference, tag in (("toy", "all"), ("all#2", "second"), ("all#best", "fast")):
        api.tag(reference, tag, outputs=kept.toy.outputs)
    assert kept.outputs.find("all#2") == kept.outputs.find("second") == kept.sweep / "points" / "0002"
    assert kept.outputs.find("fast") == kept.sweep / "points" / "0004"
    with pytest.raises(NoPointError):
        kept.outputs.find("all")
    [listed] = [run for run in list_runs(kept.outputs) if run.kind == "sweep"]
    assert listed.tags == ("all", "fast #4", "second #2")


def test_runs_and_sweeps_are_listed_newest_first(kept: Kept) -> None:
    sweep, run = list_runs(kept.outputs)
    assert (sweep.kind, sweep.points, sweep.best, sweep.passed) == ("sweep", 4, 4, True)
    assert (run.kind, run.points, run.best) == ("run", 0, None)
    assert list_runs(kept.outputs, "other") == []
    lines = ndld_flow("runs", cwd=kept.toy.folder).stdout.splitlines()
    assert lines[0].startswith(f"toy/{kept.sweep.name}")
    assert "sweep of 4 points, best #4" in lines[0]
    assert "sweep" not in lines[1]
    as_json = json.loads(ndld_flow("runs", "--json", cwd=kept.toy.folder).stdout)
    assert [item["kind"] for item in as_json] == ["sweep", "run"]


def test_a_sweep_with_a_damaged_record_is_listed_and_its_points_are_found(kept: Kept) -> None:
    (kept.sweep / "sweep.json").write_text("{}")
    assert [(run.kind, run.damage[:5]) for run in list_runs(kept.outputs)] == [
        ("sweep", "sweep"),
        ("run", ""),
    ]
    assert kept.outputs.find("toy#1") == kept.sweep / "points" / "0001"
    with pytest.raises(NoPointError, match="`toy#1`"):
        kept.outputs.find("toy#best")


def test_reports_of_sweeps_and_points_are_drawn_again(kept: Kept, check_message: CheckMessage) -> None:
    for reference, folder in (("toy", kept.sweep), ("toy#2", kept.sweep / "points" / "0002")):
        before = (folder / "report.html").read_bytes()
        (folder / "report.html").unlink()
        assert api.report(reference, outputs=kept.toy.outputs) == folder / "report.html"
        assert (folder / "report.html").read_bytes() == before
    with pytest.raises(RequestError) as caught:
        api.report("toy#2", outputs=kept.toy.outputs, to=kept.toy.folder / "x.html")
    check_message(caught.value)


def test_models_of_points_are_found(kept: Kept) -> None:
    found = find_model("toy#2:tint", kept.outputs)
    assert found.name == Onnx.main
    assert "red 1" in api.diff("toy#2:source", "toy#2:tint", outputs=kept.toy.outputs).to_json()


def test_gc_keeps_what_a_sweep_needs_and_removes_old_sweeps_completely(kept: Kept) -> None:
    before = sorted(path.name for path in (kept.toy.outputs / "store" / "records").glob("*/*"))
    freed = collect_garbage(kept.outputs)
    assert (freed.runs, freed.sweeps, freed.objects, freed.record_count) == ((), (), (), 0)
    assert sorted(path.name for path in (kept.toy.outputs / "store" / "records").glob("*/*")) == before
    planned = collect_garbage(kept.outputs, keep=0, dry_run=True)
    assert planned.sweeps == (f"toy/{kept.sweep.name}",)
    assert planned.runs == (f"toy/{kept.run.name}",)
    assert kept.sweep.is_dir()
    done = collect_garbage(kept.outputs, keep=0)
    assert done == planned.model_copy(update={"dry_run": False})
    assert done.record_count == len(before)
    assert not kept.sweep.exists() and not list((kept.toy.outputs / "store" / "objects").glob("*/*"))


def test_after_gc_the_same_sweep_is_fully_reused(kept: Kept) -> None:
    shutil.rmtree(kept.run)
    collect_garbage(kept.outputs)
    assert kept.toy.finish().nothing_to_do


def test_a_sweep_with_a_tagged_point_is_kept_completely(kept: Kept) -> None:
    api.tag("toy#2", "mine", outputs=kept.toy.outputs)
    freed = collect_garbage(kept.outputs, keep=0)
    assert freed.sweeps == ()
    assert kept.outputs.find("mine") == kept.sweep / "points" / "0002"
    assert (kept.sweep / "points" / "0001" / "tint" / "stored" / Onnx.main).is_file()


def test_gc_stops_at_a_sweep_that_it_cannot_read(kept: Kept) -> None:
    (kept.sweep / "sweep.json").write_text("{}")
    with pytest.raises(RequestError, match=r"sweep\.json"):
        collect_garbage(kept.outputs)
    printed = ndld_flow("gc", "--keep", "0", "-n", cwd=kept.toy.folder).stdout
    assert f"sweep toy/{kept.sweep.name}" in printed
    assert "1 runs, 1 sweeps," in printed
