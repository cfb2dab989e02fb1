"""FP16 conversion against its peers: seconds, peak memory, largest difference and who accepts the result.

Prints, asserts nothing: `python -m tests.benchmarks.bench_convert_fp16 [MODEL.onnx ...] [--big] [--only TOOL,TOOL]`.

Without models: those that tests build, light_resnet50 and the samples (PP-OCR, silero-vad). `--big` adds a generated
2.4 GB model. Every number comes from a fresh process. Seconds are load, convert and save, imports not counted; memory
is the process's peak, imports included (Linux only). `ndld_flow` is the step as it comes, `ndld_flow range` adds
`block: {values_outside: {}}`.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.support import models
from tests.support.fp16_checks import LIGHT, Feeds
from tests.support.samples import copy_samples

LARGE = 2**30
Tool = Callable[[Path, Path], float]


def by_ndld_flow(source: Path, target: Path, **limits: Any) -> float:
    from ndld_flow.precision.fp16.choice import Fp16Options
    from ndld_flow.precision.fp16.convert import convert_to_fp16, refuse_broken

    log = logging.getLogger("bench")
    start = time.perf_counter()
    done = convert_to_fp16(source, target, Fp16Options(**limits), log, lambda done, total, what: None)
    refuse_broken(target, source, done.functions_inlined, log)
    return time.perf_counter() - start


def by_ndld_flow_range(source: Path, target: Path) -> float:
    from ndld_flow.precision.fp16.choice import ValueLimits

    return by_ndld_flow(source, target, values_outside=ValueLimits(65504, 0, 0))


def by_onnxruntime(source: Path, target: Path) -> float:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    start = time.perf_counter()
    large = sum(p.stat().st_size for p in source.parent.glob(f"{source.name}*")) > LARGE
    model: Any = str(source) if large else onnx.load(source)
    write(convert_float_to_float16(model, keep_io_types=True), target)
    return time.perf_counter() - start


def by_polygraphy(source: Path, target: Path) -> float:
    from polygraphy.backend.onnx import convert_to_fp16

    start = time.perf_counter()
    write(convert_to_fp16(onnx.load(source)), target)
    return time.perf_counter() - start


def write(model: onnx.ModelProto, target: Path) -> None:
    """Write the model with its large weights in an external file."""
    large = sum(len(i.raw_data) for i in model.graph.initializer) > LARGE  # ByteSize() would serialize it all
    onnx.save(model, target, save_as_external_data=large, location=f"{target.name}.data" if large else None)


TOOLS: dict[str, Tool] = {
    "ndld_flow": by_ndld_flow,
    "ndld_flow range": by_ndld_flow_range,
    "onnxruntime": by_onnxruntime,
    "polygraphy": by_polygraphy,
}


def work(tool: str, source: Path, target: Path) -> None:
    """In the fresh process: convert, print seconds and peak megabytes."""
    seconds = TOOLS[tool](source, target)
    # Not getrusage: what it says is never less than what the parent had when it forked.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(f"{seconds:.2f} {int(peak) / 1024:.0f}")


def measure(tool: str, source: Path, compare: bool) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        target = Path(folder) / "model.onnx"
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.bench_convert_fp16",
            "--work",
            tool,
            str(source),
            str(target),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"fails: {(done.stderr.strip().splitlines() or ['killed'])[-1][:90]}"
        seconds, memory = done.stdout.split()[-2:]
        verdict = f"{difference(source, target)}; {', '.join(complaints(target)) or 'valid'}" if compare else ""
        return f"{float(seconds):7.2f} s {int(memory):6d} MB  {verdict}"


def difference(source: Path, target: Path) -> str:
    """Largest absolute difference of all outputs, and their cosine; or why it does not run."""
    try:
        feeds = make_feeds(session(source), height=48 if "_rec_" in source.name else 320)
        exact, half = ([np.asarray(o, np.float64) for o in session(path).run(None, feeds)] for path in (source, target))
    except Exception as error:
        return f"does not run ({' '.join(str(error).split())[:60]}...)"
    largest = max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(exact, half, strict=True))
    a, b = (np.concatenate([o.ravel() for o in outputs]) for outputs in (exact, half))
    return f"max {largest:.1e} cosine {a @ b / (np.linalg.norm(a) * np.linalg.norm(b) or 1):.6f}"


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def make_feeds(inference_session: ort.InferenceSession, height: int) -> Feeds:
    """Uniform [0, 1) for floats, small integers, True; free dimensions are 1, images 320 wide."""
    random = np.random.default_rng(0)
    feeds: Feeds = {}
    for value in inference_session.get_inputs():
        shape = [d if isinstance(d, int) else {2: height, 3: 320}.get(i, 1) for i, d in enumerate(value.shape)]
        if value.name == "input":  # silero: 32 ms
            shape = [1, 512]
        kind = value.type
        feeds[value.name] = (
            random.random(shape, dtype=np.float32) if "float" in kind else np.full(shape, 16000 if not shape else 1)
        )
    return feeds


def complaints(path: Path) -> Iterator[str]:
    """Return the errors that checkers report for a converted model."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:
        yield f"checker: {' '.join(str(error).split())[:60]}..."
    names = Counter(node.name for node in onnx.load(path, load_external_data=False).graph.node if node.name)
    doubled = sum(count > 1 for count in names.values())
    if doubled:
        yield f"{doubled} doubled node names"


def build(folder: Path, big: bool) -> Iterator[Path]:
    """The models measured when none are given."""
    for name in ("cnn", "tfm", "ctrl", "func", "ext"):
        target = folder / name / f"{name}.onnx"
        target.parent.mkdir()
        yield getattr(models, f"make_{name}")(target)
    yield LIGHT / "light_resnet50.onnx"
    (folder / "samples").mkdir()
    yield from copy_samples(folder / "samples")
    if big:
        target = folder / "big" / "big.onnx"
        target.parent.mkdir()
        yield models.make_big(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--only", default=",".join(TOOLS))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work[0], Path(asked.work[1]), Path(asked.work[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder), asked.big) if asked.big or not asked.models else iter(())
        for source in (*asked.models, *built):
            local = Path(folder) / source.name if source in asked.models or source.is_relative_to(LIGHT) else source
            if local != source:
                local.write_bytes(source.read_bytes())
            print(source.name)
            for tool in asked.only.split(","):
                print(f"  {tool:<16} {measure(tool, local, compare=source.stem != 'big')}", flush=True)


if __name__ == "__main__":
    main()
