"""`ndld-flow optimize --for onnxruntime`, to compare with tools that deliver for ONNX Runtime only."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve
from tests.support.rivalry.optimizing import optimize

PACKAGES = ()


def deliver(request: Request) -> list[Delivery]:
    return [optimize(request, "onnxruntime")]


if __name__ == "__main__":
    serve(deliver)
