"""The exhaustive grid: every variant that `optimize --for any` may choose, each judged and measured as it measures."""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve
from tests.support.rivalry.optimizing import run_grid

PACKAGES = ()


def deliver(request: Request) -> list[Delivery]:
    return run_grid(request, "any")


if __name__ == "__main__":
    serve(deliver)
