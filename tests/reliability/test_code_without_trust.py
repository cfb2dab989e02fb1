"""Untrusted recipes run no code, whatever files they name and whatever files are next to them.

Every setting of every step that takes a path is given files that would leave a mark when they are run, and an audit
hook hears what Python does meanwhile: a setting that runs code and is not marked `RunsCode` is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RecipeError
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.step_types import StepType
from ndld_flow.recipe.validate import Checker
from ndld_flow.step import RunsCode, marked_settings
from tests.steps.test_steps_contract import TYPES, recipe_for
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.tally import Tally

Attack = Callable[[str], Tally]

SHADOWED = (
    "json",
    "pip",
    "sitecustomize",
    "usercustomize",
    "onnx",
    "onnxruntime",
    "polygraphy",
    "numpy",
    "hydra_plugins",
)
"""Modules that a file beside a recipe must not stand in for."""


@dataclass
class Ears:
    """Audit events that concern hostile files."""

    folder: Path | None = None
    """Where the hostile files are; None while nobody listens."""
    heard: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event not in ("exec", "import", "ctypes.dlopen", "subprocess.Popen", "os.exec"):
            return
        result = [arguments[0].co_filename] if event == "exec" else arguments[:2]
        if event == "subprocess.Popen":
            result = [arguments[0], *arguments[1][:1]]  # a model may be an argument, and never the program
        if str(self.folder / "evil") in " ".join(map(str, result)):
            self.heard.append(f"{event} {result}")


EARS = Ears()
sys.addaudithook(EARS)  # for good: hooks cannot be taken away


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[list[str]]:
    EARS.folder, EARS.heard = folder, []
    try:
        yield EARS.heard
    finally:
        EARS.folder = None


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and, in `evil`, files that leave a mark in `marks` when they are run."""
    folder = tmp_path_factory.mktemp("hostile")
    evil, marks = folder / "evil", folder / "marks"
    evil.mkdir()
    marks.mkdir()
    make_cnn(folder / "model.onnx")
    for word in ("code.py", "code.txt"):
        (evil / word).write_text(f"open({str(marks / word)!r}, 'w')\n")
    (evil / "program").write_text(f"#!/bin/sh\ntouch {marks / 'program'}\n")
    (evil / "program").chmod(0o755)
    np.save(evil / "pickle.npy", np.array([_Leaves(marks / "pickle")], dtype=object), allow_pickle=True)
    if shutil.which("gcc"):
        source = evil / "library.c"
        source.write_text(
            f'#include <stdio.h>\n__attribute__((constructor)) void c(void) {{ fopen("{marks / "library"}", "w"); }}\n'
        )
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", evil / "library.so", source], check=True)
    else:
        (evil / "library.so").write_bytes(b"\x7fELF")
    return folder


class _Leaves:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


FILES = ("code.py", "library.so", "program", "pickle.npy")


def forms_of(path: str) -> list[Any]:
    """A path in the forms that settings have."""
    return [path, [path], {"x": path}, {"python": path}, {"trt_extra_plugin_lib_paths": path}, {"file": path},
            [{"run_python": {"file": path}}], [{"apply_rules": {"file": path}}]]  # fmt: skip


def accepted(step_type: StepType, least: dict[str, Any], name: str, path: str) -> dict[str, Any] | None:
    """Settings of a step that name a file and are well-formed; None where this one names none."""
    for form in forms_of(path):
        settings = {**least, name: form}
        with contextlib.suppress(ValidationError):
            step_type.cls.model_validate_json(
                json.dumps({key: value for key, value in settings.items() if key != "step"})
            )
            return settings
    return None


def check(recipe: dict[str, Any], path: Path) -> Recipe | None:
    """The recipe as it is checked without trust; None where it is refused."""
    try:
        return Checker(path).check(recipe, lambda dotted: dotted)
    except RecipeError:
        return None


