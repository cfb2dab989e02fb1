"""The network that TensorRT's parser creates from an ONNX model."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.dtype_names import dtype_of_tensorrt
from ndld_flow.base.errors import ModelError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.base.text import short_name, shortened
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.models.external_files import mentions
from ndld_flow.models.files import read_proto, unname_dims
from ndld_flow.records.profile import TensorInfo
from ndld_flow.runtimes.tensorrt.build_log import join_reasons, reason_of
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_SHOWN_ERRORS = 5
_NAMED_AS_UNKNOWN = b"\x12\x01?"
"""Field 2 of a dimension, its name, in the bytes of a model: a string of one character."""
_NO_PLUGIN = re.compile(r"plugin not found|plugin creator", re.IGNORECASE)
_NO_REASON = ("", "false")
_INVALID_NODE = re.compile(r"^Invalid Node - \S*\s*")
_NOISE = re.compile(r"\[checkMacros\.cpp::catchCudaError.*")
_ASSERTION = re.compile(r"^Assertion failed: (?P<condition>.*?)(?::\s+(?P<words>[A-Z].*))?$", re.DOTALL)
_QUOTED = re.compile(r'^.* && "(?P<words>[^"]+)"\.?$', re.DOTALL)


@dataclass(frozen=True)
class ParsedNetwork:
    """A builder and its network of a model; the objects of TensorRT's bindings."""

    builder: Bound
    network: Bound
    parser: Bound
    """The parser, which owns the network's weights and must outlive it."""
    parse_s: float

    def inputs(self) -> tuple[Bound, ...]:
        return tuple(self.network.get_input(index) for index in range(self.network.num_inputs))

    def outputs(self) -> tuple[Bound, ...]:
        return tuple(self.network.get_output(index) for index in range(self.network.num_outputs))

    def layers(self) -> Iterator[Bound]:
        return (self.network.get_layer(index) for index in range(self.network.num_layers))


def parse_model(
    trt: Bindings, builder: Bound, model: Path, settings: BuildSettings, creation_flags: int
) -> ParsedNetwork:
    """Parse an ONNX model with external data in its folder. Raises ModelError with all parser errors."""
    network = builder.create_network(creation_flags)
    parser = trt.OnnxParser(network, builder.logger)
    _set_parser_flags(trt, parser, settings)
    began = time.perf_counter()
    if not _parse(parser, model):
        raise ModelError(_describe_errors(settings.backend or "tensorrt", trt.__version__, parser))
    return ParsedNetwork(builder, network, parser, time.perf_counter() - began)


def _parse(parser: Bound, model: Path) -> bool:
    """Parse a model, with dimensions named `?` as unnamed ones: TensorRT requires dimensions of one name to be equal.

    The names cannot be changed later: the network's shapes refer to them.
    """
    if mentions(model, _NAMED_AS_UNKNOWN):
        proto = read_proto(model)
        if unname_dims(proto):
            return bool(parser.parse(proto.SerializeToString(), str(model)))
    return bool(parser.parse_from_file(str(model)))


def tensor_info(tensor: Bound) -> TensorInfo:
    """Return the record of an ITensor; -1 for a dynamic dimension."""
    return TensorInfo(name=tensor.name, dtype=dtype_of_tensorrt(tensor.dtype.name), shape=tuple(tensor.shape))


def _set_parser_flags(trt: Bindings, parser: Bound, settings: BuildSettings) -> None:
    for name in settings.advanced.parser_flags:
        parser.set_flag(getattr(trt.OnnxParserFlag, name))
    if settings.native_instance_norm:
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    elif settings.native_instance_norm is False:
        parser.clear_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)


def _describe_errors(backend: EngineBackend, version: str, parser: Bound) -> str:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = [_describe_error(error) for error in errors[:_SHOWN_ERRORS]]
    more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
    what = "; ".join(dict.fromkeys(reasons)) or "it reports no reason"
    return (
        f"{TITLES[backend]} {version} cannot use this model: {what}{more}. "
        "Replace such nodes, load plugins for them (`plugins`), or correct the types with Casts."
    )


def _describe_error(error: Bound) -> str:
    """Return `node Magic_2 (Magic): no such operator, and no plugin of that name is loaded`."""
    reason = shortened(_reason(error.desc()), 300)
    operator = error.node_operator()
    if not operator:
        return reason
    name = error.node_name() or f"number {error.node()}"
    return f"node {short_name(name)} ({short_name(operator)}): {reason}"


def _reason(text: str) -> str:
    if _NO_PLUGIN.search(text):
        return "TensorRT has no such operator, and no plugin of that name is loaded"
    lines = [_NOISE.sub("", line).strip() for line in text.splitlines()]
    reasons = [reason_of(line) for line in lines if not _INVALID_NODE.match(line) and line]
    if all(reason in _NO_REASON for reason in reasons):
        return "TensorRT does not support this operator"
    reason = join_reasons(reasons)
    if assertion := _ASSERTION.match(reason):
        reason = assertion["words"] or assertion["condition"]
    quoted = _QUOTED.match(reason)  # C++: condition && "what it means"
    return quoted["words"] if quoted else reason
