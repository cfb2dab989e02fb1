"""isat-tuner: `isat optimize`, with INT8 and without; the faster right one counts.

Its INT8 is calibrated with random numbers: the command takes no samples. FP16, the other half of `--all`, writes models
that ONNX Runtime refuses, and `isat tune` writes none: it only names the best setting, with variables for AMD's GPUs.
"""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("isat-tuner==0.12.0", "onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    found = []
    for options in (["--int8"], []):
        folder = request.folder / "-".join(["out", *options])
        command = [sys.executable, "-m", "isat", "optimize", str(request.model), *options, "--ort-optimize"]
        subprocess.run([*command, "--output-dir", str(folder)], cwd=request.folder, check=True)
        found.append(Delivery(str(folder / f"{request.model.stem}_optimized.onnx"), name=" ".join(options)))
    return found


if __name__ == "__main__":
    serve(deliver)
