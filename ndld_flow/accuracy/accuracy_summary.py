"""What a comparison says in one line, and the metrics that gates may name."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence

from ndld_flow.accuracy.tolerance import SLICE_BOUNDS
from ndld_flow.base.quantities import number, percent
from ndld_flow.base.text import short_name
from ndld_flow.records.accuracy import SAME_DB, Accuracy, OutputAgreement, higher_is_better
from ndld_flow.records.metric import Metric

UNITS = {"snr_db": "dB", "psnr_db": "dB"}
_MOST_OUTPUTS = 16
"""Models with more have no metrics of single outputs: nobody would find anything among them."""
_NAMED = 4
_MOST = sys.float_info.max
_NOTHING_ALIKE: Mapping[str, float] = {
    "cosine": 0.0,
    "snr_db": -SAME_DB,
    "psnr_db": -SAME_DB,
    **dict.fromkeys((*SLICE_BOUNDS["default"], "max_abs", "mean_abs", "max_rel", "rmse", "relative_rms"), _MOST),
}
"""Of an output that holds no number to compare, all NaN for example: a gate on it says no, and finds its metric."""


def metrics_of(accuracy: Accuracy) -> dict[str, Metric]:
    """`cosine`: each metric of the output where it is worst; `logits.cosine`: of one of several outputs, where a gate
    can say its name; `accuracy`, `reference.accuracy`, `drop.accuracy`: a user's own metric.
    """
    ruined = _NOTHING_ALIKE if any(map(_is_ruined, accuracy.outputs)) else {}
    found = {name: _metric(name, value) for name, value in {**_worst(accuracy.outputs), **ruined}.items()}
    if 1 < len(accuracy.outputs) <= _MOST_OUTPUTS:
        for output in accuracy.outputs:
            if output.output.isidentifier() and not keyword.iskeyword(output.output):
                found |= {f"{output.output}.{name}": _metric(name, value) for name, value in output.metrics.items()}
    for one in accuracy.labelled:
        found[one.name] = Metric(value=one.candidate)
        found[f"reference.{one.name}"] = Metric(value=one.reference)
        found[f"drop.{one.name}"] = Metric(value=one.drop)
    return found


def worst_sample(outputs: Sequence[OutputAgreement], bounded: Sequence[str]) -> str | None:
    """The sample that is worst by the first of the metrics that are bounded, else by `cosine` or `mismatched`, of the
    output where that metric is worst; None where all samples are alike.
    """
    for metric in (*bounded, "slice_rms", "cosine", "mismatched"):
        having = [output for output in outputs if metric in output.worst_samples]
        if having:
            pick = min if higher_is_better(metric) else max
            return pick(having, key=lambda output: output.metrics[metric]).worst_samples[metric]
    return None


def unseen_notes(outputs: Sequence[OutputAgreement]) -> list[str]:
    """Return a sentence for each output with channels that the samples do not activate."""
    return [
        f"{output.output}: the samples do not activate {output.unseen_count:,} of {output.slice_count:,} channels "
        f"({_some(output.unseen)}), so nothing is known about them"
        for output in outputs
        if output.unseen_count
    ]


def summarise(accuracy: Accuracy) -> str:
    """Return `worst slice 1.2 % off (scores, channel 4), cosine 0.9998: within tolerance`, with remarks in brackets."""
    figures = [*_agreement(accuracy), *_labelled(accuracy)]
    remarks = _remarks(accuracy)
    if accuracy.passed:
        text = f"{', '.join(figures) or 'nothing to compare'}: within tolerance"
    else:
        text = f"outside tolerance: {', '.join([*_failed(accuracy), *figures])}"
    return f"{text} ({'; '.join(remarks)})" if remarks else text


def _is_ruined(output: OutputAgreement) -> bool:
    return bool(output.failed) and "float" in output.dtype and "cosine" not in output.metrics


def _metric(name: str, value: float) -> Metric:
    return Metric(value=value, unit=UNITS.get(name, ""))


def _worst(outputs: Sequence[OutputAgreement]) -> dict[str, float]:
    """Each metric of the output where it is worst."""
    found: dict[str, list[float]] = {}
    for output in outputs:
        for name, value in output.metrics.items():
            found.setdefault(name, []).append(value)
    return {name: min(values) if higher_is_better(name) else max(values) for name, values in found.items()}


def _agreement(accuracy: Accuracy) -> list[str]:
    worst = _worst(accuracy.outputs)
    slices = [_worst_slice(accuracy.outputs)] if "slice_rms" in worst else []
    if "cosine" in worst:
        return [*slices, f"cosine {number(worst['cosine'])}", f"max abs {number(worst['max_abs'])}"]
    return [f"{worst['mismatched']:.2%} of elements differ"] if "mismatched" in worst else []


def _worst_slice(outputs: Sequence[OutputAgreement]) -> str:
    output = max((one for one in outputs if "slice_rms" in one.metrics), key=lambda one: one.metrics["slice_rms"])
    error = output.metrics["slice_rms"]
    if not error:
        return "no slice differs"
    names = [short_name(output.output)] if len(outputs) > 1 else []
    place = ", ".join([*names, *([output.worst_slices["slice_rms"]] if "slice_rms" in output.worst_slices else [])])
    return f"worst slice {percent(error)} off{f' ({place})' if place else ''}"


def _some(numbers: Sequence[int]) -> str:
    more = ", ..." if len(numbers) > _NAMED else ""
    return f"{', '.join(map(str, numbers[:_NAMED]))}{more}"


def _labelled(accuracy: Accuracy) -> list[str]:
    return [f"{one.name} {number(one.candidate)} (reference {number(one.reference)})" for one in accuracy.labelled]


def _failed(accuracy: Accuracy) -> list[str]:
    said = [sentence for one in accuracy.labelled for sentence in one.failed]
    failed = [output for output in accuracy.outputs if output.failed]
    if failed:
        more = f" (and {len(failed) - 1} more outputs)" if len(failed) > 1 else ""
        said.append(f'output "{failed[0].output}": {"; ".join(failed[0].failed)}{more}')
    return said


def _remarks(accuracy: Accuracy) -> list[str]:
    said = []
    if accuracy.emulated:
        said.append("stored precision emulated")
    if accuracy.worst_sample is not None:
        said.append(f"worst of {accuracy.sample_count} samples: {short_name(accuracy.worst_sample)}")
    if accuracy.first_divergent is not None:
        said.append(f"values part at {short_name(accuracy.first_divergent.tensor)}")
    for output in accuracy.outputs:
        if output.unseen_count and output.metrics.get("slice_rms"):
            name = short_name(output.output)
            said.append(f"{output.unseen_count:,} of {output.slice_count:,} channels of {name} not seen")
    if accuracy.passed:
        said += [note for note in accuracy.notes if "says little" in note]
    return said
