"""Right and wrong layer matches beside those of TREx's beam search, and by claimed confidence: printed, not asserted.

`python -m tests.benchmarks.bench_matching [models]`, of det, rec, cls, resnet50, squeezenet, inception, transformer;
default cls, squeezenet, transformer: about ten minutes. `rtx` among them adds engines of TensorRT-RTX.

Models are edited, named as an exporter would name them anew, and run by ONNX Runtime; the truth is known by
construction (`tests/support/layer_pairs.py`). Each pair is matched with everything the tool records,
and with less. Pairs of different networks are counted too: none of their matches is right. Exports of trtexec from an
A100 follow: truth is the number of the convolution or pooling, which all three engines run in one order.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, permutations
from pathlib import Path

import onnx

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.runtimes.tensorrt.library import find_library
from tests.support.a100_exports import a100_exports
from tests.support.engine_builds import Asked, build_all
from tests.support.layer_pairs import (
    EDITS,
    NAMINGS,
    VIEWS,
    Ids,
    Judged,
    Sample,
    Shapes,
    by_count,
    feeds_of,
    judge,
    judge_pairs,
    quantize,
    run,
    sample_of,
    trace,
)
from tests.support.models import tfm_model
from tests.support.samples import fetch_sample
from tests.support.trex_matching import beam_search

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


def pairs(measured: dict[str, Samples]) -> Iterator[tuple[str, str, bool, Sample, Sample]]:
    """Each edit against the unchanged model of the same exporter, in every view; and different networks."""
    for samples in measured.values():
        for (edit, naming), sample in samples.items():
            base = samples.get(("unchanged", naming))
            if base is not None:
                yield from ((edit, name, True, view(base), view(sample)) for name, view in VIEWS.items())
    for combination, other in combinations(measured.values(), 2):
        for naming in NAMINGS:
            ends = combination.get(("unchanged", naming)), other.get(("unchanged", naming))
            if ends[0] is not None and ends[1] is not None:
                for name, view in VIEWS.items():
                    yield "another network", name, False, view(ends[0]), view(ends[1])


@dataclass(frozen=True)
class Shares:
    """Shares of the first profile's layer time, 0 to 1."""

    right: float
    wrong: float
    possible: float
    """With a true partner on the other side."""
    beam_right: float
    beam_wrong: float


def measure_shares(first: Sample, second: Sample, judged: Sequence[Judged]) -> Shares:
    """Return what was matched rightly and wrongly, and what TREx's beam search matches."""
    total = first.profile.layers_sum_ms or 1.0
    beam = judge_pairs(
        [((a,), (b,)) for a, b in beam_search(first.profile.layers, second.profile.layers)], first, second
    )
    there: Ids = frozenset().union(*second.truth)
    times = first.profile.layer_times.ms
    possible = math.fsum(ms for ms, ids in zip(times, first.truth, strict=True) if ids & there)
    sums = [
        math.fsum(match.ms for match in matches if match.is_right is wanted)
        for matches in (judged, beam)
        for wanted in (True, False)
    ]
    return Shares(sums[0] / total, sums[1] / total, possible / total, sums[2] / total, sums[3] / total)


def exported_pairs() -> Iterator[tuple[str, Sample, Sample]]:
    """Pairs of engines that trtexec exported."""
    samples = {name: by_count(read_profile(a100_exports() / name)) for name in ("fp32", "fp16", "qat")}
    for (name, sample), (other_name, other) in permutations(samples.items(), 2):
        yield f"A100, {name} to {other_name}", sample, other


def print_shares(rows: Mapping[tuple[str, str], Sequence[Shares]]) -> None:
    print(f"{'share of time':<46} pairs   right  wrong  alone  possible   beam right  wrong   pairs beyond 3 % wrong")
    for (edit, view), shares in rows.items():
        right, wrong, possible, beam_right, beam_wrong = (
            100 * math.fsum(getattr(share, field.name) for share in shares) / len(shares) for field in fields(Shares)
        )
        beyond = sum(share.wrong > 0.03 for share in shares)
        found = f"{right:7.1f} {wrong:6.1f} {100 - right - wrong:6.1f} {possible:9.1f}"
        print(f"{edit + ', ' + view:<46} {len(shares):5} {found} {beam_right:12.1f} {beam_wrong:6.1f} {beyond:8}")


def print_table(measured: dict[str, Samples]) -> None:
    counts: dict[float, Counter[bool]] = defaultdict(Counter)
    rows: dict[tuple[str, str], list[Shares]] = defaultdict(list)
    exported = ((name, "as exported", True, first, second) for name, first, second in exported_pairs())
    for edit, view, is_same, first, second in (*pairs(measured), *exported):
        judged = judge(match_layers([first.profile, second.profile]), first, second)
        for match in judged:
            bucket = next(low for low in BUCKETS if match.confidence >= low - 1e-9)
            counts[bucket][is_same and match.is_right] += 1
        if is_same:
            shares = measure_shares(first, second, judged)
            rows[edit, view].append(shares)
            rows["all", view].append(shares)
        else:
            unlike = [replace(match, is_right=False) for match in judged]
            rows[edit, view].append(measure_shares(first, second, unlike))
    print_shares(rows)
    print("\nconfidence   matches    right")
    for low, high in zip(BUCKETS, (1.0, *BUCKETS), strict=False):
        total = counts[low].total()
        if total:
            print(f"{low:.2f} to {high:.2f} {total:9,} {counts[low][True] / total:8.2%}")


def main() -> None:
    names = sys.argv[1:] or ["cls", "squeezenet", "transformer"]
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: measure(name, Path(folder)) for name in names if name != "rtx"}
        if "rtx" in names:
            measured |= build([name for name in names if name in SHAPES], Path(folder))
    print_table(measured)


if __name__ == "__main__":
    main()
