"""OpenVINO: sessions on its CPU plugin, with the layers that its performance counters time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.runtimes.registry import Runtime

if TYPE_CHECKING:
    from pathlib import Path

    from ndld_flow.machine.host import Check
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.settings import RuntimeSettings


class _Openvino(Runtime):
    def settings(self) -> type[RuntimeSettings]:
        from ndld_flow.runtimes.openvino.settings import OpenvinoSettings

        return OpenvinoSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        from ndld_flow.runtimes.openvino.request import OpenvinoRequest

        return OpenvinoRequest(**values)

    def examine(self, library: Path | None) -> Iterable[Check]:
        from ndld_flow.base.extras import EXTRAS
        from ndld_flow.machine.host import Check

        extra = EXTRAS["openvino"]
        if not extra.is_installed:
            yield Check(name="openvino", state="absent", found="not installed", advice=extra.command)
            return
        from ndld_flow.runtimes.openvino.openvino_session import describe_devices

        try:
            yield Check(name="openvino", state="ok", found=describe_devices())
        except NdldFlowError as error:
            yield Check(name="openvino", state="broken", found=str(error))


RUNTIME: Runtime = _Openvino()
