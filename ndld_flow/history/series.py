"""Read what a run's record says of metrics: values, the series to which they belong, and what they depend on.

A series holds measurements that may be compared: of one metric of one step of a recipe, on one kind of machine, by one
runtime, with the same inputs. What else may differ between two measurements is a *fact*, and a possible cause of a
difference: settings, models, libraries, the driver, the state of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic_core import to_json

from ndld_flow.records.document import Tree
from ndld_flow.records.history import Cause

_MEANING = ("backend", "provider", "device", "gpu", "streams", "queue", "steps", "optimization_profile", "transfers")
"""Settings that change what is measured, not how fast it is."""
_PLAN = ("runs", "passes", "duration", "stable", "budget", "layer_passes", "sample_gpu", "hide_non_compute", "reuse_on")
"""Settings of the duration of a measurement, which do not change its result."""
_DRIVER = re.compile(r", driver ([^,;]+)$")
_LONGEST = 300
_DIGITS = 12
ANY_MACHINE = "any machine"


@dataclass(frozen=True)
class MeasuredStep:
    """The part of a step's measurements that most runs of a recipe share."""

    step: str
    subject: str
    """JSON of `Subject`: equal for measurements that belong to one series."""
    exact: bool
    """Its results have no noise."""
    units: dict[str, str]
    """Name of each metric -> its unit."""

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return name -> the place of the metric's value in `Measured.values`."""
        return {name: index for index, name in enumerate(self.units)}


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of one step in one run."""

    what: MeasuredStep
    measurement: str
    """Equal in all runs that show the same measurement."""
    doubt: str
    """The reason why it is no baseline; empty for a good measurement."""
    disturbed: bool
    """Others used the machine: the values are not evidence of a level."""
    values: Sequence[float]
    """The metrics, in the order of their units."""


@dataclass(frozen=True)
class Subject:
    """What all measurements of a series have in common."""

    type: str
    """The step's type."""
    machine: str
    """The kind of machine, or `any machine`."""
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @classmethod
    def read(cls, text: str) -> Subject:
        """Return the subject of its JSON."""
        return cls(**json.loads(text))

    @property
    def described(self) -> str:
        """Return `onnxruntime, cpu, batch 8`: without what is usual."""
        values = (
            str(value) if name in ("backend", "provider") else f"{name} {value}"
            for name, value in self.settings.items()
            if value and (name, value) != ("streams", 1)
        )
        return ", ".join(values)


def read_measurements(run: Tree) -> list[Measured]:
    """Return the metrics of a run's finished steps. Raises the errors of `DAMAGE` for a damaged record."""
    doubt = _doubt_of_run(run)
    return [
        Measured(
            what=MeasuredStep(
                step=name,
                subject=to_json(_subject(record)).decode(),
                exact=not record["parts"]["machine"],
                units={metric: str(each.get("unit", "")) for metric, each in record["metrics"].items()},
            ),
            measurement=f"{record['key'][:_DIGITS]} {record['started_at']}",
            doubt=_disturbance(record) or _doubt_of_step(record) or doubt,
            disturbed=bool(_disturbance(record)),
            values=[float(each["value"]) for each in record["metrics"].values()],
        )
        for name, record in _records(run).items()
        if record["metrics"]
    ]


def read_facts(run: Tree, step: str) -> dict[str, str]:
    """Return everything that a step's result depends on, by name. Raises as `read_measurements` does."""
    return dict(_facts(step, run, _records(run)))


def _records(run: Tree) -> dict[str, Tree]:
    return {step["name"]: step["record"] for step in run["steps"] if step.get("record")}


def _doubt_of_run(run: Tree) -> str:
    """Return the reason why no measurement of a run is a baseline: a failure may be why its model is fast."""
    for step in run["steps"]:
        record = step.get("record")
        if record is not None and not record["passed"]:
            return f"{step['name']} {'could not be decided' if record.get('inconclusive') else 'failed'}"
    failed = next((gate["gate"] for gate in run["gates"] if not gate["passed"] and not gate.get("undecided")), "")
    if failed:
        return f"the gate {failed} failed"
    return "" if run["passed"] or run.get("outcome") == "inconclusive" else "the run did not finish"


def _doubt_of_step(record: Tree) -> str:
    if record["passed"]:
        return ""
    return "its check could not be decided" if record.get("inconclusive") else "its check failed"


