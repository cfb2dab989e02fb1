"""Ranges of an output's channels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.slices import channel_magnitudes
from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import Array
from ndld_flow.records.inspection import Finding
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings

# Feeds and outputs are passed as files of plain arrays.
_RUN = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as feeds:
    values = session.run(None, {name: feeds[name] for name in feeds.files})
np.savez(sys.argv[3], *(value if isinstance(value, np.ndarray) else np.empty(0) for value in values))
"""
_HUNDREDFOLD = 100.0


class ChannelScales(Check):
    """Outputs whose channels differ in range by a factor of 100 or more, on random values of the recipe's shapes.

    It finds nothing if the model does not run: other checks report that.
    """

    order = 930
    severity = "info"
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        samples = make_samples(model_inputs(subject.path), subject.inputs, SampleSettings(), subject.path.name)
        feeds = next(iter(samples)).arrays
        if any(values.dtype.isbuiltin != 1 or values.dtype.hasobject for values in feeds.values()):
            return
        with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
            feeds_file, outputs_file = Path(folder, "feeds.npz"), Path(folder, "outputs.npz")
            np.savez(feeds_file, allow_pickle=False, **feeds)
            process = subject.run_python("-c", _RUN, str(subject.path.resolve()), str(feeds_file), str(outputs_file))
            if process.returncode:
                return
            with np.load(outputs_file, allow_pickle=False) as arrays:
                outputs: list[Array] = [arrays[name] for name in arrays.files]
        for value, array in zip(subject.proto.graph.output, outputs, strict=True):
            largest = channel_magnitudes(array) if array.dtype.kind == "f" else None
            if largest is not None and (message := _scale_difference(largest)) is not None:
                yield self.finding(f"output {value.name!r}: {message}")


def _scale_difference(largest: Sequence[float]) -> str | None:
    """Return a sentence on the channels with the largest and the smallest values; None if they differ by a factor of
    less than 100."""
    top = max(range(len(largest)), key=largest.__getitem__)
    low = min((i for i in range(len(largest)) if largest[i] > 0), key=largest.__getitem__, default=top)
    if not largest[top] >= _HUNDREDFOLD * largest[low]:
        return None
    return (
        f"values of channel {top} reach {largest[top]:.3g}, those of channel {low} only {largest[low]:.3g}. Cosine and "
        "other metrics over the whole output do not see the smaller ones, and one INT8 scale for all of them erases "
        "them: check the output by slices, and quantize such channels separately"
    )
