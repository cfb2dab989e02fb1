"""Several samples bound to one session: each pass runs the next one, as the calls of a user do.

A runtime that adapts to the sizes of its inputs does so again for each sample of other sizes, and passes of one sample
do not show it: OpenVINO was 1.13x as fast as ONNX Runtime on one molecule, and 0.95x on one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import Binding, DeviceTimes, HostBinding, Session


def bind_samples(session: Session, samples: Sequence[Mapping[str, Array]]) -> Binding:
    """Bind samples, whose passes take turns, with the inputs and outputs on the device.

    Raises as `Session.bind` does.
    """
    bindings = [session.bind(sample, on_device=True) for sample in samples]
    if len(bindings) == 1:
        return bindings[0]
    shapes = [sorted((name, values.shape) for name, values in sample.items()) for sample in samples]
    return SamplesInTurn(bindings, [index for index, each in enumerate(shapes) if index and each not in shapes[:index]])


class SamplesInTurn(HostBinding):
    """Bound samples, of which each pass runs the next; it copies nothing of its own."""

    def __init__(self, bindings: Sequence[Binding], new_sizes: Sequence[int]) -> None:
        """Begin with the first sample; `new_sizes` are the places of those with other sizes than all before them."""
        self._bindings, self._new_sizes = bindings, new_sizes
        self.count = len(bindings)
        self._index = -1
        self._first_ms: dict[int, float] = {}

    @property
    def new_size_ms(self) -> list[float]:
        """Return the time of the first pass at each size that was new to the session, which had run others."""
        return [self._first_ms[index] for index in self._new_sizes if index in self._first_ms]

    def restart(self, sample: int = 0) -> None:
        """Let the next pass run the sample of this number, counted round and round."""
        self._index = sample - 1

    def prepare(self) -> None:
        """Do nothing: all samples are bound."""

    def run(self) -> None:
        """Run the next sample."""
        self._index = (self._index + 1) % self.count
        start_ns = time.perf_counter_ns()
        self._bindings[self._index].run()
        if self._index not in self._first_ms:
            self._first_ms[self._index] = (time.perf_counter_ns() - start_ns) / 1e6

    def device_times(self) -> DeviceTimes:
        return self._bindings[self._index].device_times()

    def outputs(self) -> dict[str, Array | None]:
        return self._bindings[self._index].outputs()

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._bindings[self._index].output_shapes()
