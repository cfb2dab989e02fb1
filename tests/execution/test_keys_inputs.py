"""A step's key contains everything that the step reads, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel

from ndld_flow.execution.keys import describe_key, make_key
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.store.found_files import IMAGE_SUFFIXES
from ndld_flow.store.store import Store
from tests.support.recipes import load_recipe
from tests.support.toys import make_toy, started

HEAD = "name: toy\nmodel: model.onnx\n"


def parts(folder: Path, recipe: str) -> KeyParts:
    """Describe the key of a recipe's last step."""
    (folder / "toy.yaml").write_text(recipe)
    loaded = load_recipe(folder / "toy.yaml", trust=True)
    reads = dict.fromkeys(loaded.steps[-1].reads, "ab" * 32)
    return describe_key(loaded.steps[-1], reads, loaded.file.inputs, Store(folder / "store"))


def key(folder: Path, recipe: str) -> str:
    return make_key(parts(folder, recipe))


def draw(path: Path, colour: str) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (16, 16), colour).save(path)


@pytest.fixture
def pictures(in_folder: Path) -> Path:
    make_toy(in_folder)
    for name in ("a.png", "b.png"):
        draw(in_folder / "set" / name, "red")
    return in_folder


INPUTS = "inputs: {x: {shape: [1, 3, 16, 16], data: set, mean: [%s]}}\n"


@pytest.mark.representatives("lint: {}-False-False-False", "find_precision: {}-True-True-True")
@pytest.mark.parametrize(
    ("step", "first", "second", "values"),
    [
        ("fix_shapes: {}", False, False, False),
        ("fix_shapes: {shapes: {x: [1, 3, 16, 16]}}", False, False, False),
        ("lint: {}", False, False, False),
        ("build_engine: {backend: tensorrt_rtx}", False, False, False),
        ("edit: {operations: [set_shapes: {dims: {N: 1}}]}", False, False, False),
        ("sanitize: {}", False, False, False),
        ("run_tool: {command: [tool, $Model, $Output]}", False, False, False),
        ("run_tool: {command: [tool, $Model, $Output, '$Input{x}']}", True, False, True),
        ("profile: {}", True, False, True),
        ("profile: {samples: 2}", True, True, True),
        ("check_accuracy: {candidate: source}", True, True, True),
        ("inspect_activations: {}", True, True, True),
        ("find_precision: {}", True, True, True),
        ("quantize: {}", True, True, True),
        ("quantize: {mode: dynamic}", False, False, False),
    ],
)
def test_pictures_are_in_the_keys_of_steps_that_read_them(
    pictures: Path, step: str, first: bool, second: bool, values: bool
) -> None:
    recipe = f"{HEAD}{INPUTS % 0}steps: {{{step}}}\n"
    before = key(pictures, recipe)
    draw(pictures / "set" / "b.png", "blue")
    assert (key(pictures, recipe) != before) == second
    before = key(pictures, recipe)
    draw(pictures / "set" / "a.png", "blue")
    assert (key(pictures, recipe) != before) == first
    assert (key(pictures, f"{HEAD}{INPUTS % 0.5}steps: {{{step}}}\n") != key(pictures, recipe)) == values


def test_fixing_shapes_is_reused_when_pictures_change(pictures: Path) -> None:
    toy = make_toy(pictures, f"{HEAD}{INPUTS % 0}steps: {{fix_shapes: {{}}}}\n")
    assert started(toy.run()[1]) == ["fix_shapes"]
    draw(pictures / "set" / "a.png", "green")
    draw(pictures / "set" / "c.png", "green")
    assert toy.plan()["fix_shapes"] == ("reused", "")
    toy.recipe.write_text(toy.recipe.read_text().replace("[1, 3, 16, 16]", "[1, 3, 32, 32]"))
    assert toy.plan()["fix_shapes"][0] == "settings changed"


READS = '''
from pathlib import Path
from ndld_flow.plugin import Context, Onnx, Result, Step


class Reads(Step[Onnx, Onnx]):
    """Read what it can get hold of."""

    table: Path | None = None
    """A file, without a mark."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import shutil

        shutil.copy(source.path, out / Onnx.main)
        return Result(f"inputs {sorted(context.inputs)}")
'''


def test_a_step_receives_only_inputs_in_its_key(in_folder: Path) -> None:
    toy = make_toy(in_folder, f"{HEAD}inputs: {{x: {{data: zeros}}}}\nsteps_from: [reads.py]\nsteps: {{reads: {{}}}}\n")
    for uses, expected in (("False", "inputs []"), ("True", "inputs ['x']")):
        (in_folder / "reads.py").write_text(READS.replace("    table", f"    uses_inputs = {uses}\n    table"))
        _, events = toy.run()
        assert [event.summary for event in events if event.event == "step_finished"] == [expected]


