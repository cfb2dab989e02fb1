"""A decoder of 3 GB in INT4 blocks and in dynamic INT8: seconds, peak memory, size and agreement, next to those of ONNX
Runtime's own tools.

Prints, asserts nothing: `python -m tests.benchmarks.bench_weight_only [--layers 14] [--smoke] [--only TOOL,TOOL]`.

The decoder is generated: a token embedding, layers of GroupQueryAttention and a gated feed-forward part as language
model builders write them, and an output layer. Every tool runs in a fresh process; memory is its peak, imports and
mapped pages included (Linux only). Agreement is that of the logits with those of the source in float32: relative RMS,
and the share of tokens whose most likely successor is the same. Needs 10 GB of disk and, for the source's own run, 5 GB
of memory; `--smoke` builds a decoder of 1 MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

_MS = "com.microsoft"
_TOKENS = 32


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder."""

    layers: int
    width: int
    inner: int
    heads: int
    shared: int
    """Heads of keys and values."""
    vocabulary: int


WHOLE = Sizes(14, 2048, 5632, 16, 4, 32000)
SMOKE = Sizes(2, 128, 256, 8, 4, 256)


@dataclass
class _Decoder:
    """Writes a decoder whose weights never are in memory together."""

    sizes: Sizes
    data: BinaryIO
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, name: str, *shape: int) -> str:
        random = np.random.default_rng(len(self.weights))
        values = random.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5 if len(shape) > 1 else 1)
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        entries = {"location": Path(self.data.name).name, "offset": self.data.tell(), "length": values.nbytes}
        for key, value in entries.items():
            proto.external_data.add(key=key, value=str(value))
        self.data.write(values.tobytes())
        self.weights.append(proto)
        return name

    def constant(self, name: str, values: np.ndarray[Any, Any]) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def op(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}/out"], name=name, **attributes))
        return f"{name}/out"

    def linear(self, value: str, name: str, depth: int, width: int) -> str:
        return self.op("MatMul", f"{name}/MatMul", value, self.weight(f"{name}.weight", depth, width))

    def norm(self, value: str, name: str) -> str:
        scale = self.constant(f"{name}.weight", np.ones(self.sizes.width, np.float32))
        # ONNX Runtime registers it in the default domain.
        return self.op("SimplifiedLayerNormalization", name, value, scale, axis=-1, epsilon=1e-6, stash_type=1)

    def attention(self, value: str, name: str) -> str:
        sizes = self.sizes
        head = sizes.width // sizes.heads
        q = self.linear(value, f"{name}/q", sizes.width, sizes.width)
        k, v = (self.linear(value, f"{name}/{part}", sizes.width, sizes.shared * head) for part in "kv")
        heads = {"num_heads": sizes.heads, "kv_num_heads": sizes.shared}
        h = self.op("GroupQueryAttention", f"{name}/GQA", q, k, v, "", "", "lengths", "total", domain=_MS, **heads)
        return self.linear(h, f"{name}/o", sizes.width, sizes.width)

    def feed_forward(self, value: str, name: str) -> str:
        gate, up = (self.linear(value, f"{name}/{part}", self.sizes.width, self.sizes.inner) for part in ("gate", "up"))
        silu = self.op("Mul", f"{name}/silu", gate, self.op("Sigmoid", f"{name}/sigmoid", gate))
        return self.linear(self.op("Mul", f"{name}/mul", silu, up), f"{name}/down", self.sizes.inner, self.sizes.width)


def make_decoder(path: Path, sizes: Sizes) -> Path:
    """Write a decoder of `[1, _TOKENS]` tokens."""
    with path.with_name(f"{path.name}.data").open("wb") as file:
        b = _Decoder(sizes, file)
        b.constant("lengths", np.array([_TOKENS - 1], np.int32))
        b.constant("total", np.array(_TOKENS, np.int32))
        h = b.op("Gather", "embed/Gather", b.weight("embed.weight", sizes.vocabulary, sizes.width), "ids")
        for layer in range(sizes.layers):
            name = f"layers.{layer}"
            h = b.op("Add", f"{name}/add", h, b.attention(b.norm(h, f"{name}/norm"), f"{name}/attn"))
            h = b.op("Add", f"{name}/add_2", h, b.feed_forward(b.norm(h, f"{name}/norm_2"), f"{name}/mlp"))
        b.linear(b.norm(h, "norm"), "head", sizes.width, sizes.vocabulary)
        b.nodes[-1].output[0] = "logits"
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, _TOKENS])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, _TOKENS, sizes.vocabulary])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MS, 1)]
    graph = helper.make_graph(b.nodes, "decoder", [ids], [logits], b.weights)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), path)
    return path


