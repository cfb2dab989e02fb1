"""Directions of metrics, by their names and units: is less or more better?"""

from __future__ import annotations

from typing import Literal

from ndld_flow.base.lazy_pattern import lazy_pattern

Better = Literal["lower", "higher", "neither"]
HIGHER_IS_BETTER = ("cosine", "snr_db", "psnr_db", "top1", "top5")
"""Metrics for which lower is worse: their tolerance is a lower bound, and the lowest value of several outputs counts.
Other `topK` metrics are of this kind too: see `higher_is_better`."""
_TOP = lazy_pattern(r"top\d+")
_HIGHER_IS_BETTER = ("accuracy", "throughput")
_LOWER_IS_BETTER = ("bytes", "nodes", "macs", "parameters")
_ERRORS = ("max_abs", "mean_abs", "max_rel", "rmse", "relative_rms", "mismatched", "kl")


def higher_is_better(metric: str) -> bool:
    """Return whether a lower value of a metric of agreement is worse; a user's own metrics are not known here."""
    return metric in HIGHER_IS_BETTER or _TOP.fullmatch(metric) is not None


def which_is_better(name: str, unit: str) -> Better:
    """Return whether less or more of a metric is better, by the last part of its name and its unit."""
    rest, _, last = name.rpartition(".")
    if rest.rpartition(".")[2] == "drop":  # a user's metric
        return "neither"
    if last in _HIGHER_IS_BETTER or higher_is_better(last) or unit == "1/s":
        return "higher"
    return "lower" if last in (*_LOWER_IS_BETTER, *_ERRORS) or unit in ("ms", "s", "bytes") else "neither"
