"""Olive's automatic optimizer: `olive auto-opt --precision int8`.

Its successor, `olive optimize --precision int8`, calibrates every ONNX model with a text of Hugging Face in CUDA.
"""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("olive-ai==0.13.0", "onnxruntime==1.32.0", "requests", "psutil")


def deliver(request: Request) -> list[Delivery]:
    found = request.folder / "out"
    options = ["--device", "cpu", "--provider", "CPUExecutionProvider", "--precision", "int8", "-o", str(found)]
    command = [sys.executable, "-m", "olive", "auto-opt", "-m", str(request.model), *options]
    subprocess.run(command, cwd=request.folder, check=True)
    return [Delivery(str(found / "model.onnx"))]


if __name__ == "__main__":
    serve(deliver)
