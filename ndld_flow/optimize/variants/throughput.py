"""Several items at a time, for throughput: concurrent inferences in OpenVINO, batches in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from ndld_flow.optimize.variant import Subject, Variant
from ndld_flow.recipe.sample_files import FoundData
from ndld_flow.recipe.write_recipe import input_entry

ORDER = 15
_BATCHES = (4, 16)


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield ways to run the cleaned model on several items, if throughput is an objective."""
    if not subject.aims_at("throughput"):
        return
    if concurrent := subject.traits.concurrency:
        yield Variant(f"clean in concurrent streams{subject.label}", subject.runtime, speed=f", {concurrent}")
        return
    if subject.options.fix_shapes:
        yield "Batches are not tried in ONNX Runtime: --fix-shapes fixes the first dimension."
        return
    if not subject.batched:
        yield "Batches are not tried in ONNX Runtime: the model fixes the first dimension of an input."
        return
    for batch in _BATCHES:
        several = (replace(likely, shape=(batch, *(likely.shape or ())[1:])) for likely in subject.trial.inputs)
        entries = ((json.dumps(likely.spec.name), input_entry(likely, FoundData())) for likely in several)
        inputs = ", ".join(f"{name}: {{{entry}}}" for name, entry in entries)
        yield Variant(f"clean in batches of {batch}{subject.label}", subject.runtime, speed=f", inputs: {{{inputs}}}")
