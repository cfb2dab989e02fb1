"""Sanitize every model of onnx's own operator suite and compare outputs in ONNX Runtime.

    python tests/benchmarks/sweep_sanitize.py [--every N]

Each model is tried as it is, with all inputs but the first made constants, and with all of them made constants, so
that folding has work. Prints what differs, what was left out, and the counts. Two to three minutes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.models.files import MAX_IR_VERSION

RANDOM = ("bernoulli", "random", "training_dropout")


def variants(model: onnx.ModelProto, inputs: list[Any]) -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "as it is", model
    if all(isinstance(array, np.ndarray) and array.dtype != object for array in inputs):
        for kind, free in (("one input", 1), ("no input", 0)):
            if len(inputs) > free:
                yield kind, with_constants(model, inputs, free)


def with_constants(model: onnx.ModelProto, inputs: list[Any], free: int) -> onnx.ModelProto:
    """The model with its inputs from `free` on made initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    named = list(zip(model.graph.input, inputs, strict=False))
    del changed.graph.input[free:]
    changed.graph.initializer.extend(numpy_helper.from_array(a, v.name) for v, a in named[free:])
    return changed


def outputs(path: Path, feed: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def verdict(source: Path, target: Path, feed: dict[str, Any], name: str) -> str:
    try:
        before = outputs(source, feed)
    except Exception:  # many operators have no kernel here
        return "ONNX Runtime cannot run the source"
    try:
        change = sanitize_file(source, target, SanitizeSettings(inline_functions=True))
    except ModelError as error:
        return f"refused: {error}"
    if any(word in name for word in RANDOM):
        return "random"
    if not all(map(close, before, outputs(target, feed))):
        return "DIFFERENT"
    return "equal, with passes left out" if any("failed" in note for note in change.notes) else "equal"


def close(before: Any, after: Any) -> bool:
    if not isinstance(before, np.ndarray):
        return type(before) is type(after)
    if before.dtype.kind not in "fc":
        return bool(np.array_equal(before, after))
    # ONNX Runtime computes fp16 in fp32 where neighbours allow: one unit in the last place.
    tolerance = 2e-3 if before.dtype == np.float16 else 1e-5
    return bool(np.allclose(before, after, rtol=tolerance, atol=tolerance, equal_nan=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take each Nth model only")
    every = parser.parse_args().every
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from onnx.backend.test.case.node import collect_testcases

    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "target.onnx"
        for case in collect_testcases(None)[::every]:
            if case.model is None or not case.data_sets:
                continue
            inputs = list(case.data_sets[0][0])
            feed = {value.name: array for value, array in zip(case.model.graph.input, inputs, strict=False)}
            for kind, model in variants(case.model, inputs):
                # Before IR version 4 an initializer that is no input is invalid.
                model.ir_version = min(max(model.ir_version, 4), MAX_IR_VERSION)
                onnx.save(model, source)
                each = verdict(source, target, {v.name: feed[v.name] for v in model.graph.input}, case.name)
                counts[each.partition(":")[0]] += 1
                if each.startswith(("DIFFERENT", "refused", "equal,")):
                    print(f"{case.name} ({kind}): {each}"[:200], flush=True)
    for each, count in counts.most_common():
        print(f"{count:6d} {each}")


if __name__ == "__main__":
    main()
