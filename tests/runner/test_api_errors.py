"""Every function of `ndld_flow.api`, called with hostile arguments, returns or raises an NdldFlowError."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.cli.public_functions import public
from ndld_flow.drawing.graph import Look, Reading
from ndld_flow.execution.events import Notice
from ndld_flow.execution.request import Placement
from ndld_flow.graph.inspect_model import Query
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.recipe.write_recipe import RecipeOptions
from tests.support.message_files import CheckMessage
from tests.support.toys import make_toy

if TYPE_CHECKING:
    from ndld_flow.execution.events import Event

FUNCTIONS: Mapping[str, Callable[..., object]] = {
    name: value
    for name in dir(api)
    if inspect.isfunction(value := getattr(api, name)) and hasattr(value, "__wrapped__")
}

QUICK = ["passes=2", "duration=0", "warmup=0", "warmup_passes=1", "runs=1", "stable=0"]
USUAL: Mapping[str, Any] = {
    "AnyRecipe": "toy.yaml",
    "recipe": "toy",
    "run": "toy",
    "subject": "toy",
    "subjects": ["toy", "toy"],
    "models": ["torn.onnx", "model.onnx"],
    "model": "model.onnx",
    "before": "model.onnx",
    "after": "model.onnx",
    "finding": "more_threads_than_cpus",
    "metric": "first.length",
    "note": "larger",
    "name": "a",
    "target": "ssh://127.0.0.1:1",
    "result": [],
}
"""Type or name of a required parameter -> a value that is valid and cheap, or refused at once."""
CHEAP: Mapping[str, Any] = {
    "run": "toy",
    "runs": ["nowhere"],
    "trust": True,
    "post": False,
    "show_only": True,
    "dry_run": True,
    "settings": QUICK,
    "comparisons": 3,
    "verb": "plan",
    "library": "nowhere",
    "search": "relu",
}
"""Parameter with a default -> a value with which the function takes no time, and changes nothing."""


def usual(name: str) -> dict[str, Any]:
    """Return arguments of a function. A model that it would measure is broken."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    required = [item for item, described in parameters.items() if described.default is described.empty]
    values = {item: USUAL["AnyRecipe" if parameters[item].annotation == "AnyRecipe" else item] for item in required}
    if "model" in values and not {"listener", "ask"}.isdisjoint(parameters):
        values["model"] = "torn.onnx"
    return values | {parameter: CHEAP[parameter] for parameter in parameters if parameter in CHEAP}


FOREIGN = (None, 3, -1, 2.5, True, b"x", object(), ["x", 3], {"a": 1}, {1: 2}, iter("ab"), float("nan"))
"""Values of other types."""
TEXTS = (
    "",
    ".",
    " ",
    "nowhere",
    "a\0b",
    "\udcff",
    "x" * 5000,
    "/dev/null",
    "/dev/null/inside",
    "/proc/nowhere",
    "torn.onnx",
    "noise.bin",
    "folder",
    "list.yaml",
    "\x1b[2J",
    "%s{}",
    "*",
    "[",
    "toy#17",
    "toy:nothing",
    "https://",
    "s3://nowhere/x",
)
"""Names that name nothing, or something else."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a finished run and broken files."""
    folder = tmp_path_factory.mktemp("api")
    make_toy(folder)
    (folder / "folder").mkdir()
    (folder / "torn.onnx").write_bytes((folder / "model.onnx").read_bytes()[:200])
    (folder / "noise.bin").write_bytes(bytes(range(256)) * 4)
    (folder / "list.yaml").write_text("- a\n- {b: [c\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.run("toy.yaml", trust=True)
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    for variable in os.environ:
        if variable.startswith(("GITHUB_", "GITLAB_", "CI")):
            monkeypatch.delenv(variable)
    return place


def attempt(name: str, arguments: Mapping[str, Any]) -> str:
    """Call a function; return what is wrong with how it ended."""
    try:
        FUNCTIONS[name](**arguments)
    except NdldFlowError as error:
        if not str(error).strip() or error.exit_code not in {2, 4, 5}:
            return f"{name}({arguments!r:.200}): exit code {error.exit_code}: {error!s:.200}"
    except Exception as error:
        return f"{name}({arguments!r:.200}): {type(error).__name__}: {error!s:.200}"
    return ""


@pytest.mark.representatives("ops", "run", "layers")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_other_types_are_refused(name: str, here: Path) -> None:
    troubles = []
    for parameter in inspect.signature(FUNCTIONS[name]).parameters:
        for value in FOREIGN:
            troubles.append(attempt(name, {**usual(name), parameter: value}))
    assert not any(troubles), "\n".join(filter(None, troubles))


@pytest.mark.representatives("gc", "tag")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name == "doctor")
            + [pytest.mark.thorough] * (name in ("run", "sweep")),  # `plan` reads the same
        )
        for name in FUNCTIONS
    ],
)
def test_names_of_nothing_are_refused(name: str, here: Path) -> None:
    troubles = []
    for parameter, described in inspect.signature(FUNCTIONS[name]).parameters.items():
        for text in set(TEXTS) - ({"."} if parameter == "outputs" else set()):
            if "str" in described.annotation.split(" | ") or parameter == "recipe":
                troubles.append(attempt(name, {**usual(name), parameter: text}))
            elif described.annotation.startswith(("Sequence", "Collection")):
                troubles.append(attempt(name, {**usual(name), parameter: [text]}))
    assert not any(troubles), "\n".join(filter(None, troubles))


