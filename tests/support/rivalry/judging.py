"""The neutral judge: it opens each delivered model in the runtime that its tool delivers for, compares its outputs with
those of the source on unseen samples, and times all of them in alternating passes.

`python -m tests.support.rivalry.judging REQUEST.json` prints what it found; each part runs in a process of its own, so
that a model that ends the process is one that failed.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.benchmarks.rivals.protocol import ROOT, Delivery, Sample, cosine, read_samples

Clock = Literal["cpu", "wall"]
Run = Callable[[Sample], list[np.ndarray[Any, Any]]]
_BURST_S = 0.012
_MOST_PASSES = 200
_SETTLE_S = 0.02
"""Seconds after which the threads of another model no longer wait for work by spinning."""
_PATIENCE_S = 600


@dataclass(frozen=True)
class Judged:
    """The agreement of a delivered model with the source."""

    cosine: float | None = None
    """That of the worst output of the worst unseen sample; None if it does not run."""
    given: float | None = None
    """The same on the samples that the tool had; None if that was not judged."""
    failed: str = ""

    def holds(self, bound: float) -> bool:
        """Return whether all samples hold the bound, those that the tool had included."""
        return self.cosine is not None and min(self.cosine, 1.0 if self.given is None else self.given) >= bound


@dataclass(frozen=True)
class Times:
    """Milliseconds for a pass, one value for each round."""

    cpu: tuple[float, ...] = ()
    wall: tuple[float, ...] = ()
    processes: int = 1
    """Number of processes that have as many rounds each, one after the other."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one model is as another, with the ends of its interval of 95 % confidence."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def judge(source: Path, delivery: Delivery, unseen: Path, threads: int) -> Judged:
    """Return how well a model agrees with the source, as found by another process."""
    try:
        found = _ask("judge", [Delivery(str(source)), delivery], unseen, threads)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return Judged(failed=_reason(error))
    return Judged(**found)


def time_in_turns(
    deliveries: Sequence[Delivery], unseen: Path, threads: int, rounds: int, processes: int
) -> list[Times]:
    """Return the times of each model, round by round; all are open in each of some processes."""
    parts = [_ask("time", deliveries, unseen, threads, rounds) for _ in range(processes)]
    return [
        Times(_joined(parts, number, "cpu"), _joined(parts, number, "wall"), processes)
        for number in range(len(deliveries))
    ]


def _joined(parts: Sequence[Sequence[Mapping[str, Sequence[float]]]], number: int, clock: Clock) -> tuple[float, ...]:
    return tuple(value for part in parts for value in part[number][clock])


def compare(base: Times, candidate: Times, clock: Clock = "cpu") -> Ratio:
    """Return the ratio of times of the same rounds: the median, and its interval by bootstrap over processes and, in
    each, over rounds, as a process may be lucky with its memory.
    """
    pairs = zip(getattr(base, clock), getattr(candidate, clock), strict=True)
    ratios = [item / other for item, other in pairs]
    size = len(ratios) // base.processes
    parts = [ratios[start : start + size] for start in range(0, len(ratios), size)]
    pick = random.Random(0)
    medians = []
    for _ in range(2_000):
        drawn = pick.choices(parts, k=len(parts))
        medians.append(statistics.median(ratio for part in drawn for ratio in pick.choices(part, k=size)))
    medians.sort()
    return Ratio(statistics.median(ratios), medians[50], medians[1_949])


def _ask(what: str, deliveries: Sequence[Delivery], unseen: Path, threads: int, rounds: int = 0) -> Any:
    request = {
        "what": what,
        "deliveries": [asdict(delivery) for delivery in deliveries],
        "unseen": str(unseen),
        "threads": threads,
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request))
        command = [sys.executable, "-m", "tests.support.rivalry.judging", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=_PATIENCE_S)
    return json.loads(done.stdout.splitlines()[-1])


def _reason(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"more than {_PATIENCE_S} s"
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    return lines[-1] if lines else f"the process ended with {error.returncode}"


def _open(delivery: Delivery, threads: int) -> Run:
    opener = {"onnxruntime": _open_onnxruntime, "openvino": _open_openvino}[delivery.runtime]
    return opener(delivery.model, delivery.settings, threads)


def _open_onnxruntime(model: str, settings: Mapping[str, Any], threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    enums = {"graph_optimization_level": ort.GraphOptimizationLevel, "execution_mode": ort.ExecutionMode}
    for name, value in {**settings, "intra_op_num_threads": threads}.items():
        setattr(options, name, enums[name](value) if name in enums else value)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return lambda sample: list(session.run(None, {name: sample[name] for name in names}))


def _open_openvino(model: str, settings: Mapping[str, Any], threads: int) -> Run:
    import openvino as ov

    compiled = ov.Core().compile_model(model, "CPU", {**settings, "INFERENCE_NUM_THREADS": threads})
    names = [port.names for port in compiled.inputs]  # an input that is cast first has the name of the result too
    request, outputs = compiled.create_infer_request(), range(len(compiled.outputs))

    def run(sample: Sample) -> list[np.ndarray[Any, Any]]:
        request.infer([next(sample[name] for name in known if name in sample) for known in names], share_inputs=True)
        return [request.get_output_tensor(number).data for number in outputs]

    return run


def _judge(deliveries: Sequence[Delivery], samples: Sequence[Sample], threads: int) -> dict[str, Any]:
    source, candidate = (_open(delivery, threads) for delivery in deliveries)
    return asdict(Judged(min(cosine(source(sample), candidate(sample)) for sample in samples)))


def _time(deliveries: Sequence[Delivery], samples: Sequence[Sample], threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return the times of each round, which each model takes another turn in, at random: in a fixed order, some always
    follow a model of another runtime, and were 8 % slower by that."""
    settle_s = _SETTLE_S if threads > 1 else 0.0
    runs = [_open(delivery, threads) for delivery in deliveries]
    counts = [_passes(run, samples[0]) for run in runs]
    found = [Times() for _ in runs]
    for number in range(rounds):
        sample = samples[number % len(samples)]
        for index in random.sample(range(len(runs)), len(runs)):
            time.sleep(settle_s)
            cpu, wall = _burst(runs[index], sample, counts[index])
            before = found[index]
            found[index] = replace(before, cpu=(*before.cpu, cpu), wall=(*before.wall, wall))
    return [asdict(item) for item in found]


def _passes(run: Run, sample: Sample) -> int:
    """Return the number of passes whose time a clock resolves well."""
    run(sample)
    fastest = min(_burst(run, sample, 1)[0] for _ in range(3)) / 1e3
    return max(1, min(_MOST_PASSES, math.ceil(_BURST_S / max(fastest, 1e-6))))


def _burst(run: Run, sample: Sample, passes: int) -> tuple[float, float]:
    """Return the mean CPU and wall time of some passes, after one that fills the caches again."""
    run(sample)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(passes):
        run(sample)
    return (time.process_time() - cpu) / passes * 1e3, (time.perf_counter() - wall) / passes * 1e3


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    deliveries = [Delivery(**values) for values in request["deliveries"]]
    samples = read_samples(Path(request["unseen"]))
    if request["what"] == "judge":
        found: object = _judge(deliveries, samples, request["threads"])
    else:
        found = _time(deliveries, samples, request["threads"], request["rounds"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