@pytest.mark.representatives("profile", "export_cpp", "check_accuracy", "build_engine")
@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, id=name, marks=pytest.mark.thorough if name == "compare_profiles" else ())
        for name, found in TYPES.items()
    ],
)
def test_no_setting_runs_the_code_it_names(
    found: StepType, hostile: Path, tally: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted steps are checked for obstacles, and run where a setting is a file's path."""
    count = tally("code without trust")
    monkeypatch.chdir(hostile)
    path = hostile / "recipe.yaml"
    recipe = recipe_for(found)
    for name, info in found.cls.model_fields.items():
        for file in FILES:
            settings = accepted(found, recipe["steps"]["tested"], name, f"evil/{file}") if name != "budget" else None
            if settings is None:
                continue
            tried = {**recipe, "steps": {**recipe["steps"], "tested": settings}}
            with listening(hostile) as heard:
                sound = check(tried, path)
                if sound is not None:
                    sound.steps[-1].step.foresee()
                    if "Path" in str(info.annotation):
                        path.write_text(yaml.safe_dump(tried))
                        with contextlib.suppress(NdldFlowError):
                            api.run(path, outputs=hostile / "outputs")
            assert heard == [], (name, file)
            assert not list((hostile / "marks").iterdir()), (name, file)
            if sound is None:
                count.refused += 1
            else:
                count.survived += 1


def test_settings_that_run_code_are_known() -> None:
    """Add a new one here and to SECURITY.md."""
    marked = {f"{item.name}.{name}" for item in TYPES.values() for name in marked_settings(item.cls, RunsCode)}
    assert marked == {
        "apply_precision.custom_ops",
        "build_engine.library",
        "build_engine.plugins",
        "check_accuracy.custom_ops",
        "check_accuracy.environment",
        "check_accuracy.loader",
        "check_accuracy.metric",
        "check_accuracy.provider_options",
        "check_accuracy.reference_environment",
        "constrain_precision.custom_ops",
        "convert_fp16.custom_ops",
        "edit.custom_ops",
        "export_cpp.custom_ops",
        "export_pytorch.loader",
        "find_precision.custom_ops",
        "find_precision.loader",
        "fix_shapes.custom_ops",
        "inspect_activations.custom_ops",
        "inspect_activations.loader",
        "inspect_activations.provider_options",
        "lint.custom_ops",
        "profile.custom_ops",
        "profile.environment",
        "profile.lean_runtime",
        "profile.library",
        "profile.plugins",
        "profile.provider_library",
        "profile.provider_options",
        "profile.runtime_cache",
        "profile.trust_engine",
        "quantize.custom_ops",
        "quantize.loader",
        "render_images.custom_ops",
        "render_images.loader",
        "render_images.provider_options",
        "run_tool.command",
        "run_tool.custom_ops",
        "sanitize.custom_ops",
        "smooth_activations.custom_ops",
        "smooth_activations.loader",
    }


QUICK = {"polygraphy": "never"}


def test_the_security_notes_exist() -> None:
    """The files that SECURITY.md names, and each setting that runs code."""
    root = Path(__file__).parents[2]
    text = (root / "SECURITY.md").read_text()
    assert all((root / name).exists() for name in re.findall(r"tests/[\w/]+\.py", text))
    for item in TYPES.values():
        assert all(name in text for name in marked_settings(item.cls, RunsCode))


RUNS: dict[str, dict[str, Any]] = {
    "a pickle as values": {"inputs": {"x": {"shape": [1, 3, 16, 16], "data": "evil/pickle.npy"}},
                           "steps": {"agree": {"step": "check_accuracy", "candidate": "source"}}},
    "a library as an engine": {"steps": {"profile": {"backend": "tensorrt_rtx", "engine": "evil/library.so"}}},
    "a library as a model": {"model": "evil/library.so", "steps": {"lint": QUICK}},
    "a script as a model": {"model": "evil/code.py", "steps": {"lint": QUICK}},
    "a recipe of Hydra": {"defaults": [{"override hydra/launcher": "evil"}], "steps": {"lint": QUICK}},
    "another place for configs": {"hydra": {"searchpath": ["pkg://evil"]}, "steps": {"lint": QUICK}},
    "an object to make": {"inputs": {"_target_": "os.mkdir", "_args_": ["marks/t"]}, "steps": {"lint": QUICK}},
    "templates of fsspec": {"model": {"source": "reference://m::file://evil/refs.json", "sha256": "0" * 64},
                            "steps": {"lint": QUICK}},
}  # fmt: skip


@pytest.mark.representatives("templates of fsspec", "a library as an engine")
@pytest.mark.parametrize("what", RUNS)
def test_no_recipe_runs_code(what: str, hostile: Path, tally: Attack) -> None:
    count = tally("code without trust")
    recipe = {"model": "model.onnx", **RUNS[what]}
    (hostile / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with listening(hostile) as heard:
        done = ndld_flow("run", "recipe.yaml", cwd=hostile)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert heard == []
    assert not list((hostile / "marks").iterdir())
    if done.returncode == 2:
        count.refused += 1
    else:
        count.survived += 1


def test_tags_of_yaml_make_no_objects(hostile: Path, tally: Attack) -> None:
    count = tally("code without trust")
    text = f"model: !!python/object/apply:os.mkdir [{hostile / 'marks' / 'tag'}]\n"
    (hostile / "recipe.yaml").write_text(text)
    assert ndld_flow("run", "recipe.yaml", cwd=hostile).returncode == 2
    assert not list((hostile / "marks").iterdir())
    count.refused += 1


@pytest.mark.slow
def test_nothing_is_imported_from_the_current_directory(hostile: Path, tally: Attack, tmp_path: Path) -> None:
    """As a process of its own, with its workers: modules and programs beside the recipe are not taken for others."""
    count = tally("code without trust")
    make_cnn(tmp_path / "model.onnx")
    marks = hostile / "marks"
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w')\n")
    for name in ("nvidia-smi", "trtexec", "python", "python3"):
        shutil.copy(hostile / "evil" / "program", tmp_path / name)
    (tmp_path / "recipe.yaml").write_text("model: model.onnx\nsteps: {lint: {polygraphy: never}}\n")
    clean = {key: value for key, value in os.environ.items() if key != "NDLD_FLOW_IN_PROCESS"}
    command = [sys.executable, "-P", "-m", "ndld_flow", "run", "recipe.yaml"]
    environment = {**clean, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(marks.iterdir())
    count.survived += 1


def test_environment_variables_are_read_only_for_trusted_recipes(
    hostile: Path, tally: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger could put a token into the address of a model, or into a report."""
    monkeypatch.setenv("SOME_TOKEN", "canary-of-the-environment")
    count = tally("secrets")
    for text in (
        "${oc.env:SOME_TOKEN}",
        "${oc.decode:'${oc.env:SOME_TOKEN}'}",
        "${oc.decode:'\\${oc.env:SOME_TOKEN}'}",
    ):
        recipe = {"model": "model.onnx", "description": text, "steps": {"lint": QUICK}}
        (hostile / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        done = ndld_flow("run", "recipe.yaml", cwd=hostile)
        assert "canary" not in done.stdout + done.stderr
        assert done.returncode == 2, text
        assert "SOME_TOKEN" in done.stderr and "--trust" in done.stderr
        count.refused += 1
