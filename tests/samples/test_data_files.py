"""Which files `data:` means: what is found, in which order, under which names; and that runs depend on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.keys import describe_key
from ndld_flow.execution.messages import read_order, transfer_files
from ndld_flow.inputs import names_one_file, patterns_of
from ndld_flow.store import found_files
from ndld_flow.store.digest import digest_file
from ndld_flow.store.found_files import absolute_pattern, find_files
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.recipes import load_recipe
from tests.support.sample_files import write_images, write_test_set
from tests.support.toys import Toy, make_toy

LOOK = '''
"""Writes down what it is run on."""

from pathlib import Path

from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Onnx
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.step import Context, Result, Step


class Look(SampleSettings, Step[Onnx, Onnx]):
    """Look at samples."""

    uses_inputs = True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.models.files import model_inputs
        from ndld_flow.samples.sample_feeds import make_samples

        samples = make_samples(model_inputs(source.path), context.inputs, self, source.label)
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        told = [f"{one.label}={one.feeds['x'].values.max() * 255:.0f}" for one in samples]
        return Result(f"{len(samples)}: {'; '.join(told)}")
'''
RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py]
inputs:
  x: {shape: [1, 3, 16, 16], data: images}
steps:
  look: {step: stamp}
"""


@pytest.fixture
def toy(in_folder: Path) -> Toy:
    """A recipe that looks at a folder of two images."""
    write_images(in_folder / "images", {"a2.png": 2, "a10.png": 10})
    return make_toy(in_folder, RECIPE).write(RECIPE, LOOK)


def summary(toy: Toy, *overrides: str) -> str:
    done, _ = toy.run(*overrides)
    (step,) = json.loads((Path(done.folder) / "run.json").read_text())["steps"]
    return str(step["record"]["summary"])


def labels(*patterns: str) -> list[str]:
    return [file.label for file in find_files(patterns)]


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def test_a_folder_is_its_files_of_known_types_in_natural_order(in_folder: Path) -> None:
    touch("c/f10.png", "c/f9.png", "c/F2.JPG", "c/notes.txt", "c/.hidden.png", "c/deeper/f1.png", "c/clip.mp4")
    assert labels("c") == ["F2.JPG", "clip.mp4", "f9.png", "f10.png"]
    assert [file.path for file in find_files(["c"])][2] == Path("c/f9.png")
    assert labels("c/") == labels(str(in_folder / "c")) == labels("c/deeper/../") == labels("c")


def test_globs_match_at_their_depth(in_folder: Path) -> None:
    touch("c/a.png", "c/deep/b.png", "c/deep/deeper/d.png", "c/.git/e.png", "c/deep/e.npy", "c/[x].png")
    assert labels("c/*.png") == ["[x].png", "a.png"]
    assert labels("c/**/*.png") == ["[x].png", "a.png", "deep/b.png", "deep/deeper/d.png"]
    assert labels("c/deep/**") == ["b.png", "deeper/d.png", "e.npy"]
    assert labels("c/?.png", "c/deep/e.npy") == ["a.png", "deep/e.npy"]
    assert labels("c/.git/*.png") == ["e.png"]
    assert labels(f"{in_folder}/c/[a].png") == ["a.png"]


def test_a_name_with_wildcards_is_a_file_where_there_is_one(in_folder: Path) -> None:
    touch("c/[x].png", "c/x.png")
    assert labels("c/[x].png") == ["[x].png"]
    assert names_one_file("c/[x].png")
    assert not names_one_file("c/[y].png")


def test_lists_keep_their_order_and_labels_tell_files_apart(in_folder: Path) -> None:
    touch("b/x.png", "a/x.png")
    assert labels("b/x.png", "a") == ["b/x.png", "a/x.png"]
    assert labels("b/x.png") == ["x.png"]
    assert labels("b/../a/x.png", "a/x.png") == ["x.png", "x.png"]


def test_hostile_names_are_shown_on_one_line(in_folder: Path) -> None:
    touch("c/a\n\x1b[31m.png", "c/b.png")
    assert labels("c") == ["a␊␛[31m.png", "b.png"]


def test_patterns_without_a_match_are_refused(in_folder: Path, check_message: CheckMessage) -> None:
    touch("c/readme.txt")
    with pytest.raises(RequestError) as caught:
        find_files(["c"])
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        find_files(["c/readme.txt", "c/*.png"])
    check_message(caught.value)


