"""Count what accuracy checks notice, on twenty models: healthy changes, wrong ones, and planted faults.

    python -m tests.benchmarks.bench_power [--models pitch file_type] [--faults 60]

The models are those of `bench_rivals`; none of them served to choose a bound. For each it prints:

- of changes that keep all values (`sanitize`, five opsets, files written by ONNX Runtime, `onnxslim` where it is
  installed; the model itself at other levels of optimization and numbers of threads), how many a check by rounding
  refuses, on eight real samples; a file that the default bounds refuse too is broken by its tool, is named, and is not
  counted;
- of models with a broken part (the largest weight in another order, an input that is ignored, an output that is dead,
  stale or swapped with another), how many a check with default inputs passes without the word *weak*;
- of wrong ones that change an output (a weight scaled by 1.03 or 0.96, a weight of bfloat16, a wrong twin of a node),
  how many a check passes by the default bounds and by rounding;
- the share of planted faults that no output shows: with the default sample alone, with made samples, with real ones;
- the seconds of a check by the default bounds with one sample, and of its power with twice that as the limit.

It asserts nothing, and takes some twenty minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ndld_flow.accuracy.accuracy_record import Criteria, compose_accuracy
from ndld_flow.accuracy.made_choice import extend_pair
from ndld_flow.accuracy.model_comparison import (
    ComparedModel,
    ModelPair,
    compare_models,
    pair_models,
    run_reference,
)
from ndld_flow.accuracy.power.faults import NodeFault, node_faults, weight_sites
from ndld_flow.accuracy.power.measure_power import measure_power, seconds_for
from ndld_flow.accuracy.rounding import rounding_bounds
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.models.files import load_model, save_model
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.sanitize import Sanitize
from ndld_flow.store.kinds import Onnx
from tests.support.broken_parts import broken_parts
from tests.support.models_run import run_step
from tests.support.rivalry.subjects import SUBJECTS, Subject, prepare_subject, write_files

CACHE = Path.home() / ".cache/ndld_flow-rivals/subjects"
SETTINGS = OnnxruntimeRequest(threads=1)
OTHER_SETTINGS = tuple(
    OnnxruntimeRequest(threads=threads, optimization=level)
    for level in ("disabled", "basic", "extended", "all")
    for threads in (1, 2)
    if (level, threads) != ("all", 1)
)
"""Settings of the model itself other than the reference's, which keep all values."""
REAL = 8
OPSETS = (17, 18, 19, 20, 21)
UNCHANGED = 1e-6
"""An output whose error is smaller, relative to its rms, has not changed."""
WRONG_WEIGHTS, WRONG_NODES = 6, 6


@dataclass(frozen=True)
class Row:
    """The result of one model."""

    name: str
    healthy: int
    refused: int
    wrong: int
    passed_by_default: int
    passed_by_rounding: int
    broken: int
    passed_broken: tuple[str, ...]
    """Those that pass a check with default inputs that is not weak."""
    unseen: tuple[float, float, float]
    """Share of planted faults: with the default sample, with made ones, with real ones."""
    weak: tuple[str, ...]
    """Reasons why the check with made samples is weak."""
    check_s: float
    power_s: float


