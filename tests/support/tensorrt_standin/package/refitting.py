"""Putting other weights into an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .bindings import Bound, Setting, expect, member
from .logs import open_log
from .parsing import ParserError, weights_of
from .values import Weights


class Refitter(Bound):
    """Changes an engine's weights. An engine that was not built for it is refused."""

    error_recorder = Setting(object)
    max_threads = Setting(int, 1)
    weights_validation = Setting(bool, True)

    def __init__(self, engine: Any, logger: Any) -> None:
        self._cuda_engine = expect("ICudaEngine", engine, "engine")
        self._log = open_log(logger)
        self._logger = logger
        self._given: dict[str, Any] = {}
        if not engine.refittable:
            self._log.error("createInferRefitter: the engine was not built with a REFIT flag", 3)
            raise TypeError("pybind11::init(): factory function returned nullptr")

    @property
    def logger(self) -> Any:
        return self._logger

    def get_all_weights(self) -> list[str]:
        engine = self._cuda_engine._engine
        named = engine["marked"] if engine["refit"] == ["REFIT_INDIVIDUAL"] else engine["weights"]
        return sorted(named)

    def get_missing_weights(self) -> list[str]:
        engine = self._cuda_engine
        if not engine._engine["stripped"]:
            return []
        return sorted(set(self.get_all_weights()) - set(self._given) - set(engine._refitted))

    def set_named_weights(self, name: str, weights: Any, location: Any = None) -> bool:
        held = weights if isinstance(weights, Weights) else Weights(weights)
        wanted = self._cuda_engine._engine["weights"].get(name, {}).get("bytes")
        if name not in self.get_all_weights() or held.nbytes != wanted:
            self._log.error(f"IRefitter::setNamedWeights: {name}: {held.nbytes} bytes given, {wanted} wanted", 3)
            return False
        self._given[name] = held
        return True

    def unset_named_weights(self, weights_name: str) -> bool:
        return self._given.pop(weights_name, None) is not None

    def get_named_weights(self, weights_name: str) -> Any:
        return self._given.get(weights_name)

    def get_weights_location(self, weights_name: str) -> Any:
        return member("TensorLocation", "HOST")

    def refit_cuda_engine(self) -> bool:
        missing = self.get_missing_weights()
        if missing:
            self._log.error(f"IRefitter::refitCudaEngine: missing weights {', '.join(missing)}", 3)
            return False
        self._cuda_engine._refitted.update({name: given.numpy().tobytes() for name, given in self._given.items()})
        return True

    def refit_cuda_engine_async(self, stream_handle: int) -> bool:
        expect(int, stream_handle, "stream_handle")
        return self.refit_cuda_engine()

    def release_refit_resources(self) -> bool:
        return True


class OnnxParserRefitter(Bound):
    """Gives a refitter the weights of an ONNX model."""

    def __init__(self, refitter: Any, logger: Any) -> None:
        self._refitter = expect("Refitter", refitter, "refitter")
        self._log = open_log(logger)
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def clear_errors(self) -> None:
        self._errors.clear()

    def refit_from_file(self, model: str) -> bool:
        file = Path(expect(str, model, "model"))
        return self._refit(file.read_bytes() if file.is_file() else b"", file.parent)

    def refit_from_bytes(self, model: Any, path: str | None = None) -> bool:
        return self._refit(bytes(model), Path(path).parent if path else None)

    def _refit(self, data: bytes, folder: Path | None) -> bool:
        import numpy
        import onnx

        try:
            model = onnx.load_model_from_string(data)
            if not model.graph.node:
                raise ValueError("no graph")
            if folder:
                onnx.load_external_data_for_model(model, str(folder))
        except Exception as error:
            self._errors.append(ParserError._make("MODEL_DESERIALIZE_FAILED", str(error), "refit", -1, "", ""))
            return False
        known = set(self._refitter.get_all_weights())
        given = {name: values for name, values in weights_of(model).items() if name in known}
        return all(
            self._refitter.set_named_weights(name, Weights(numpy.frombuffer(values, "uint8")))
            for name, values in given.items()
        )
