"""How often a comparison is right on this machine, and what it costs: printed, not asserted.

`python -m tests.benchmarks.bench_compare [sittings] [pairs] [passes]`, default 20 sittings of 5 pairs of 200 passes a
run: about five minutes on a machine at rest, and three times that on a busy one.

1. Real process runs of ONNX Runtime. Each sitting measures in turns a model, the very same model again, and one with a
   tenth more blocks. Verdicts are counted for several deciding metrics, for A/A (anything but `unchanged` and
   `inconclusive` is a false alarm) and for A/B (`regressed` is right). Two sittings joined tell what 10 pairs would
   have said, and the first 20 passes of each run what shorter runs would have.
2. Simulated runs, for what real ones are too few: false alarms and power of the rule in use and of two others, over the
   scatter of a run, the number of pairs and the true difference. `bursts` are runs that something else slowed down.
3. The engine's own time for 10 profiles of 5,000 layers.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ndld_flow.artifacts.digest import digest_file
from ndld_flow.backends.measuring.profiler import measure_in_turns
from ndld_flow.backends.measuring.profiling_request import ProfilingRequest
from ndld_flow.backends.measuring.stopping import MeasuringPlan
from ndld_flow.backends.running.onnxruntime_session import SessionSettings
from ndld_flow.compare.comparison import compare_profiles
from ndld_flow.compare.intervals import RatioInterval, paired_ratio, unpaired_ratio
from ndld_flow.compare.match_layers import match_layers
from ndld_flow.compare.measured import Measured, Rules
from ndld_flow.records.comparison import Verdict
from ndld_flow.records.machine import Machine
from ndld_flow.records.profile import Layer, Profile, ProfileRun, TensorInfo
from tests.models import GraphBuilder, rename_output, save, tensor

BLOCKS, MORE_BLOCKS = 40, 44
SHORT = 20
METRICS = ("latency.min", "latency.median", "latency.mean", "latency.p90")
VERDICTS: tuple[Verdict, ...] = ("regressed", "improved", "unchanged", "inconclusive")
THRESHOLD = Rules.threshold


def make_chain(path: Path, blocks: int) -> Path:
    """So many equal convolutions, one after the other: latency is proportional to their number."""
    b = GraphBuilder(0)
    h = "x"
    for _ in range(blocks):
        h = b.op("Relu", b.op("Conv", h, b.weight(24, 24, 3, 3, scale=0.05), pads=[1, 1, 1, 1]))
    rename_output(b, h, "y")
    return save(b.model([tensor("x", [1, 24, 28, 28])], [tensor("y", [1, 24, 28, 28])]), path)


def request(path: Path, label: str, runs: int, passes: int) -> ProfilingRequest:
    return ProfilingRequest(
        path=path,
        label=label,
        digest=digest_file(path),
        inputs={},
        session=SessionSettings(),
        plan=MeasuringPlan(runs=runs, stable=0.0, passes=passes * runs, budget_ms=600_000),
        layer_passes=0,
        batches=(),
        seed=0,
        options={},
    )


def measure(sittings: int, pairs: int, passes: int) -> Iterator[tuple[Profile, Profile, Profile]]:
    """Each sitting's A, A again and B."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = (make_chain(Path(folder) / f"{blocks}.onnx", blocks) for blocks in (BLOCKS, MORE_BLOCKS))
        for number in range(sittings):
            sides = [request(path, label, pairs, passes) for path, label in ((a, "A"), (a, "again"), (b, "B"))]
            sides = sides[number % 3 :] + sides[: number % 3]  # nobody is always the first
            found = {profile.label: profile for profile, _ in measure_in_turns(sides, Path(folder), lambda *_: None)}
            tell_sitting(number, found)
            yield found["A"], found["again"], found["B"]