def test_link_loops_end_and_dangling_links_are_reported(in_folder: Path) -> None:
    touch("c/a.png")
    Path("c/loop").symlink_to(in_folder / "c")
    Path("c/gone.png").symlink_to("nowhere.png")
    Path("c/self.png").symlink_to("self.png")
    assert labels("c") == ["a.png", "gone.png", "self.png"]
    assert "a.png" in labels("c/**/*.png")


def test_pipes_are_not_waited_for(in_folder: Path, check_message: CheckMessage) -> None:
    Path("c").mkdir()
    os.mkfifo("c/a.png")
    for pattern in ("c", "c/*.png", "c/a.png"):
        with pytest.raises(RequestError) as caught:
            find_files([pattern])
        check_message(caught.value)


def test_too_many_files_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(found_files, "MOST_FILES", 3)
    touch(*(f"c/{i}.png" for i in range(4)), "d/a.png", "d/b.png")
    for patterns in (["c"], ["c/*"], ["d", "d"]):
        with pytest.raises(RequestError) as caught:
            find_files(patterns)
        check_message(caught.value)


def test_test_data_sets_are_one_sample_each(in_folder: Path) -> None:
    import numpy as np

    for number in (0, 2, 10):
        write_test_set(in_folder / f"m/test_data_set_{number}", np.zeros(2), np.ones(2))
    touch("m/model.onnx")
    assert labels("m") == labels("m/*_set_*") == ["test_data_set_0", "test_data_set_2", "test_data_set_10"]
    (file,) = find_files(["m/test_data_set_2"])
    assert list(file.contents) == ["test_data_set_2/input_0.pb", "test_data_set_2/input_1.pb"]


