"""ONNX Runtime's execution providers: names, fallbacks, devices, and advice if one is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.text import shortened, suggest
from ndld_flow.machine.versions import find_cuda_lack

CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_RTX = "NvTensorRTRTXExecutionProvider"
_SUFFIX = "ExecutionProvider"
_EXTRA_SHORT = {"tensorrt_rtx": _RTX, "directml": "DmlExecutionProvider"}
_ON_NVIDIA_GPU = (_CUDA, _TENSORRT, _RTX)
_DRIVER = re.compile(r"\blib(cuda|nvidia-ml)\.so|\bnvcuda\.dll")
"""Libraries of NVIDIA's driver."""


def full_name(provider: str) -> str:
    """Return `CUDAExecutionProvider` for `cuda`; full names are accepted too, in any case.

    Raises `BackendError` with the nearest names if ONNX Runtime has no such provider, or this build of it does not
    include it.
    """
    everything: list[str] = list(ort.get_all_providers())
    names = {name.lower(): name for name in everything}
    names |= {name.removesuffix(_SUFFIX).lower(): name for name in everything} | _EXTRA_SHORT
    name, available = names.get(provider.lower()), list(ort.get_available_providers())
    if name is None:
        raise BackendError(
            f'"{provider}" is not an execution provider of ONNX Runtime {ort.__version__}; '
            f"{suggest(provider, [short_name(each) for each in available])}"
        )
    if name not in available:
        here = ", ".join(short_name(each) for each in available)
        lack = find_cuda_lack() if name in (_CUDA, _TENSORRT) else None
        advice = f"Run `{lack.command}`" if lack else "Install the onnxruntime package made for it"
        raise BackendError(
            f"this build of ONNX Runtime ({ort.__version__}) has no {name}; it has {here}. {advice}, or "
            "choose another provider."
        )
    return name


def find_plugin_devices(provider: str, library: str) -> tuple[str, list[Any]]:
    """Load a plugin library; return the provider's full name and the devices of this machine that it can use.

    Raises `BackendError` with the reason if the library does not load, has no such provider, or no device for it.
    """
    before = {device.ep_name for device in ort.get_ep_devices()}
    if library not in _plugins:
        try:
            ort.register_execution_provider_library(library, library)
        except Exception as error:  # ONNX Runtime raises its own classes
            reason = shortened(" ".join(str(error).split()).rpartition("FAIL : ")[2], 600)
            advice = "Install NVIDIA's driver" if _DRIVER.search(reason) else "Install what it needs"
            raise BackendError(
                f"`provider_library`: ONNX Runtime {ort.__version__} does not load {library}: {reason}. {advice}, or "
                "remove `provider_library`."
            ) from None
        _plugins[library] = {device.ep_name for device in ort.get_ep_devices()} - before
    offered = _plugins[library]
    if not offered:
        raise BackendError(
            f"`provider_library`: {library} loads, but offers no device on this machine: its provider does not support "
            "this CPU, GPU or NPU, or lacks its driver. Set `provider: cpu` and remove `provider_library`."
        )
    names = {name.lower(): name for name in offered} | {short_name(name): name for name in offered}
    name = names.get(provider.lower())
    if name is None:
        raise BackendError(f'`provider_library`: {library} has no provider "{provider}"; {suggest(provider, offered)}')
    return name, [device for device in ort.get_ep_devices() if device.ep_name == name]


_plugins: dict[str, set[str]] = {}
"""Library -> its providers: ONNX Runtime registers a library once in a process."""


def short_name(provider: str) -> str:
    """Return `cuda` for `CUDAExecutionProvider`."""
    return provider.removesuffix(_SUFFIX).lower()


def with_fallbacks(provider: str, options: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return the provider and its fallbacks for unsupported nodes: CUDA after TensorRT, the CPU always last."""
    chosen = [(provider, dict(options))]
    if provider in (_TENSORRT, _RTX) and _CUDA in ort.get_available_providers():
        same_gpu = {"device_id": options["device_id"]} if "device_id" in options else {}
        chosen.append((_CUDA, same_gpu))
    if provider != CPU:
        chosen.append((CPU, {}))
    return chosen


def memory_of(provider: str, options: Mapping[str, str]) -> tuple[str, int]:
    """Return device type and index of the memory in which this provider's inputs and outputs can stay between runs."""
    if provider not in _ON_NVIDIA_GPU:
        return "cpu", 0
    number = options.get("device_id", "0")
    if not number.isdigit():
        raise BackendError(f'provider option device_id is "{number}": give the number of a GPU, such as 0.')
    return "cuda", int(number)


def provider_advice(provider: str) -> str:
    """Return advice for a provider that does not load."""
    if provider == _CUDA:
        return (
            "Check that `nvidia-smi` works and install CUDA and cuDNN for it "
            f"(`{EXTRAS['gpu'].command}`), or set provider: cpu."
        )
    if provider in _ON_NVIDIA_GPU:
        return "Check that `nvidia-smi` works and that TensorRT's libraries can be loaded, or set provider: cpu."
    return "Install its libraries, or set provider: cpu."