def test_a_missing_or_unknown_argument_is_refused(here: Path, check_message: CheckMessage) -> None:
    for name, function in FUNCTIONS.items():
        with pytest.raises(RequestError, match=name):
            function(nonsense=1)
    with pytest.raises(RequestError) as caught:
        FUNCTIONS["run"]()
    check_message(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("compare", {"subjects": ["a", "b"], "rules": Rules(threshold="x")}),  # type: ignore[arg-type]
        ("compare", {"subjects": ["a", "b"], "rules": Rules(allow=3)}),  # type: ignore[arg-type]
        ("inspect", {"model": "model.onnx", "query": Query(nodes="Conv")}),  # type: ignore[arg-type]
        ("inspect", {"model": "model.onnx", "query": Query(group_by="x")}),  # type: ignore[arg-type]
        ("draw", {"model": "model.onnx", "look": Look(scale="big")}),  # type: ignore[arg-type]
        ("draw", {"model": "model.onnx", "reading": Reading(depth=None)}),  # type: ignore[arg-type]
        ("run", {"recipe": "toy.yaml", "place": Placement(jobs="all")}),  # type: ignore[arg-type]
        ("init", {"model": "model.onnx", "options": RecipeOptions(shapes={1: "x"})}),  # type: ignore[dict-item]
    ],
)
def test_values_of_other_types_inside_an_argument_are_refused(
    name: str, arguments: dict[str, Any], here: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        FUNCTIONS[name](**arguments)
    check_message(caught.value)


def test_the_message_names_the_function_the_argument_and_the_value() -> None:
    with pytest.raises(RequestError) as caught:
        FUNCTIONS["run"](recipe=3)
    assert re.match(r"run: recipe .*\b3 \(int\)\.", str(caught.value))


@public
def measured(
    share: float,
    kind: Literal["fast", "slow"] = "fast",
    counts: Mapping[str, int] | None = None,
    event: Event | None = None,
) -> float:
    """A function with types that none of ours has."""
    return share


def test_any_annotation_is_checked() -> None:
    assert measured(0.5, kind="slow", counts={"a": 1}, event=Notice(text="x")) == 0.5
    wrong: Sequence[dict[str, Any]] = ({"kind": "other"}, {"counts": {"a": "1"}}, {"event": "x"}, {"share": "0.5"})
    for arguments in wrong:
        with pytest.raises(RequestError, match=f"measured: {next(iter(arguments))} must be"):
            measured(**{"share": 0.5, **arguments})


KEYS = (
    "name",
    "model",
    "models",
    "inputs",
    "steps",
    "gates",
    "sweep",
    "export",
    "steps_from",
    "defaults",
    "hydra",
    "x",
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=True)
    | st.sampled_from(["toy", "model.onnx", "${x}", "${oc.env:HOME}", "a=b", "", "lint", "stamp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "step", "from", "x", "", "lint"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_malformed_recipes_are_refused(changed: dict[str, Any], here: Path) -> None:
    recipe = {"name": "toy", "model": "model.onnx", "steps": {"lint": {}}, **changed}
    trouble = attempt("plan", {"recipe": recipe})
    assert not trouble


def test_an_error_of_the_callers_own_function_passes(here: Path) -> None:
    def listen(event: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        api.run("toy.yaml", trust=True, listener=listen)