def test_a_pattern_has_the_same_key_in_another_directory(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("odd [1]*/c/a.png", "odd [1]*/c/b.png")
    monkeypatch.chdir("odd [1]*")
    absolute = [absolute_pattern(pattern) for pattern in ("c/a.png", "c", "c/*.png", str(in_folder / "*" / "c" / "b*"))]
    monkeypatch.chdir("/")
    assert [[file.label for file in find_files([pattern])] for pattern in absolute] == [
        ["a.png"], ["a.png", "b.png"], ["a.png", "b.png"], ["b.png"]
    ]  # fmt: skip


def test_a_folder_that_gains_a_picture_makes_the_step_run_again(toy: Toy) -> None:
    assert summary(toy) == "2: a2.png=2; a10.png=10"
    assert toy.plan()["look"] == ("reused", "")
    write_images(toy.folder / "images", {"a3.png": 3})
    assert toy.plan()["look"] == ("input changed", "inputs.x")
    assert summary(toy) == "3: a2.png=2; a3.png=3; a10.png=10"
    (toy.folder / "images/a3.png").unlink()
    assert toy.plan()["look"] == ("reused", "")
    (toy.folder / "images/a2.png").rename(toy.folder / "images/a4.png")
    assert toy.plan()["look"] == ("input changed", "inputs.x")
    write_images(toy.folder / "images", {"a4.png": 2, "a10.png": 11})
    assert toy.plan()["look"] == ("input changed", "inputs.x")


def test_a_steps_own_data_is_in_its_key_and_replaces_the_recipes(toy: Toy) -> None:
    write_images(toy.folder / "own", {"x/p.png": 77, "y/p.png": 78})
    assert summary(toy, "+steps.look.data={x: own/*/p.png}") == "2: x/p.png=77; y/p.png=78"
    own = "+steps.look.data={x: [own/y/p.png, own/x/p.png]}"
    assert toy.plan(own)["look"] == ("input changed", "data.x")
    assert summary(toy, own) == "2: y/p.png=78; x/p.png=77"
    (toy.folder / "images").rename(toy.folder / "gone")
    assert toy.plan(own)["look"] == ("reused", "")
    assert toy.plan("+steps.look.data={x: zeros}")["look"][0] == "settings changed"
    assert summary(toy, "+steps.look.data={x: ones}") == "1: sample 0=255"


def test_a_small_file_that_changed_is_hashed_again(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndld_flow.store.digest.SETTLED_AFTER_S", -1.0)
    digests, path = Store(in_folder / "store").digests, in_folder / "a.png"
    path.write_bytes(b"one")
    before = digests.digest(path)
    assert digests.digest(path) == before
    path.write_bytes(b"three")
    assert digests.digest(path) == digest_file(path) != before


def test_one_file_counts_by_its_contents_alone(toy: Toy) -> None:
    write_images(toy.folder, {"p.png": 5})
    (toy.folder / "q.png").write_bytes((toy.folder / "p.png").read_bytes())
    assert summary(toy, "inputs.x.data=p.png") == "1: p.png=5"
    assert toy.plan("inputs.x.data=q.png")["look"] == ("reused", "")
    assert toy.plan("inputs.x.data=[q.png]")["look"][0] == "settings changed"


def test_the_resolved_recipe_repeats_the_run_from_anywhere(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = toy.run("+steps.look.data={x: 'images/*1*.png'}", "steps.look.samples=1", "inputs.x.data=[images]")
    path = Path(done.folder) / "recipe.yaml"
    resolved = yaml.safe_load(path.read_text())
    assert resolved["inputs"]["x"]["data"] == [str(toy.folder / "images")]
    assert resolved["steps"]["look"]["data"] == {"x": str(toy.folder / "images/*1*.png")}
    monkeypatch.chdir("/")
    (step,) = load_recipe(path, trust=True).steps
    assert [file.label for file in find_files(patterns_of(step.sample_data["data.x"]))] == ["a10.png"]


def test_missing_files_are_reported_before_anything_runs(toy: Toy, check_message: CheckMessage) -> None:
    for data, words in [
        ("nowhere.png", r"inputs\.x: the file nowhere\.png cannot be read: No such file"),
        ("'none*.png'", r"inputs\.x: no file matches none\*\.png"),
        ("[images, nowhere.png]", r"inputs\.x: the file nowhere\.png cannot be read"),
    ]:
        with pytest.raises(RequestError, match=words):
            toy.plan(f"inputs.x.data={data}")
    with pytest.raises(RequestError) as caught:
        toy.plan("+steps.look.data={x: 'none*.png'}")
    check_message(caught.value)


def test_an_impossible_file_name_is_an_error(toy: Toy) -> None:
    toy.write(RECIPE.replace("data: images", 'data: "a\\0.png"'), LOOK)
    with pytest.raises(RequestError, match=r"a␀\.png cannot be read"):
        toy.plan()


def test_a_loader_is_code(toy: Toy, check_message: CheckMessage) -> None:
    (toy.folder / "load.py").write_text("def samples():\n    yield {'x': __import__('numpy').ones((1, 3, 16, 16))}\n")
    loader = ("steps.look.loader=load.py", "steps.look.samples=1")
    with pytest.raises(RecipeError) as caught:
        load_recipe(toy.recipe, loader, trust=False)
    check_message(caught.value)
    with pytest.raises(RecipeError) as caught:
        toy.plan(*loader, "+steps.look.data={x: images}")
    check_message(caught.value)
    assert summary(toy, *loader) == "1: load.py sample 0=255"
    assert toy.plan(*loader)["look"] == ("reused", "")
    with (toy.folder / "load.py").open("a") as file:
        file.write("# changed\n")
    reason, detail = toy.plan(*loader)["look"]
    assert reason == "input changed" and detail.startswith("loader, file load.py ")


def test_files_are_transferred_to_machines_without_them(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    write_images(toy.folder / "own", {"x/p.png": 77, "y/p.png": 78})
    write_test_set(toy.folder / "sets/test_data_set_0", np.zeros((1, 3, 8, 8), np.float32))
    (toy.folder / "odd").mkdir()
    write_images(toy.folder / "odd", {"[1] a.png": 7})
    store = Store(toy.folder / "outputs" / "store")
    for override in (
        "inputs.x.data='own/**'", "inputs.x.data=images", "inputs.x.data=[own/y/p.png, images, sets]",
        "inputs.x.data=images/a2.png", "inputs.x.data=sets/test_data_set_0", "inputs.x.data='odd/[1] a.png'",
        "+steps.look.data={x: 'own/*/*.png'}", "inputs.x.data=odd",
    ):  # fmt: skip
        recipe = load_recipe(toy.recipe, [override], trust=True)
        (step,), source = recipe.steps, Onnx(toy.folder / "model.onnx", "source", "ab" * 32)
        parts = describe_key(step, {"from": source.digest}, recipe.file.inputs, store)
        work = Work(step, parts, {"from": source}, recipe.file.inputs, lambda *_: None, recipe.name)
        monkeypatch.setattr("ndld_flow.execution.messages._Collector.collect_artifacts", lambda self, held: held)
        order = transfer_files(Task((work,)), store, trust=True).order
        with monkeypatch.context() as moved:
            moved.chdir("/")
            (back,) = read_order(order, store, lambda *_: None).works  # refuses where the key is another
        there = patterns_of(back.step.sample_data.get("data.x", back.inputs["x"].data))
        here = patterns_of(step.sample_data.get("data.x", recipe.file.inputs["x"].data))
        assert [file.label for file in find_files(there)] == [file.label for file in find_files(here)]
        assert all(Path(path).is_relative_to(store.root) for path in there)