def tell_sitting(number: int, found: dict[str, Profile]) -> None:
    told = []
    for name in ("A", "again", "B"):
        quickest, medians = ([f(run.latency_ms) for run in found[name].runs] for f in (min, statistics.median))
        told.append(
            f"{name} min {statistics.median(quickest):.2f} ({min(quickest):.2f} to {max(quickest):.2f}), "
            f"median {statistics.median(medians):.2f} ({min(medians):.2f} to {max(medians):.2f})"
        )
    print(f"  sitting {number + 1:2}: {'; '.join(told)} ms", flush=True)


def joined(first: Profile, second: Profile) -> Profile:
    return first.model_copy(update={"runs": (*first.runs, *second.runs)})


def shortened(profile: Profile, passes: int) -> Profile:
    runs = tuple(run.model_copy(update={"latency_ms": run.latency_ms[:passes]}) for run in profile.runs)
    return profile.model_copy(update={"runs": runs})


def verdict_of(base: Profile, candidate: Profile, metric: str) -> tuple[Verdict, float]:
    # As if they were of one sitting, which joined ones are in pairs, and of two models: of one model that is measured
    # twice, the digest would decide.
    pair = [
        one.model_copy(update={"sitting": "one", "model_digest": side})
        for side, one in (("base", base), ("candidate", candidate))
    ]
    found = compare_profiles("x", [Measured(place, "", one) for place, one in enumerate(pair)], Rules(metric=metric))
    verdict = next(one for one in found.verdicts if (one.metric, one.base) == (metric, 0))
    return verdict.verdict, verdict.ratio


def count(sittings: Sequence[tuple[Profile, Profile, Profile]]) -> None:
    for metric in METRICS:
        for name, place in (("A/A", 1), ("A/B", 2)):
            found = [verdict_of(sitting[0], sitting[place], metric) for sitting in sittings]
            counts = Counter(verdict for verdict, _ in found)
            told = ", ".join(f"{counts[verdict]:2} {verdict}" for verdict in VERDICTS)
            ratios = [ratio for _, ratio in found]
            print(f"  {metric:15} {name}: {told}; ratio {min(ratios):.3f} to {max(ratios):.3f}", end="")
            print(f", median {statistics.median(ratios):.3f}")


def report_real(sittings: int, pairs: int, passes: int) -> None:
    print(f"\nreal process runs: {BLOCKS} blocks against {BLOCKS} and {MORE_BLOCKS}, threshold {THRESHOLD:.0%}")
    found = list(measure(sittings, pairs, passes))
    halves = zip(found[::2], found[1::2], strict=False)
    twice = [(joined(a, d), joined(b, e), joined(c, f)) for (a, b, c), (d, e, f) in halves]
    for kept in dict.fromkeys((SHORT, passes)):
        for comparisons, number in ((found, pairs), (twice, 2 * pairs)):
            if not comparisons:  # one sitting alone cannot be joined
                continue
            print(f"{len(comparisons)} comparisons of {number} pairs, {kept} passes a run")
            count([(shortened(a, kept), shortened(b, kept), shortened(c, kept)) for a, b, c in comparisons])


Rule = Callable[[Sequence[float], Sequence[float]], RatioInterval]


def mean_of_logs(base: Sequence[float], candidate: Sequence[float]) -> RatioInterval:
    """The rival in textbooks: a t-interval of the pairs' mean logarithm."""
    logs = [math.log(b / a) for a, b in zip(base, candidate, strict=True)]
    t = {5: 2.776, 7: 2.447, 10: 2.262, 15: 2.145}[len(logs)]
    mean, half = statistics.fmean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))
    return RatioInterval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


RULES: dict[str, Rule] = {"pairs": paired_ratio, "no pairs": unpaired_ratio, "t of pairs": mean_of_logs}


