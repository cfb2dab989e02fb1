"""`ndld-flow apply`: findings as changes of a recipe, and their measured effect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow import api
from ndld_flow.compare.compare_runs import new_file
from ndld_flow.execution.request import recipe_of
from ndld_flow.profiles.diagnose.subject import FUSE, AddedStep, RecipeChange, is_applied, model_chain
from tests.support.busy_runs import busy, resolved, run_of, write_busy_run
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import StepSketch, run_record

RECIPE = """\
# My recipe.
name: bn
model: bn.onnx
steps:
  # as it comes
  base: {step: profile, threads: 1, optimization: disabled, runs: 2, passes: 4, layer_passes: 3, warmup: 0, duration: 0}
"""


def test_a_change_that_the_run_has_already_is_not_offered() -> None:
    run = run_of(resolved())
    assert model_chain(run, "speed") == ("clean", "speed")
    assert is_applied(FUSE, run, "speed")
    assert not is_applied(RecipeChange({"threads": 2}), run, "speed")
    assert is_applied(RecipeChange({"threads": 8}), run, "speed")
    assert not is_applied(RecipeChange(steps=(AddedStep("sanitize", {"fuse": False}),)), run, "speed")
    assert not is_applied(RecipeChange(steps=(AddedStep("convert_fp16"),)), run, "speed")
    without = run_record([StepSketch("speed", "profile", parents={"from": "source"})], recipe=resolved())
    assert not is_applied(FUSE, without, "speed"), "another step of the recipe has it, which is not before this one"


def test_the_recipe_and_its_overrides_come_from_the_command(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").touch()
    (tmp_path / "best.yaml").touch()
    words = ("ndld-flow", "run", "--best", "best.yaml", "toy.yaml", "steps.a.b=1", "--force", "all", "~steps.c", "-q")
    run = run_of(resolved(), command=words, directory=str(tmp_path))
    assert recipe_of(run) == (tmp_path / "toy.yaml", ("steps.a.b=1", "~steps.c"))
    assert recipe_of(run.model_copy(update={"command": ("ndld-flow", "profile", "toy.yaml")})) == (None, ())
    (tmp_path / "toy.yaml").unlink()
    assert recipe_of(run) == (None, ())


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose recipe is not in a file."""
    monkeypatch.chdir(tmp_path)
    return write_busy_run(tmp_path)


def test_a_finding_is_shown_as_a_change_of_the_recipe_as_it_ran(finished: Path) -> None:
    offered = {offered_change.finding: offered_change for offered_change in api.offered_changes(finished)}
    assert offered["more_threads_than_cpus"].change == "set `threads: 2`"
    assert offered["more_threads_than_cpus"].step == "speed"
    shown = api.apply(finished, "more_threads_than_cpus", show_only=True)
    assert (shown.recipe, shown.run, shown.verdict) == ("", "", "")
    assert "threads: 8" in shown.diff
    assert "threads: 2" in shown.diff
    assert "no recipe file" in shown.note
    assert [path.name for path in Path().iterdir()] == ["outputs"], "nothing was written"


def test_the_new_file_is_next_to_the_recipe_and_names_of_strangers_lead_nowhere() -> None:
    run = run_of(resolved())
    assert new_file(run, Path("recipes/toy.yaml"), "casts") == Path("recipes/toy.casts.yaml")
    hostile = run.model_copy(update={"recipe_name": "../../up\x1b[31m"})
    assert new_file(hostile, None, "casts") == Path("up-31m.casts.yaml")
    assert new_file(run.model_copy(update={"recipe_name": ".."}), None, "casts") == Path("recipe.casts.yaml")


def test_what_cannot_be_applied_is_an_error(finished: Path, check_message: CheckMessage) -> None:
    with pytest.raises(api.RequestError) as caught:
        api.apply(finished, "more_threads_than_cpu", show_only=True)
    check_message(caught.value)
    Path("busy.more_threads_than_cpus.yaml").touch()
    with pytest.raises(api.RequestError) as caught:
        api.apply(finished, "more_threads_than_cpus")
    check_message(caught.value)
    (finished / "speed" / "alone.json").write_text(busy(8).to_json())
    with pytest.raises(api.RequestError) as caught:
        api.offered_changes(finished / "speed" / "alone.json")
    check_message(caught.value)


def write_model(path: Path) -> None:
    """Write eight small convolutions, each with a BatchNormalization that is not folded into it.

    One pair alone is not enough: when other processes interrupt its convolution, its BatchNormalization has no notable
    share of the time.
    """
    rng = np.random.default_rng(0)
    channels = [numpy_helper.from_array(rng.random(8, np.float32) + 0.5, name) for name in "sbmv"]
    weights = numpy_helper.from_array(rng.standard_normal((8, 8, 1, 1)).astype(np.float32), "w")
    nodes = []
    for pair in range(8):
        scaled = f"y{pair}" if pair < 7 else "y"
        nodes.append(helper.make_node("Conv", [f"y{pair - 1}" if pair else "x", "w"], [f"c{pair}"]))
        nodes.append(helper.make_node("BatchNormalization", [f"c{pair}", *"sbmv"], [scaled]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights, *channels],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.thorough
@pytest.mark.usefixtures("fewest_rounds")
def test_a_finding_is_applied_and_its_effect_measured(tmp_path: Path) -> None:
    write_model(tmp_path / "bn.onnx")
    (tmp_path / "bn.yaml").write_text(RECIPE)
    assert ndld_flow("run", "bn.yaml", cwd=tmp_path).returncode == 0
    listed = ndld_flow("apply", "latest", cwd=tmp_path)
    assert "scaling_not_folded" in listed.stdout
    done = ndld_flow("apply", "bn", "scaling_not_folded", cwd=tmp_path)
    assert done.returncode in (0, 1, 4), done.stderr  # the machine decides
    changed = (tmp_path / "bn.scaling_not_folded.yaml").read_text()
    assert changed.startswith("# My recipe.\n")
    assert "sanitize: {from: source, fuse" in changed
    assert any(
        f"{word}: latency.median" in done.stdout for word in ("improved", "regressed", "unchanged", "inconclusive")
    )
    again = ndld_flow("apply", "bn", cwd=tmp_path)  # the newest run of the recipe is that of the changed one
    assert "scaling_not_folded" not in again.stdout
