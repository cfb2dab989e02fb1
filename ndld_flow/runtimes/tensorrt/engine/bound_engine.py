"""An engine with its inputs bound: a pass is one inference on every stream, timed by the GPU's own clock."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.device_facts import DeviceTimes
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import CudaRuntime
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, refuse_shape
from ndld_flow.runtimes.tensorrt.engine.lane import Lane
from ndld_flow.runtimes.tensorrt.engine.load_engine import one_paragraph


class BoundEngine:
    """Each `once()` is one pass and nothing else; `device_times()` tells what the GPU's clock says of it.

    Making one raises `RequestError` for a shape that the engine does not allow; CUDA's and TensorRT's failures are
    `BackendError` here and in every pass.
    """

    def __init__(
        self,
        cuda: CudaRuntime,
        engine: Any,  # noqa: ANN401
        session: EngineSession,
        tensors: Mapping[str, EngineTensor],
        contexts: Sequence[Any],
        feeds: Mapping[str, Array],
    ) -> None:
        self._engine = engine
        self._session = session
        self._tensors = tensors
        self._lanes: list[Lane] = []
        # Also when nobody closes it: what follows in this process needs the memory.
        self._give_back = weakref.finalize(self, _close, self._lanes)
        values = {name: tensors[name].values_for(array) for name, array in feeds.items()}
        self._check_shapes(values)
        for context in contexts:
            lane = Lane(cuda, context, spin=session.spin_wait)
            self._lanes.append(lane)
            try:
                self._bind(lane, values)
            except RuntimeError as error:  # what the bindings raise where they return nothing
                raise BackendError(f"TensorRT does not take the inputs: {one_paragraph(str(error))}.") from None
            lane.time_alone(lane.copy_in)

    def once(self) -> None:
        """One inference on every stream, until all are done."""
        copies = self._session.transfers
        for lane in self._lanes:
            lane.enqueue(copies=copies)
        for lane in self._lanes:
            lane.wait()

    def capture(self) -> None:
        """Run once as it is, then launch a CUDA graph in every pass. Raises `BackendError` when that cannot be."""
        self.once()
        try:
            for lane in self._lanes:
                lane.capture()
        except BackendError as error:
            raise BackendError(
                f"the engine {self._session.engine} cannot be captured in a CUDA graph: {str(error).rstrip('.')}. "
                "Loops, conditionals and shapes that depend on data cannot; leave out `cuda_graph`."
            ) from None

    @property
    def can_copy(self) -> bool:
        """Whether copies are no part of a pass, so that `copy_in` and `copy_out` are to be called around it."""
        return not self._session.transfers

    def copy_in(self) -> float:
        """Copy the inputs to the device once more; how long it took, in ms."""
        return max(lane.time_alone(lane.copy_in) for lane in self._lanes)

    def copy_out(self) -> float:
        """Copy the last pass's outputs to the host; how long it took, in ms."""
        return max(lane.time_alone(lane.copy_out) for lane in self._lanes)

    def device_times(self) -> DeviceTimes:
        """Of the last pass, before anything is copied beside it: the slowest stream's, and enqueuing of them all."""
        told = [lane.read_times(copies=self._session.transfers) for lane in self._lanes]
        return DeviceTimes(
            enqueue_ms=sum(times.enqueue_ms or 0.0 for times in told),
            h2d_ms=_slowest(times.h2d_ms for times in told),
            compute_ms=_slowest(times.compute_ms for times in told),
            d2h_ms=_slowest(times.d2h_ms for times in told),
        )

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> dtype and shape; -1 where it depends on data."""
        context = self._lanes[0].context
        return {
            name: (tensor.dtype, tuple(context.get_tensor_shape(name)))
            for name, tensor in self._tensors.items()
            if not tensor.is_input
        }

    def close(self) -> None:
        """Give back memory, streams and events; the contexts stay."""
        self._give_back()

    def _check_shapes(self, values: Mapping[str, Array]) -> None:
        profile = self._session.optimization_profile
        for name, array in values.items():
            tensor = self._tensors[name]
            if tensor.on_host:
                allowed = self._engine.get_tensor_profile_values(profile, name)
                found = [int(value) for value in array.ravel()]
            else:
                allowed = self._engine.get_tensor_profile_shape(name, profile)
                found = list(array.shape)
            if allowed:
                refuse_shape(tensor, found, [tuple(each) for each in allowed], profile)

    def _choose_profile(self, lane: Lane) -> None:
        profile = self._session.optimization_profile
        if not lane.context.set_optimization_profile_async(profile, lane.stream):
            raise BackendError(f"TensorRT does not switch to optimization profile {profile} of {self._session.engine}.")

    def _bind(self, lane: Lane, values: Mapping[str, Array]) -> None:
        context, profile = lane.context, self._session.optimization_profile
        if context.active_optimization_profile != profile:
            lane.time_alone(lambda: self._choose_profile(lane))
        for name, array in values.items():
            if not context.set_input_shape(name, tuple(array.shape)):
                raise RequestError(f'input "{short_name(name)}": the engine takes no shape {array.shape}.')
        for name, array in values.items():  # strides are told when all shapes are known
            lane.bind_input(self._tensors[name], array)
        unknown = context.infer_shapes()
        if unknown:
            raise BackendError(f"TensorRT cannot tell the shapes of {', '.join(map(short_name, unknown))}.")
        for tensor in self._tensors.values():
            if not tensor.is_input:
                lane.bind_output(tensor)


def _close(lanes: list[Lane]) -> None:
    while lanes:
        lanes.pop().close()


def _slowest(told: Iterable[float | None]) -> float | None:
    known = [ms for ms in told if ms is not None]
    return max(known) if known else None