def simulate(rule: Rule, pairs: int, scatter: float, bursts: float, effect: float) -> float:
    """Share of comparisons that call the candidate slower or quicker. Drift hits both runs of a pair."""
    dice = random.Random(f"{pairs} {scatter} {bursts} {effect}")

    def run(drift: float) -> float:
        burst = dice.uniform(1.2, 2.5) if dice.random() < bursts else 1.0
        return drift * burst * dice.lognormvariate(0, scatter)

    called = 0
    for _ in range(1000):
        drifts = [dice.lognormvariate(0, 2 * scatter) for _ in range(pairs)]
        interval = rule([run(drift) for drift in drifts], [run(drift) * (1 + effect) for drift in drifts])
        called += interval.low > 1 + THRESHOLD or interval.high < 1 / (1 + THRESHOLD)
    return called / 1000


def report_simulated() -> None:
    effects = (0.0, 0.02, 0.05, 0.1, 0.2)
    print("\nsimulated: % of comparisons called different, by true difference (0 % and 2 % are false alarms)")
    print(f"  {'rule':10} pairs scatter bursts {' '.join(f'{effect:>6.0%}' for effect in effects)}")
    for scatter, bursts in ((0.01, 0.0), (0.01, 0.2), (0.03, 0.0), (0.03, 0.2), (0.08, 0.1)):
        for pairs in (5, 7, 10, 15):
            for name, rule in RULES.items():
                shares = [simulate(rule, pairs, scatter, bursts, effect) for effect in effects]
                told = " ".join(f"{share:>6.1%}" for share in shares)
                print(f"  {name:10} {pairs:5} {scatter:>7.0%} {bursts:>6.0%} {told}")


def made_up(layers: int, seed: int, *, nodes: bool, names: bool) -> Profile:
    """Five process runs, and layers of ten passes in each; a tenth of the layers is fused with the next."""
    dice = random.Random(seed)
    shapes = [TensorInfo(name="t", dtype="float32", shape=(1, 16 * width, 8, 8)) for width in range(1, 5)]
    found: list[Layer] = []
    at = 0
    while at < layers:
        fused = 1 + (nodes and at % 10 == 0 and seed % 2)
        found.append(
            Layer(
                index=len(found),
                name=f"node_{at}" if names else f"{seed}_{at}",
                type=("Conv", "Relu", "Add", "MatMul", "Softmax")[at % 5],
                onnx_nodes=tuple(f"node_{one}" for one in range(at, at + fused)) if nodes else (),
                outputs=(shapes[at % 4],),
                samples_ms=tuple(0.03 * dice.lognormvariate(0, 0.05) for _ in range(50)),
            )
        )
        at += fused
    # Where only dims are left, something is missing here and there.
    kept = tuple(layer for layer in found if names or nodes or dice.random() > 0.05)
    machine = Machine(system="", architecture="", cpu="", cpu_count=0, memory_bytes=0)
    runs = tuple(ProfileRun(latency_ms=tuple(dice.lognormvariate(0, 0.02) for _ in range(50))) for _ in range(5))
    return Profile(
        label=str(seed), model_digest="", backend="", machine=machine, versions={}, options={}, inputs=(), outputs=(),
        warmup_passes=0, warmup_ms=0, runs=runs, layers=kept, layer_runs=(10,) * 5, sitting="one",
    )  # fmt: skip


def quickest(work: Callable[[], object]) -> float:
    """CPU seconds of the best of three."""
    taken = []
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def report_engine() -> None:
    print("\nengine, 10 profiles of 5,000 layers, CPU seconds (matching alone)")
    for name, nodes, names in (("by ONNX nodes", True, True), ("by name", False, True), ("by dims", False, False)):
        time_engine(name, [made_up(5000, seed, nodes=nodes, names=names) for seed in range(10)])


def time_engine(name: str, profiles: Sequence[Profile]) -> None:
    measured = [Measured(place, "", profile) for place, profile in enumerate(profiles)]
    whole = quickest(lambda: compare_profiles("x", measured, Rules()))
    print(f"  {name:15} {whole:.2f} ({quickest(lambda: match_layers(profiles)):.2f})")


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    sittings, pairs, passes = (*given, *(20, 5, 200)[len(given) :])
    report_engine()
    report_simulated()
    report_real(sittings, pairs, passes)


if __name__ == "__main__":
    main()