class Bench:
    """One model with its samples."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.folder, self.scratches = subject, folder, 0
        real = {name: str(files) for name, files in write_files(subject.unseen, folder / "real").items()}
        self.real = SampleSettings(data=real, samples=REAL)  # type: ignore[arg-type]
        side = ComparedModel(subject.model, "source", SETTINGS)
        self.judging = pair_models(side, side, {}, self.real, "native")
        self.known = run_reference(self.judging, self.scratch(), silent)

    def scratch(self) -> Path:
        self.scratches += 1
        folder = self.folder / str(self.scratches)
        folder.mkdir()
        return folder

    def pair(self, wanted: SampleSettings) -> ModelPair:
        side = ComparedModel(self.subject.model, "source", SETTINGS)
        return pair_models(side, side, {}, wanted, "native")

    def judge(self, model: Path, *, rounding: bool, settings: OnnxruntimeRequest = SETTINGS) -> Accuracy:
        """Judge a model on real samples."""
        pair = replace(self.judging, candidate=ComparedModel(model, model.stem, settings))
        criteria = Criteria(Tolerance(), {}, 5, -1, ())
        compared = compare_models(pair, criteria.measuring, False, self.scratch(), silent, self.known)
        if rounding:
            self.bounds = getattr(self, "bounds", None) or rounding_bounds(pair, [compared])[0][0]
            criteria = replace(criteria, rounding=self.bounds)
        return compose_accuracy(criteria, compared, None, None)

    def unseen(self, pair: ModelPair, faults: int) -> tuple[float, tuple[str, ...]]:
        criteria = Criteria(Tolerance(), {}, 5, -1, ())
        compared = compare_models(pair, criteria.measuring, False, self.scratch(), silent)
        power = measure_power(criteria.check_of(pair, compared.outputs), self.scratch(), count=faults)
        return power.share("unseen"), power.weak

    def cost(self) -> tuple[float, float]:
        """Return the seconds of a check with default samples, and of the power of 20 faults."""
        pair, criteria = self.pair(SampleSettings()), Criteria(Tolerance(), {}, 5, -1, ())
        start = time.perf_counter()
        compared = compare_models(pair, criteria.measuring, False, self.scratch(), silent)
        middle = time.perf_counter()
        measure_power(criteria.check_of(pair, compared.outputs), self.scratch(), seconds=seconds_for(middle - start))
        return middle - start, time.perf_counter() - middle

    def healthy(self) -> Iterator[Path]:
        """Yield models that keep all values."""
        yield run_step(Sanitize, self.subject.model, self.scratch(), {}).out / Onnx.main
        for opset in OPSETS:
            settings = {"operations": [{"set_opset": {"to": opset}}]}
            try:
                yield run_step(Edit, self.subject.model, self.scratch(), settings).out / Onnx.main
            except NdldFlowError:
                continue  # it has this opset, or a later one
        for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
            options = ort.SessionOptions()
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
            written = self.scratch() / f"{level}.onnx"
            options.optimized_model_filepath = str(written)
            ort.InferenceSession(self.subject.model, options, providers=["CPUExecutionProvider"])
            yield written
        if importlib.util.find_spec("onnxslim"):
            slim = self.scratch() / "slim.onnx"
            command = [sys.executable, "-m", "onnxslim", str(self.subject.model), str(slim)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                yield slim

    def broken(self, pair: ModelPair) -> tuple[int, list[str]]:
        """Return how many models with a broken part ran on the samples of a pair, and those that pass."""
        known, criteria = run_reference(pair, self.scratch(), silent), Criteria(Tolerance(), {}, 5, -1, ())
        first = {name: array for name, array in known.outputs[0].items() if array is not None}
        count, passed = 0, []
        for name, model in broken_parts(self.subject.model, first):
            path = self.scratch() / "broken.onnx"
            onnx.save(model, path)
            candidate = replace(pair, candidate=ComparedModel(path, name, SETTINGS))
            try:
                compared = compare_models(candidate, criteria.measuring, False, self.scratch(), silent, known)
            except NdldFlowError:
                continue  # it cannot run, which every check notices
            count += 1
            passed += [name] if compose_accuracy(criteria, compared, None, None).passed else []
        return count, passed

    def wrong(self) -> Iterator[Path]:
        """Yield models with one wrong weight, or one wrong node."""
        stream = np.random.default_rng(0)
        count = len(weight_sites(self._lifted()))
        for number, index in enumerate(stream.permutation(count)[:WRONG_WEIGHTS]):
            model = self._lifted()
            weight = weight_sites(model)[index].weight
            assert weight.const_value is not None
            values = np.array(weight.const_value.numpy())
            if values.dtype.kind != "f":
                continue
            wrong = (values * 1.03, values * 0.96, values.astype(ml_dtypes.bfloat16))[number % 3]
            weight.const_value = ir.tensor(wrong.astype(values.dtype), name=weight.name)
            yield self._written(model)
        for index in stream.permutation(len(node_faults(self._lifted())))[:WRONG_NODES]:
            model = self._lifted()
            _damage(node_faults(model)[index])
            yield self._written(model)

    def _lifted(self) -> ir.Model:
        return load_model(self.subject.model)

    def _written(self, model: ir.Model) -> Path:
        path = self.scratch() / "wrong.onnx"
        save_model(model, path)
        return path


def silent(done: int, total: int, what: str) -> None:
    """Report no progress."""


def _damage(fault: NodeFault) -> None:
    """Make a node wrong in place."""
    node = fault.node
    wrong = fault.wrong_attributes()
    node.attributes.clear()
    node.attributes.update({attribute.name: attribute for attribute in wrong})
    node.op_type = fault.op_type


def measure(subject: Subject, folder: Path, faults: int) -> Row:
    bench = Bench(subject, folder)
    healthy = []
    for path in bench.healthy():
        if bench.judge(path, rounding=False).passed:
            healthy.append(bench.judge(path, rounding=True))
        else:
            print(f"  {subject.name}: {path.name} is broken by its tool: the default bounds refuse it too")
    verdicts = []
    for path in bench.wrong():
        try:
            usual, strict = bench.judge(path, rounding=False), bench.judge(path, rounding=True)
        except NdldFlowError:
            continue  # it cannot run, which every check notices
        metrics = [output.metrics for output in usual.outputs]
        effect = max(metric.get("relative_rms", metric.get("mismatched", 0.0)) for metric in metrics)
        if effect > UNCHANGED or usual.failed:
            verdicts.append((usual.passed, strict.passed))
    for settings in OTHER_SETTINGS:
        healthy.append(bench.judge(subject.model, rounding=True, settings=settings))
    default = bench.pair(SampleSettings())
    extended = extend_pair(default, "auto")
    (first, _), (second, weak), (third, _) = (bench.unseen(pair, faults) for pair in (default, extended, bench.judging))
    broken, passed = bench.broken(extended)
    return Row(
        subject.name,
        len(healthy),
        sum(not accuracy.passed for accuracy in healthy),
        len(verdicts),
        sum(usual for usual, _ in verdicts),
        sum(strict for _, strict in verdicts),
        broken,
        () if weak else tuple(passed),
        (first, second, third),
        weak,
        *bench.cost(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--faults", type=int, default=60)
    chosen = parser.parse_args()
    rows = []
    print(
        f"{'model':20} refused   wrong passed  broken   unseen: default made real  "
        "check power s   weak with made samples"
    )
    for name in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(prepare_subject(name, CACHE), Path(folder), chosen.faults)
        rows.append(row)
        unseen = " ".join(f"{100 * share:3.0f} %" for share in row.unseen)
        print(
            f"{row.name:20} {row.refused} of {row.healthy}    {row.passed_by_default:2} and {row.passed_by_rounding} "
            f"of {row.wrong:2}   {len(row.passed_broken)} of {row.broken:2}   {unseen}   "
            f"{row.check_s:5.2f} {row.power_s:5.2f}   {'; '.join((*row.weak, *row.passed_broken))}",
            flush=True,
        )
    names = ("healthy", "refused", "wrong", "passed_by_default", "passed_by_rounding", "broken")
    totals = [f"{name.replace('_', ' ')} {sum(getattr(row, name) for row in rows)}" for name in names]
    print("; ".join([*totals, f"broken ones passed without a remark {sum(len(row.passed_broken) for row in rows)}"]))


if __name__ == "__main__":
    main()