def test_an_unmarked_path_counts_by_its_contents(in_folder: Path) -> None:
    make_toy(in_folder)
    (in_folder / "reads.py").write_text(READS)
    recipe = f"{HEAD}steps_from: [reads.py]\nsteps: {{reads: {{table: table.csv}}}}\n"
    missing = key(in_folder, recipe)
    (in_folder / "table.csv").write_text("1")
    before = key(in_folder, recipe)
    (in_folder / "table.csv").write_text("2")
    assert len({missing, before, key(in_folder, recipe)}) == 3


def test_files_in_options_of_providers_count_by_their_contents(in_folder: Path) -> None:
    make_toy(in_folder)
    options = "{trt_extra_plugin_lib_paths: 'a.so;b.so', device_id: 0}"
    recipe = f"{HEAD}steps: {{profile: {{provider: tensorrt, provider_options: {options}}}}}\n"
    (in_folder / "a.so").write_bytes(b"a")
    found = set()
    for contents in (b"1", b"2"):
        (in_folder / "b.so").write_bytes(contents)
        found.add(key(in_folder, recipe))
    assert len(found) == 2


def test_files_of_one_name_in_two_folders_are_distinguished(in_folder: Path) -> None:
    make_toy(in_folder)
    for name in ("a", "b"):
        (in_folder / name).mkdir()
        (in_folder / name / "conf.txt").write_text(name)
    recipe = f"{HEAD}steps: {{run_tool: {{command: [tool, a/conf.txt, b/conf.txt, $Model, $Output]}}}}\n"
    before = key(in_folder, recipe)
    for name in ("a", "b"):
        (in_folder / name / "conf.txt").write_text("changed")
        assert key(in_folder, recipe) != before, name
        (in_folder / name / "conf.txt").write_text(name)
    assert key(in_folder, recipe) == before
    shutil.copy(in_folder / "a" / "conf.txt", in_folder / "one.txt")
    shutil.copy(in_folder / "b" / "conf.txt", in_folder / "two.txt")
    named = f"{HEAD}steps: {{run_tool: {{command: [tool, '$File{{one.txt}}', $Model, $Output], files: [%s]}}}}\n"
    before = key(in_folder, named % "one.txt, two.txt")
    (in_folder / "one.txt").write_text("b")
    (in_folder / "two.txt").write_text("a")
    assert key(in_folder, named % "two.txt, one.txt") != before


def test_every_path_of_a_built_in_step_is_marked() -> None:
    """Its contents are in the key; or it names code by a folder, whose version is in the key."""
    classes: dict[str, type[BaseModel]] = {found.name: found.cls for found in StepTypes()}
    classes |= {word: operation for word in operation_names() if (operation := find_operation(word))}
    for name, settings in classes.items():
        for setting, info in settings.model_fields.items():
            if "Path" in str(info.annotation):
                assert "DataFile" in str(info.metadata) or "RunsCode" in str(info.metadata), f"{name}.{setting}"


def test_a_single_file_counts_by_its_contents_alone(in_folder: Path) -> None:
    make_toy(in_folder)
    np.save(in_folder / "one.npy", np.zeros((1, 3, 16, 16), np.float32))
    shutil.copy("one.npy", "two.npy")
    recipe = f"{HEAD}inputs: {{x: {{data: %s}}}}\nsteps: {{profile: {{}}}}\n"
    assert key(in_folder, recipe % "one.npy") == key(in_folder, recipe % "two.npy")


def test_settings_of_pictures_are_in_keys_where_they_change_the_values(pictures: Path) -> None:
    recipe = HEAD + "inputs: {x: {shape: [1, 3, 16, 16], data: set%s}}\nsteps: {profile: {}}\n"
    plain = key(pictures, recipe % "")
    assert key(pictures, recipe % ", resize: stretch, layout: NCHW, color: null") == plain
    settings = ("resize: crop", "resize: letterbox", "resize: letterbox, pad: [0]", "color: bgr", "scale: 1.0")
    assert len({plain, *(key(pictures, recipe % f", {setting}") for setting in settings)}) == len(settings) + 1


@pytest.mark.representatives(".bmp", ".gif")
@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_the_rotation_by_exif_is_in_the_keys_of_images(suffix: str, pictures: Path) -> None:
    """A store may have results of a version that did not rotate them; a PNG may have any suffix."""
    path = Path(f"a{suffix}")
    path.write_bytes(b"the same")
    read = parts(pictures, f"{HEAD}inputs: {{x: {{data: {path}}}}}\nsteps: {{profile: {{}}}}\n").reads["inputs.x"]
    assert read != Store(pictures / "store").digests.digest(path)


def test_inputs_with_only_shapes_have_no_values() -> None:
    spec = InputSpec(min=(1,), opt=(2,), max=(3,), data="x.png", mean=(0.5,), every=2)
    assert spec.shapes == InputSpec(min=(1,), opt=(2,), max=(3,))
