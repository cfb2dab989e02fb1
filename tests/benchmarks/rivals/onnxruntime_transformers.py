"""ONNX Runtime's transformers optimizer: `optimize_model`, which fuses the layers of BERT, its default.

With `opt_level=0`, as ONNX Runtime's own optimization follows when the model is loaded; other levels import PyTorch.
"""

from __future__ import annotations

from tests.benchmarks.rivals.protocol import Delivery, Request, serve

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2")


def deliver(request: Request) -> list[Delivery]:
    from onnxruntime.transformers.optimizer import optimize_model

    delivered = request.folder / "model.onnx"
    optimize_model(str(request.model), opt_level=0).save_model_to_file(str(delivered))
    return [Delivery(str(delivered))]


if __name__ == "__main__":
    serve(deliver)
