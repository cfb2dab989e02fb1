"""Whether a node reads another tensor because something was put between, taken out or exchanged."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.graph.diff.matches import Matches

_FARTHEST = 256
"""Nodes on the way; who comes so far has left the place of one edit."""


def follows(before: ir.Value | None, after: ir.Value | None, matches: Matches) -> bool:
    """Whether what came or went explains that `after` is read in the place of `before`.

    One of them then has no partner, and behind what has none lies what is the same in both, or nothing at all.
    """
    values = matches.values
    if all(value is None or value in values for value in (before, after)):
        return False
    mine, theirs = _sources(before, matches), _sources(after, matches)
    return mine is None or theirs is None or not mine or not theirs or bool(mine & theirs)


def _sources(value: ir.Value | None, matches: Matches) -> set[int] | None:
    """The nearest values upstream that have partners, by their numbers; None when that leads too far."""
    found: set[int] = set()
    waiting, seen = [value], {value}
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        number = matches.values.number(one)
        if number is not None:
            found.add(number)
            continue
        producer = one.producer()
        new = [source for source in (producer.inputs if producer is not None else ()) if source not in seen]
        seen.update(new)
        waiting += new
        if len(seen) > _FARTHEST:
            return None
    return found
