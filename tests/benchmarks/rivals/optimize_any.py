"""`ndld-flow optimize --for any`: ONNX Runtime and OpenVINO."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve
from tests.support.rivalry.optimizing import optimize

PACKAGES = ()


def deliver(request: Request) -> list[Delivery]:
    return [optimize(request, "any")]


if __name__ == "__main__":
    serve(deliver)
