"""The types that a program sees: no result of `ndld_flow.api` is untyped, as mypy finds in strict mode."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

from ndld_flow import api
from ndld_flow.base.lazy_names import names_for_checkers

PROGRAM = """\
from pathlib import Path

from ndld_flow import api

finished = api.run("recipe.yaml", ["steps.speed.passes=20"], trust=True)
metric = finished.metrics["speed.latency.median"]
reveal_type(metric.value)
reveal_type(metric.unit)
reveal_type(finished.artifacts["half"])
reveal_type(finished.report)
reveal_type(finished.passed)
reveal_type(finished.verdict)
if isinstance(finished, api.SweepFinished):
    reveal_type(finished.best)
else:
    reveal_type(finished.gates[0].passed)
reveal_type(api.sweep({"name": "r"}).best)

planned = api.plan(Path("recipe.yaml"))
if isinstance(planned, list):
    reveal_type(planned[0].reason)
    reveal_type(planned[0].step.name)
else:
    reveal_type(planned.points[0].values)

compared = api.compare(["a", "b"], rules=api.Rules(threshold=0.05))
reveal_type(compared.comparison.profiles[0].verdicts[0].verdict)
reveal_type(compared.comparison.gates)
reveal_type(compared.report)
reveal_type(api.diff("a.onnx", "b.onnx").nodes)
profiled = api.profile("model.onnx")
reveal_type(profiled.profile.layers[0].name)
reveal_type(profiled.triage().top[0].median_ms)
reveal_type(api.noise().threshold)
reveal_type(api.inspect("m.onnx", api.Query(nodes=api.NodeSelect(op_type=("Conv",)))).nodes)
reveal_type(api.draw("m.onnx", look=api.Look(scale=2.0)))
reveal_type(api.report("run"))
reveal_type(api.compose("recipe.yaml"))
reveal_type(api.digest("recipe.yaml"))
reveal_type(api.comment("run", post=False))
reveal_type(api.runs()[0].started_at)
reveal_type(api.tag("run", "name"))
reveal_type(api.steps()[0].cls)
reveal_type(api.ops("Clip")[0].family)
reveal_type(api.schema(verb="plan"))
reveal_type(api.verify().damaged)
reveal_type(api.gc(dry_run=True).freed_bytes)
reveal_type(api.doctor()[0].state)
reveal_type(api.init("m.onnx", options=api.RecipeOptions(precision="fp16")).trial.pass_ms)
reveal_type(api.init_example("quickstart"))


def listen(event: api.Event) -> None:
    if event.event == "step_finished":
        reveal_type(event.metrics)


try:
    api.run("recipe.yaml", listener=listen)
except api.RecipeError as error:
    reveal_type(error.problems[0].hint)
except api.NdldFlowError as error:
    reveal_type(error.step)
    reveal_type(error.exit_code)
"""


MISTAKES = (
    "api.run(3)",
    'api.run("r.yaml", no_such=1)',
    "api.no_such_function()",
    'api.run("r.yaml").no_such_field',
    'api.compare(["a"], rules=api.Rules(no_such=1))',
    "from ndld_flow.plugin import NoSuchName",
)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy finds in a program, and in `mistakes.py`; it reads the package once for both."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "mistakes.py").write_text("\n".join(["from ndld_flow import api", *MISTAKES, ""]))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "program.py", "mistakes.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.thorough
def test_a_strict_program_sees_no_untyped_value(printed: str) -> None:
    assert {line.partition(":")[0] for line in printed.splitlines() if ": error: " in line} == {"mistakes.py"}
    revealed = [text.replace("builtins.", "") for text in re.findall(r'Revealed type is "(.*)"', printed)]
    assert len(revealed) == PROGRAM.count("reveal_type(")
    assert not [text for text in revealed if text in {"Any", "object"} or "<nothing>" in text]
    assert revealed[:5] == ["float", "str", "str", "str", "bool"]


@pytest.mark.thorough
def test_a_strict_program_with_mistakes_is_refused(printed: str) -> None:
    lines = {int(line) for line in re.findall(r"mistakes\.py:(\d+): error", printed)}
    assert lines >= set(range(2, 2 + len(MISTAKES))), printed


def test_the_names_of_the_module_are_those_that_checkers_of_types_see() -> None:
    own = {
        name
        for name, value in vars(api).items()
        if getattr(value, "__module__", "") == api.__name__ and name != "__getattr__"
    }
    assert sorted(api.__all__) == sorted({*names_for_checkers(api.__name__), *own})
    assert all(getattr(api, name) is not None for name in api.__all__)


@pytest.mark.parametrize("name", [name for name in api.__all__ if inspect.isfunction(getattr(api, name))])
def test_every_function_is_documented_and_annotated(name: str) -> None:
    function = getattr(api, name)
    assert inspect.getdoc(function)
    assert hasattr(function, "__wrapped__"), "not public"
    returned = inspect.signature(function).return_annotation
    assert returned and ("Any" not in returned or name == "schema")  # JSON


def test_importing_the_api_imports_no_library() -> None:
    code = (
        "import sys; from ndld_flow import api\n"
        "print({'click', 'hydra', 'numpy', 'onnx', 'onnxruntime', 'pandas', 'pydantic', 'yaml'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
