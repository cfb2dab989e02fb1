"""A program that uses `ndld_flow.api`, for checkers of types: it reads nothing untyped, and its mistakes are found.

It is never run. A mistake that the checker no longer finds is an unused `type: ignore`, which is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, assert_type

from pydantic import JsonValue

from ndld_flow import api
from ndld_flow.compare.comment_run import Commented
from ndld_flow.drawing.graph import Family
from ndld_flow.records.comparison import ComparisonGate, Verdict
from ndld_flow.records.inspection import InspectedNode
from ndld_flow.records.measurement import Metric
from ndld_flow.records.model_diff import NodesDiff
from ndld_flow.runner.plan import Reason
from ndld_flow.step import Step

finished = api.run("recipe.yaml", ["steps.speed.passes=20"], trust=True)
metric = finished.metrics["speed.latency.median"]
assert_type(metric.value, float)
assert_type(metric.unit, str)
assert_type(finished.artifacts["half"], str)
assert_type(finished.report, str)
assert_type(finished.passed, bool)
assert_type(finished.verdict, tuple[str, ...])
if isinstance(finished, api.SweepFinished):
    assert_type(finished.best, int | None)
else:
    assert_type(finished.gates[0].passed, bool)
assert_type(api.sweep({"name": "r"}).best, int | None)

planned = api.plan(Path("recipe.yaml"))
if isinstance(planned, list):
    assert_type(planned[0].reason, Reason)
    assert_type(planned[0].step.name, str)
else:
    assert_type(planned.points[0].values, Mapping[str, JsonValue])

compared = api.compare(["a", "b"], rules=api.Rules(threshold=0.05))
assert_type(compared.comparison.profiles[0].verdicts[0].verdict, Verdict)
assert_type(compared.comparison.gates, tuple[ComparisonGate, ...])
assert_type(compared.report, Path)
assert_type(api.diff("a.onnx", "b.onnx").nodes, NodesDiff)
profiled = api.profile("model.onnx")
assert_type(profiled.profile.layers[0].name, str)
assert_type(profiled.triage().top[0].median_ms, float)
assert_type(api.noise().threshold, float)
assert_type(
    api.inspect("m.onnx", api.Query(nodes=api.NodeSelect(op_type=("Conv",)))).nodes, tuple[InspectedNode, ...] | None
)
assert_type(api.draw("m.onnx", look=api.Look(scale=2.0)), Path)
assert_type(api.report("run"), Path)
assert_type(api.compose("recipe.yaml"), str)
assert_type(api.digest("recipe.yaml"), str)
assert_type(api.comment("run", post=False), Commented)
assert_type(api.runs()[0].started_at, datetime)
assert_type(api.tag("run", "name"), Path)
assert_type(api.steps()[0].cls, type[Step[Any, Any]])
assert_type(api.ops("Clip")[0].family, Family)
assert_type(api.schema(verb="plan"), dict[str, Any])
assert_type(api.verify().damaged, tuple[str, ...])
assert_type(api.gc(dry_run=True).freed_bytes, int)
assert_type(api.doctor()[0].state, Literal["ok", "absent", "broken"])
assert_type(api.init("m.onnx", options=api.RecipeOptions(precision="fp16")).trial.pass_ms, float)
assert_type(api.init_example("quickstart"), Path)


def listen(event: api.Event) -> None:
    if event.event == "step_finished":
        assert_type(event.metrics, dict[str, Metric])


try:
    api.run("recipe.yaml", listener=listen)
except api.RecipeError as error:
    assert_type(error.problems[0].hint, str)
except api.NdldFlowError as error:
    assert_type(error.step, str)
    assert_type(error.exit_code, int)

api.run(3)  # type: ignore[arg-type]
api.run("r.yaml", no_such=1)  # type: ignore[call-arg]
api.no_such_function()  # type: ignore[attr-defined]
unknown = api.run("r.yaml").no_such_field  # type: ignore[union-attr]
api.compare(["a"], rules=api.Rules(no_such=1))  # type: ignore[call-arg]