def _disturbance(record: Tree) -> str:
    """Return how others disturbed a measurement."""
    if record["parts"]["machine"] and record.get("concurrent"):
        return f"measured beside {record['concurrent'][0]}"
    if record.get("shared_device"):
        return f"the device was shared: {record['shared_device'][0]}"
    return ""


def _subject(record: Tree) -> dict[str, Any]:
    parts = record["parts"]
    settings = {name: parts["settings"][name] for name in _MEANING if parts["settings"].get(name) is not None}
    items, passes = (record["metrics"].get(f"throughput.{name}", {}).get("value") for name in ("items", "median"))
    if items and passes:  # also the batch that an earlier step has set
        settings["batch"] = round(items / passes)
    return {
        "type": parts["step"],
        "machine": kind_of_machine(parts["machine"]),
        "settings": settings,
        "inputs": parts["inputs"],
    }


def kind_of_machine(machine: str) -> str:
    """Return the kind in a machine's description: system, CPU and GPUs, without their versions and state."""
    if not machine:
        return ANY_MACHINE
    system, comma, hardware = _DRIVER.sub("", machine.partition("; ")[0]).partition(", ")
    words = system.split()
    return f"{' '.join(dict.fromkeys((words[0], words[-1]))) if words else 'unknown system'}{comma}{hardware}"


def _facts(name: str, run: Tree, records: Mapping[str, Tree]) -> Iterator[tuple[str, str]]:
    """Yield everything that a step's result depends on, with the steps and models from which it derives."""
    own = records[name]["parts"]["libraries"]
    found, waiting = dict[str, None](), [name]
    while waiting:
        ancestor = waiting.pop()
        if ancestor in records and ancestor not in found:
            found[ancestor] = None
            waiting.extend(records[ancestor]["parents"].values())
    for ancestor in found:
        record = records[ancestor]
        parts, parents = record["parts"], record["parents"]
        yield f"step {ancestor}", f"{parts['step']}, version {parts['version']}"
        settings = ((setting, value) for setting, value in parts["settings"].items() if setting not in _PLAN)
        yield from ((f"setting {ancestor}.{setting}", _text(value)) for setting, value in settings)
        reads = ((source, digest) for source, digest in parts["reads"].items() if source not in parents)
        yield from ((f"{source} of {ancestor}", _text(digest)[:_DIGITS]) for source, digest in reads)
        models = (model for model in parents.values() if model not in records)
        yield from (
            ("model" if model == "source" else f"model {model}", _digest_of_model(run, model)) for model in models
        )
        # An update changes a library in all steps: that is one fact.
        shared = own if ancestor != name else {}
        of = "" if ancestor == name else f" of {ancestor}"
        for library, version in parts["libraries"].items():
            if shared.get(library) != version:
                fact = library if library.startswith("variable ") else f"library {library}"
                yield f"{fact}{of}", _text(version).removeprefix(f"{library} ")
    yield from _facts_of_machine(records[name]["parts"]["machine"])


def _digest_of_model(run: Tree, name: str) -> str:
    source = run["source"] if name == "source" else run.get("models", {}).get(name)
    return str(source["artifact"]["digest"])[:_DIGITS] if source else "unknown"


def _facts_of_machine(machine: str) -> Iterator[tuple[str, str]]:
    if not machine:
        return
    hardware, *others = machine.split("; ")
    driver = _DRIVER.search(hardware)
    yield "system", hardware.partition(", ")[0]
    yield "driver", driver[1] if driver else "none"
    for other in others:
        fact, colon, value = other.partition(": ")
        yield (fact, value) if colon else ("machine", fact)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else to_json(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Cause, ...]:
    """Return the facts of two measurements that differ; those of a step that only one of them has are one fact."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    single = [name for name in names if name.startswith("step ") and not (name in before and name in after)]
    steps = [name.removeprefix("step ") for name in single]
    own = [
        name
        for name in names
        if not any(name.startswith(f"setting {step}.") or name.endswith(f" of {step}") for step in steps)
    ]
    causes = (Cause(fact=name, before=before.get(name, ""), after=after.get(name, "")) for name in own)
    ranks = {word: rank for rank, word in enumerate(_ORDER)}
    return tuple(sorted(causes, key=lambda cause: (ranks.get(cause.fact.split()[0], len(ranks)), cause.fact)))


_ORDER = ("model", "library", "driver", "step", "setting", "system", "host")
