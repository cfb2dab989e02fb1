"""The documents that are written to files, the version of each one's format, and how earlier versions are read.

What is promised: a document that a released version wrote is opened by every later one. A later version's document is
refused by name and left as it is, never taken for damaged, never overwritten.

Whoever changes what a document holds, be it by one field, raises its version here and adds to `_UPGRADES` what makes
the new form of the old one. `tests/golden/` has what earlier versions wrote, and the fields of each version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Tree: TypeAlias = dict[str, Any]
"""A document as JSON has it."""

VERSIONS: Mapping[str, int] = {
    "accuracy": 2,
    "activations": 1,
    "build": 1,
    "comparison": 1,
    "findings": 1,
    "model diff": 1,
    "noise": 1,
    "precision search": 1,
    "profile": 1,
    "run": 2,
    "step": 1,
    "sweep": 1,
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


_UPGRADES: Mapping[tuple[str, int], Callable[[Tree], Tree]] = {("accuracy", 1): _accuracy_2, ("run", 1): _run_2}
"""Document and earlier version -> what makes the next version of it."""
