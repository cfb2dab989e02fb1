"""Gates against the history: `speed.latency.median <= history.best + 3 %`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ndld_flow.base.quantities import counted, quantity
from ndld_flow.history.series import read_measurements
from ndld_flow.recipe.gates import HISTORY, Gate
from ndld_flow.records.history import MetricSeries
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_record import GateResult, RunStep
from ndld_flow.runs.metric_history import read_earlier
from ndld_flow.runs.outputs import Outputs


def decide_by_history(
    gate: Gate, outputs: Outputs, recipe: str, steps: Sequence[RunStep], metrics: Mapping[str, Metric]
) -> GateResult:
    """Return the result of a gate that names levels of the history.

    They are those of earlier measurements that may be compared with this run's: on the same kind of machine, by the
    same runtime, with the same inputs. The measurement itself, which earlier runs may show too, is left out. Without a
    good one the gate is undecided: a gate that compares with nothing must not pass. Raises GateError for a missing
    metric.
    """
    name = gate.names[0]
    known = {**metrics, **dict.fromkeys(HISTORY, metrics.get(name, Metric(value=0.0)))}
    measured = gate.decide(known).left if gate.left.names else gate.decide(known).right
    series = _earlier(outputs, recipe, steps, name)
    levels = {"history.best": series.best, "history.last": series.good_level} if series is not None else {}
    missing = [level for level in gate.history if levels.get(level) is None]
    if series is None or missing:
        if series is None:
            absent = "no earlier run has a measurement on this kind of machine with this runtime and these inputs"
        else:
            earlier = counted(len(series.points), "earlier measurement")
            absent = f"none of {earlier} is a baseline ({series.points[-1].doubt})"
        return GateResult(
            gate=gate.text,
            passed=False,
            left=measured,
            right=0.0,
            unit=metrics[name].unit,
            undecided=f"{absent}; the next run is compared with this one",
        )
    unit = metrics[name].unit
    values = {level: Metric(value=value, unit=unit) for level, value in levels.items() if value is not None}
    result = gate.decide({**metrics, **values})
    used = (f"{level} is {quantity(values[level].value, unit)}" for level in dict.fromkeys(gate.history))
    good = sum(not point.doubt for point in series.points)
    note = f"{', '.join(used)}, from {counted(good, 'measurement')} until {series.points[-1].run}"
    return result.model_copy(update={"note": note})


def _earlier(outputs: Outputs, recipe: str, steps: Sequence[RunStep], metric: str) -> MetricSeries | None:
    step = next(step for step in steps if step.name == metric.partition(".")[0])
    alone = step.model_dump(mode="json", include={"name", "record"})
    tree = {"steps": [alone], "gates": [], "passed": True}
    name = metric.partition(".")[2]
    own = next(each for each in read_measurements(tree) if name in each.what.units)
    return read_earlier(outputs, recipe, metric, own)
