"""The documents that are written to files, the version of each one's format, and how earlier versions are read.

What is promised: a document that a released version wrote is opened by every later one. A later version's document is
refused by name and left as it is, never taken for damaged, never overwritten.

Whoever changes what a document holds, be it by one field, raises its version here and adds to `_UPGRADES` what makes
the new form of the old one. `tests/golden/` has what earlier versions wrote, and the fields of each version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES, LayerFacts, Operand, conclude

Tree: TypeAlias = dict[str, Any]
"""A document as JSON has it."""

VERSIONS: Mapping[str, int] = {
    "accuracy": 3,
    "activations": 1,
    "build": 2,
    "comparison": 2,
    "findings": 1,
    "model diff": 1,
    "noise": 2,
    "precision search": 1,
    "profile": 2,
    "run": 2,
    "step": 2,
    "sweep": 2,
}
"""Document -> the version that is written."""


def upgrade(document: str, tree: object) -> object:
    """A document of an earlier version in today's form; what is no document is given back for others to refuse."""
    if not isinstance(tree, dict):
        return tree
    whole = _upgrade_inner(tree) if document == "run" else tree
    found = whole.get("format_version")
    if not isinstance(found, int):
        return whole
    for version in range(max(found, 1), VERSIONS[document]):
        whole = _UPGRADES[document, version](whole) | {"format_version": version + 1}
    return whole


def _upgrade_inner(run: Tree) -> Tree:
    """A run tells of its steps in the words of the documents that their own folders hold."""
    steps = run.get("steps")
    if not isinstance(steps, list):
        return run
    return run | {
        "steps": [
            step | {"record": upgrade("step", step.get("record"))} if isinstance(step, dict) else step for step in steps
        ]
    }


def _accuracy_2(tree: Tree) -> Tree:
    """Samples, layers and labelled metrics came; which arithmetic had been used was not told before."""
    return tree | {"arithmetic": "untold"}


def _run_2(tree: Tree) -> Tree:
    """A run that did not come to its end left no record before."""
    return tree | {"outcome": "passed" if tree.get("passed") else "failed"}


def _layers_2(tree: Tree) -> Tree:
    """A layer's precision was the type of its first output; it is the type that the layer computes in."""
    layers = tree.get("layers")
    return tree | {"layers": list(map(_layer_2, layers))} if isinstance(layers, list) else tree


def _layer_2(layer: object) -> object:
    if not isinstance(layer, dict):
        return layer
    name, kind, role, provider, tactic = (
        str(layer.get(key, "")) for key in ("name", "type", "role", "provider", "tactic")
    )
    if kind in QUANTIZING_TYPES or (role == "cast" and kind.lower() != "cast"):
        role = "quantize"  # a role of its own since
    inputs, outputs = (_operands(layer.get(side)) for side in ("inputs", "outputs"))
    found = conclude(LayerFacts(name, kind, role, provider, tactic, "", inputs, outputs))
    concluded = {"precision": found.precision, "precision_basis": found.basis, "unit": found.unit}
    return layer | concluded | ({"role": role} if "role" in layer else {})


def _operands(tensors: object) -> list[Operand]:
    """Of a document that nobody has checked yet."""
    return [
        Operand(str(one.get("dtype", "")), tuple(dim for dim in one.get("shape", ()) if isinstance(dim, int)))
        for one in (tensors if isinstance(tensors, list) else [])
        if isinstance(one, dict) and isinstance(one.get("shape", ()), list | tuple)
    ]


def _profile_2(tree: Tree) -> Tree:
    """Whether a profiler was attached was added: where this tool measured, the timing pass never had one."""
    conditions = tree.get("conditions")
    measured_here = isinstance(conditions, dict) and "before" in conditions
    return _known_machine(_layers_2(tree)) | {"profiler": "off" if measured_here else ""}


def _known_machine(tree: Tree) -> Tree:
    """An import that did not know the machine wrote 0 CPUs and 0 bytes of memory."""
    machine = tree.get("machine")
    if not isinstance(machine, dict):
        return tree
    unknown = {name: None for name in ("cpu_count", "memory_bytes") if machine.get(name) == 0}
    return tree | {"machine": machine | unknown}


def _unchanged(tree: Tree) -> Tree:
    """What was added has a default that means unknown, or is a new value of a field."""
    return tree


_UPGRADES: Mapping[tuple[str, int], Callable[[Tree], Tree]] = {
    ("accuracy", 1): _accuracy_2,
    ("accuracy", 2): _unchanged,
    ("build", 1): _layers_2,
    ("comparison", 1): _unchanged,
    ("noise", 1): _unchanged,
    ("profile", 1): _profile_2,
    ("run", 1): _run_2,
    ("step", 1): _unchanged,
    ("sweep", 1): _unchanged,
}
"""Document and earlier version -> what makes the next version of it."""
