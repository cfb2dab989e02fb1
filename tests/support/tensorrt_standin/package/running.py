"""Execution of engines."""

from __future__ import annotations

import os
from typing import Any

from .bindings import RELEASE, Bound, Setting, expect, member
from .values import IHostMemory


class IRuntimeCache(Bound):
    """Kernels that TensorRT-RTX compiled for this GPU."""

    def _begin(self, *arguments: Any) -> None:
        self._head = f"STANDIN-RUNTIME-CACHE {RELEASE['release']} {os.environ.get('STANDIN_GPU', '8.9')} ".encode()
        self._kernels = b""

    def serialize(self) -> Any:
        return IHostMemory(self._head + self._kernels)

    def deserialize(self, blob: Any) -> bool:
        """What another release or GPU wrote leaves the cache as it is."""
        data = bytes(memoryview(blob))
        if data.startswith(self._head):
            self._kernels = data.removeprefix(self._head)
        return data.startswith(self._head)

    def reset(self) -> bool:
        self._kernels = b""
        return True

    def _compile(self) -> bool:
        """Keep kernels; return whether they had to be compiled."""
        compiled, self._kernels = not self._kernels, self._kernels or b"kernels"
        return compiled


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
