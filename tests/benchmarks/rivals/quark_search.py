"""AMD Quark's AutoSearchPro: INT8 by its space `A8W8_SEARCH`, judged by the worst sample of a third.

Fine-tuning is left out of the space: it takes thousands of iterations, on a GPU. Twelve trials by TPE remain, as many
as its own first stage has without it.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.benchmarks.rivals.protocol import Delivery, Request, Sample, cosine, serve

PACKAGES = ("amd-quark==0.13", "onnxruntime==1.32.0", "torch==2.14.1", "optuna==5.0.0")
_FINE_TUNING = ("algorithms", "adaround_params", "adaquant_params")
_TRIALS = 12


def deliver(request: Request) -> list[Delivery]:
    import onnxruntime as ort
    from quark.onnx import AutoSearchPro
    from quark.onnx.quantization.auto_search.qconfig_mapping import get_auto_search_config

    class Reader:
        """The samples to calibrate with, one after the other."""

        def __init__(self, samples: list[Sample]) -> None:
            self.samples = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.samples, None)

    def run(model: str) -> list[list[Any]]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = request.threads
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return [session.run(None, sample) for sample in validation]

    calibration, validation = request.split()
    expected = run(str(request.model))
    worst: dict[str, float] = {}

    def judge(model: str) -> float:
        try:
            pairs = zip(expected, run(str(model)), strict=True)
            worst[str(model)] = min(cosine(mine, theirs) for mine, theirs in pairs)
        except Exception as error:  # what does not run is the worst
            print(f"{model}: {error}", flush=True)
            worst[str(model)] = -1.0
        return worst[str(model)]

    config = copy.deepcopy(get_auto_search_config("A8W8_SEARCH"))
    for name in _FINE_TUNING:
        config["search_space"].pop(name)
    folders = {"output_dir": str(request.folder / "found"), "temp_dir": str(request.folder / "scratch")}
    own = {"model_input": str(request.model), "calib_data_reader": Reader(calibration), "search_evaluator": judge}
    AutoSearchPro({**config, **folders, **own, "n_trials": _TRIALS, "two_stage_search": False}).run()
    worst.pop(str(request.model), None)
    return [Delivery(max(worst, key=worst.__getitem__))]


if __name__ == "__main__":
    serve(deliver)
