"""A check of accuracy as a script for Polygraphy, with the inputs and the bounds that it had here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.accuracy.accuracy_record import Criteria
from ndld_flow.accuracy.model_comparison import ComparedOutput, ModelPair
from ndld_flow.accuracy.slices import SLICE_METRICS, Reference
from ndld_flow.base.errors import RequestError

_SCRIPT = Path(__file__).with_name("polygraphy_script.txt")
_MEASURED = frozenset(
    ("cosine", "max_abs", "max_rel", "mean_abs", "mismatched", "psnr_db", "relative_rms", "rmse", "snr_db", "top1")
)
"""Metrics that the script computes besides those of slices."""


def write_polygraphy_check(
    folder: Path, pair: ModelPair, criteria: Criteria, outputs: Sequence[ComparedOutput]
) -> None:
    """Write the check of these outputs into a new folder: `check.py`, `inputs.json` and `bounds.json`."""
    from polygraphy.json import save_json

    if pair.sequences is not None:
        raise RequestError("`polygraphy` writes no check of sequences: Polygraphy feeds no state back. Remove it.")
    folder.mkdir()
    mine = [dict(sample.arrays) for sample in pair.complete_samples]
    theirs = [pair.inputs.for_candidate(sample.feeds) for sample in pair.complete_samples]
    save_json(mine, str(folder / "inputs.json"))
    if any(not _are_same(*each) for each in zip(mine, theirs, strict=True)):
        save_json(theirs, str(folder / "candidate_inputs.json"))
    rules = {output.name: _rule(output, criteria) for output in outputs}
    (folder / "bounds.json").write_text(json.dumps(rules, indent=1), encoding="utf-8")
    (folder / "check.py").write_text(_SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")


def _are_same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    both = mine.keys() == theirs.keys()
    return both and all(
        mine[name].dtype == theirs[name].dtype and np.array_equal(mine[name], theirs[name]) for name in mine
    )


def _rule(output: ComparedOutput, criteria: Criteria) -> dict[str, Any]:
    """Return the bounds of one output, and the spreads of the reference against which errors are measured."""
    measuring, bounds, slices = criteria.measuring(output.name), criteria.bounds_of(output), output.yardstick.slices
    known = _MEASURED | (set() if slices is None else {"slice_rms"})
    if slices is not None and not slices.layout.smooth_map:
        known |= set(SLICE_METRICS)
    return {
        "reference": output.pair[0],
        "candidate": output.pair[1],
        "bounds": {metric: bound for metric, bound in bounds.items() if metric in known},
        "not_checked": sorted(bounds.keys() - known),
        "rtol": measuring.rtol or 0.0,
        "atol": measuring.atol or 0.0,
        **({} if slices is None else _spreads(slices)),
    }


def _spreads(slices: Reference) -> dict[str, Any]:
    whole, scale = slices.whole, slices.features or slices.whole
    weighed, weighed_whole = (each.spread * (1 + each.effective**-0.5) for each in (scale, whole))
    factors = {
        # A row that varies more than the whole output is measured against its own std, as in `slices`.
        axis: (whole.spread[0] / np.maximum(whole.spread[0], slices.position_std[axis])).tolist()
        if slices.features is None
        else 1.0
        for axis in slices.layout.axes
    }
    return {
        "axis": slices.layout.axis,
        "spread": scale.spread.tolist(),
        "weighed_spread": weighed.tolist(),
        "range": scale.range.tolist(),
        "whole_spread": float(weighed_whole[0]),
        "whole_range": float(whole.range[0]),
        "positions": factors,
    }
