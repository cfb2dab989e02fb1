"""The documents that are written to files, the versions of their formats, and upgrades from earlier versions.

Every later version opens a document that a released version wrote. A later version's document is refused with its
version and left as it is: it is neither treated as damaged nor overwritten.

To change a document, even by one field, raise its version here and add an upgrade to `_UPGRADES`. `tests/golden/` has
stores of earlier versions, and the fields of each version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES, LayerFacts, Operand, conclude

Tree: TypeAlias = dict[str, Any]
"""A document as plain JSON."""

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
    """Return a document of an earlier version in today's form; other data is returned as it is."""
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
    """Upgrade the step documents inside a run."""
    steps = run.get("steps")
    if not isinstance(steps, list):
        return run
    return run | {
        "steps": [
            step | {"record": upgrade("step", step.get("record"))} if isinstance(step, dict) else step for step in steps
        ]
    }


def _accuracy_2(tree: Tree) -> Tree:
    """Mark the arithmetic, which was not recorded before, as unknown. Samples, layers and labelled metrics are new."""
    return tree | {"arithmetic": "untold"}


def _run_2(tree: Tree) -> Tree:
    """Add the outcome: before, only finished runs had a record."""
    return tree | {"outcome": "passed" if tree.get("passed") else "failed"}


def _layers_2(tree: Tree) -> Tree:
    """Derive precisions again: they were the types of first outputs, and are now the types of the computation."""
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
    """Return the operands in an unvalidated document."""
    return [
        Operand(str(one.get("dtype", "")), tuple(dim for dim in one.get("shape", ()) if isinstance(dim, int)))
        for one in (tensors if isinstance(tensors, list) else [])
        if isinstance(one, dict) and isinstance(one.get("shape", ()), list | tuple)
    ]


def _profile_2(tree: Tree) -> Tree:
    """Add `profiler`: where this tool measured, the timing pass never had one attached."""
    conditions = tree.get("conditions")
    measured_here = isinstance(conditions, dict) and "before" in conditions
    return _known_machine(_layers_2(tree)) | {"profiler": "off" if measured_here else ""}


def _known_machine(tree: Tree) -> Tree:
    """Replace 0 CPUs and 0 bytes of memory, which imports wrote for an unknown machine."""
    machine = tree.get("machine")
    if not isinstance(machine, dict):
        return tree
    unknown = {name: None for name in ("cpu_count", "memory_bytes") if machine.get(name) == 0}
    return tree | {"machine": machine | unknown}


def _unchanged(tree: Tree) -> Tree:
    """Return a document whose new fields have defaults that mean unknown, or only new values."""
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
"""Document and earlier version -> function that upgrades it to the next version."""
