"""Accuracy of layer matches by their claimed confidence: printed, not asserted.

`python -m tests.benchmarks.bench_matching [models]`, of det, rec, cls, resnet50, squeezenet, inception, transformer;
default cls, squeezenet, transformer: about ten minutes. `rtx` among them adds engines of TensorRT-RTX.

Models are edited, named as an exporter would name them anew, and run by ONNX Runtime; the truth is known by
construction (`tests/support/layer_pairs.py`). Each pair is matched with everything the tool records,
and with less. Pairs of different networks are counted too: none of their matches is right.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import onnx

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.runtimes.tensorrt.library import find_library
from tests.support.engine_builds import Asked, build_all
from tests.support.layer_pairs import (
    EDITS,
    NAMINGS,
    VIEWS,
    Judged,
    Sample,
    Shapes,
    feeds_of,
    judge,
    quantize,
    recall,
    run,
    sample_of,
    trace,
)
from tests.support.models import tfm_model
from tests.support.samples import fetch_sample
from tests.support.trex_matching import beam_search, matched_share

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = {"resnet50": "resnet50", "squeezenet": "squeezenet", "inception": "inception_v1"}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "det": {"x": (1, 3, 96, 96)},
    "rec": {"x": (1, 3, 48, 96)},
    "cls": {"x": (1, 3, 48, 96)},
}
OTHER_SHAPES = {"det": {"x": (2, 3, 128, 96)}, "rec": {"x": (2, 3, 48, 128)}, "cls": {"x": (4, 3, 48, 96)}}
BUCKETS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)

Samples = dict[tuple[str, str], Sample]
"""(edit, naming) -> what was measured."""


def load(name: str) -> onnx.ModelProto:
    if name == "transformer":
        return tfm_model()
    return onnx.load(LIGHT / f"light_{LIGHT_MODELS[name]}.onnx" if name in LIGHT_MODELS else fetch_sample(name))


def shapes_of(name: str, model: onnx.ModelProto) -> Shapes:
    given = {value.name: (1, 12) for value in model.graph.input} if name == "transformer" else {}
    return SHAPES.get(name, given)


def measure(name: str, folder: Path) -> Samples:
    """Every edit under every naming, and what ONNX Runtime's levels and its quantizer make of the model."""
    traced = trace(load(name))
    shapes = shapes_of(name, traced.model)
    feeds_of(traced.model, shapes)
    result: Samples = {}
    for naming, rename in NAMINGS.items():
        cases = [(edit, apply(traced, random.Random(1)), shapes, "all") for edit, apply in EDITS.items()]
        cases.append(("level disabled", traced, shapes, "disabled"))
        cases.append(("level extended", EDITS["twin inserted early"](traced, random.Random(1)), shapes, "extended"))
        if name in OTHER_SHAPES:
            cases.append(("other shapes", EDITS["removed"](traced, random.Random(1)), OTHER_SHAPES[name], "all"))
        cases.append(("quantized", quantize(traced, random.Random(1), folder, shapes), shapes, "all"))
        for edit, changed, fed, level in cases:
            try:
                result[edit, naming] = run(rename(changed), fed, folder / "run", level)  # type: ignore[arg-type]
            except (BackendError, ModelError) as error:
                print(f"  {name}, {edit}, {naming}: {str(error)[:100]}")
    return result


def build(names: Sequence[str], folder: Path) -> dict[str, Samples]:
    """Engines of TensorRT-RTX, from the layers that its build log lists."""
    asked: dict[str, Asked] = {}
    truths = {}
    for name in names:
        traced = trace(load(name))
        ranges = {value: {end: list(dims) for end in ("min", "opt", "max")} for value, dims in SHAPES[name].items()}
        for edit in ("unchanged", "inserted early", "twin inserted late", "removed"):
            for naming in ("names kept", "numbered by type", "scrambled"):
                changed = NAMINGS[naming](EDITS[edit](traced, random.Random(1)))
                path = folder / f"{len(asked)}.onnx"
                onnx.save(changed.model, path)
                settings = {"backend": "tensorrt_rtx", "compute_capabilities": ["8.6"], "optimization_level": 0}
                asked[str(len(asked))] = Asked(path, settings, ranges)
                truths[path.stem] = (name, edit, naming, changed.truth)
    result: dict[str, Samples] = defaultdict(dict)
    for key, came in build_all(asked, find_library("tensorrt_rtx"), folder / "engines").items():
        name, edit, naming, truth = truths[key]
        layers = [layer.model_copy(update={"samples_ms": (1.0,)}) for layer in came.build.layers]
        result[f"{name} in RTX"][edit, naming] = sample_of(layers, truth)
    return result


def pairs(measured: dict[str, Samples]) -> Iterator[tuple[str, bool, Sample, Sample]]:
    """Each edit against the unchanged model of the same exporter, in every view; and different networks."""
    for samples in measured.values():
        for (edit, naming), sample in samples.items():
            base = samples.get(("unchanged", naming))
            if base is not None:
                yield from ((f"{edit}", True, view(base), view(sample)) for view in VIEWS.values())
    for combination, other in combinations(measured.values(), 2):
        for naming in NAMINGS:
            ends = combination.get(("unchanged", naming)), other.get(("unchanged", naming))
            if ends[0] is not None and ends[1] is not None:
                for view in VIEWS.values():
                    yield "another network", False, view(ends[0]), view(ends[1])


def print_table(measured: dict[str, Samples]) -> None:
    counts: dict[float, Counter[bool]] = defaultdict(Counter)
    result: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    shares = [0.0, 0.0, 0]
    for edit, is_same, pair, other in pairs(measured):
        rows = match_layers([pair.profile, other.profile])
        judged: list[Judged] = judge(rows, pair, other)
        for match in judged:
            bucket = next(low for low in BUCKETS if match.confidence >= low - 1e-9)
            counts[bucket][is_same and match.is_right] += 1
        matched, there = recall(rows, pair, other) if is_same else (0, 0)
        sure = sum(match.confidence >= 0.9 for match in judged)
        result[edit] = [a + b for a, b in zip(result[edit], (matched, there, sure), strict=True)]
        shares[0] += matched_share(pair.profile.layers, [at for row in rows if row.layers[1] for at in row.layers[0]])
        layers = pair.profile.layers
        shares[1] += matched_share(layers, [at for at, _ in beam_search(layers, other.profile.layers)])
        shares[2] += 1
    print("\nconfidence   matches    right")
    for low, high in zip(BUCKETS, (1.0, *BUCKETS), strict=False):
        total = counts[low].total()
        if total:
            print(f"{low:.2f} to {high:.2f} {total:9,} {counts[low][True] / total:8.2%}")
    print("\nedit                     layers with a partner   found   matched at 0.9 or more")
    for edit, (matched, there, sure) in result.items():
        print(f"{edit:24} {there:21,} {matched / there if there else 0:7.2%} {sure:23,}")
    print(f"\ntime with a partner: {shares[0] / shares[2]:.2%}; by TREx's beam search: {shares[1] / shares[2]:.2%}")


def main() -> None:
    names = sys.argv[1:] or ["cls", "squeezenet", "transformer"]
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: measure(name, Path(folder)) for name in names if name != "rtx"}
        if "rtx" in names:
            measured |= build([name for name in names if name in SHAPES], Path(folder))
    print_table(measured)


if __name__ == "__main__":
    main()