def by_ndld_flow(source: Path, target: Path, **settings: Any) -> None:
    from ndld_flow.steps.quantize import Quantize
    from tests.support.models_run import run_step

    ran = run_step(Quantize, source, target.parent / "step", settings, {})
    for file in ran.out.iterdir():
        file.rename(target.parent / file.name)


def by_matmul_nbits_quantizer(source: Path, target: Path, bits: int) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=32)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=True)


def by_quantize_dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = {"MatMulConstBOnly": True}
    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=True,
        extra_options=options,
    )


BLOCKS = {"mode": "weight_only", "block_size": 32}
TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "int4: ndld_flow": lambda source, target: by_ndld_flow(source, target, weights="int4", **BLOCKS),
    "int4: onnxruntime": lambda source, target: by_matmul_nbits_quantizer(source, target, 4),
    "int8: ndld_flow": lambda source, target: by_ndld_flow(source, target, **BLOCKS),
    "int8: onnxruntime": lambda source, target: by_matmul_nbits_quantizer(source, target, 8),
    "dynamic: ndld_flow": lambda source, target: by_ndld_flow(
        source, target, mode="dynamic", op_types=["MatMul"], reduce_range=False
    ),
    "dynamic: onnxruntime": by_quantize_dynamic,
}


def child(tool: str, source: Path, target: Path) -> None:
    """Run a tool in this fresh process; print its seconds and peak memory in MB."""
    start = time.perf_counter()
    TOOLS[tool](source, target)
    seconds = time.perf_counter() - start
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1]
    print(f"{seconds} {int(peak) / 1024}")


def logits_of(model: Path, vocabulary: int) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(0, vocabulary, (1, _TOKENS))
    return np.asarray(session.run(None, {"ids": ids})[0])


def bench(tool: str, source: Path, sizes: Sizes, reference: np.ndarray[Any, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-", dir=source.parent) as folder:
        target = Path(folder) / "model.onnx"
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.bench_weight_only",
            "--child",
            tool,
            str(source),
            str(target),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"{tool:22}failed: {(ended.stderr.strip().splitlines() or ['?'])[-1][:100]}", flush=True)
            return
        seconds, peak = map(float, ended.stdout.split()[-2:])
        size = sum(file.stat().st_size for file in target.parent.glob("model.onnx*")) / 1e6
        logits = logits_of(target, sizes.vocabulary)
    error = float(np.sqrt(np.mean((logits - reference) ** 2) / np.mean(reference**2)))
    same = float(np.mean(logits.argmax(-1) == reference.argmax(-1)))
    print(f"{tool:22}{seconds:9.1f}{peak:9.0f}{size:9.0f}{error:13.4f}{same:8.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=WHOLE.layers, help="14 are 3 GB")
    parser.add_argument("--smoke", action="store_true", help="a decoder of 1 MB")
    parser.add_argument("--only", default=",".join(TOOLS), help="tools, with commas between")
    parser.add_argument("--folder", type=Path, help="where the models are written; a temporary folder by default")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]), Path(given.child[2]))
        return
    sizes = SMOKE if given.smoke else Sizes(given.layers, *list(vars(WHOLE).values())[1:])
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-", dir=given.folder) as folder:
        source = make_decoder(Path(folder) / "source.onnx", sizes)
        weights = source.with_name("source.onnx.data").stat().st_size / 1e6
        print(f"a decoder of {sizes.layers} layers, {weights:,.0f} MB of weights")
        print(f"{'':22}{'seconds':>9}{'peak MB':>9}{'MB':>9}{'relative RMS':>13}{'top 1':>8}", flush=True)
        reference = logits_of(source, sizes.vocabulary)
        for tool in given.only.split(","):
            bench(tool, source, sizes, reference)


if __name__ == "__main__":
    main()
