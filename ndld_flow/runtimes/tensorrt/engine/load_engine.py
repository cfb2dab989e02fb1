"""Engines loaded from their files, refitted where asked, and why one does not load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.text import short_name, shortened, visible_text
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.library import SPOKEN
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins

_OTHER_RELEASE = re.compile(r"expecting library version ([\d.]+) got(?: library version)? ([\d.]+)", re.IGNORECASE)
_OTHER_GPU = re.compile(r"incompatible device|expecting compute|compute capability", re.IGNORECASE)
_HOST_CODE = re.compile(r"host\s?code", re.IGNORECASE)
_CUDA = re.compile(r"cuda ?error|cuda runtime|cuda initialization", re.IGNORECASE)
_VERSION = re.compile(r"version", re.IGNORECASE)
_LONGEST = 400


class Messages:
    """What TensorRT said: a logger for it, and its warnings and errors."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401
        self.warnings: list[str] = []
        self.errors: list[str] = []
        severity = trt.ILogger
        kept = {
            severity.INTERNAL_ERROR: self.errors,
            severity.ERROR: self.errors,
            severity.WARNING: self.warnings,
        }

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)  # bindings need it called in full

            def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
                if severity in kept:
                    kept[severity].append(message)

        self.logger = Logger()

    @property
    def text(self) -> str:
        """Each once, in order."""
        return "\n".join(dict.fromkeys([*self.warnings, *self.errors]))

    @property
    def last_error(self) -> str:
        return one_paragraph(self.errors[-1]) if self.errors else "TensorRT gives no reason"


def one_paragraph(message: str) -> str:
    """What TensorRT said, without line breaks and final stop, and not for ever."""
    return shortened(" ".join(visible_text(message).split()).rstrip("."), _LONGEST)


def load_engine(trt: Any, session: EngineSession, messages: Messages) -> tuple[Any, Any]:  # noqa: ANN401
    """The runtime and the engine; the runtime must outlive it.

    Raises `BackendError` when TensorRT does not start, or a plugin or the engine does not load here; `ModelError` when
    there is no such file.
    """
    runtime = _make_runtime(trt, session, messages)
    load_plugins(trt, messages.logger, runtime, session.plugins)
    if session.trust:
        runtime.engine_host_code_allowed = True
    try:
        plan = session.engine.read_bytes()
    except OSError as error:
        raise ModelError(f"the engine {session.engine} cannot be read: {error.strerror}.") from None
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BackendError(explain_refusal(session, trt.__version__, messages))
    return runtime, engine


def _make_runtime(trt: Any, session: EngineSession, messages: Messages) -> Any:  # noqa: ANN401
    try:
        return trt.Runtime(messages.logger)
    except TypeError:  # pybind11: factory function returned nullptr
        raise BackendError(
            f"{SPOKEN[session.backend]} {trt.__version__} does not start: {messages.last_error}. Check that "
            "`nvidia-smi` works, and that the driver is new enough for the CUDA that this release was built for."
        ) from None


def explain_refusal(session: EngineSession, version: str, messages: Messages) -> str:
    """Why an engine did not load and what to do, in a paragraph."""
    said, name = "\n".join(messages.errors), SPOKEN[session.backend]
    called = f"the engine {session.engine}"
    if _HOST_CODE.search(said) and not session.trust:
        return (
            f"{called} has code of its own embedded (it is version compatible), and {name} runs that only when it is "
            "allowed: make sure of where it comes from, then set `trust_engine: true`."
        )
    told = _OTHER_RELEASE.search(said)
    built = told[2] if told else session.built_with
    if told or (_VERSION.search(said) and built not in ("", version)):
        return (
            f"{called} was built by {name} {built or 'of another version'}, and here is {version}: build it anew, "
            "name the other release by `library`, or build it with `version_compatible: true`. "
            f"{name}: {messages.last_error}."
        )
    if _OTHER_GPU.search(said):
        return f"{called} was built for another GPU: build it for the one that is here. {name}: {messages.last_error}."
    broken = _CUDA.search(said)
    advice = "Check that `nvidia-smi` works and the driver is new enough" if broken else "Build it anew on this machine"
    return f"{name} {version} does not load {called}: {messages.last_error}. {advice}."


def refit_engine(trt: Any, session: EngineSession, engine: Any, messages: Messages) -> None:  # noqa: ANN401
    """Give an engine the weights of its ONNX model. Raises `BackendError` when they do not fit."""
    refitter = trt.Refitter(engine, messages.logger)
    parser = trt.OnnxParserRefitter(refitter, messages.logger)
    fits = parser.refit_from_file(str(session.model))
    missing = list(refitter.get_missing_weights()) if fits else []
    if fits and not missing and refitter.refit_cuda_engine():
        return
    why = _parser_errors(parser) or (f"it lacks {_some(missing)}" if missing else messages.last_error)
    raise BackendError(
        f"the engine {session.engine} does not take the weights of {session.model}: {why}. Build the engine from this "
        "model" + ("." if session.without_weights else ", or leave its own weights in with `refit: false`.")
    )


def _parser_errors(parser: Any) -> str:  # noqa: ANN401
    found = [str(parser.get_error(number).desc()) for number in range(min(3, parser.num_errors))]
    return "; ".join(map(one_paragraph, found))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(short_name, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
