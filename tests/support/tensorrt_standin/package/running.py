"""Execution of engines."""

from __future__ import annotations

from typing import Any

from .bindings import Bound, Setting, expect, member
from .values import IHostMemory


class IRuntimeCache(Bound):
    """Code that TensorRT-RTX compiled for this GPU."""

    def _begin(self, *arguments: Any) -> None:
        self._blob = b"STANDIN-RUNTIME-CACHE"

    def serialize(self) -> Any:
        return IHostMemory(self._blob)

    def deserialize(self, blob: Any) -> bool:
        return bytes(blob).startswith(b"STANDIN-RUNTIME-CACHE")

    def reset(self) -> bool:
        return True


class IRuntimeConfig(Bound):
    """Settings of the execution of an engine."""

    cuda_graph_strategy = Setting("CudaGraphStrategy", "DISABLED")
    dynamic_shapes_kernel_specialization_strategy = Setting("DynamicShapesKernelSpecializationStrategy", "LAZY")

    def _begin(self, *arguments: Any) -> None:
        self._strategy = member("ExecutionContextAllocationStrategy", "STATIC")
        self._cache: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = expect("ExecutionContextAllocationStrategy", strategy, "strategy")

    def get_execution_context_allocation_strategy(self) -> Any:
        return self._strategy

    def create_runtime_cache(self) -> Any:
        return IRuntimeCache._make()

    def set_runtime_cache(self, cache: Any = None) -> bool:
        self._cache = None if cache is None else expect("IRuntimeCache", cache, "cache")
        return True

    def get_runtime_cache(self) -> Any:
        return self._cache
