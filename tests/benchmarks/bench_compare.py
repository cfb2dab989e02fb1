"""Accuracy and cost of comparisons on this machine: printed, not asserted.

`python -m tests.benchmarks.bench_compare [comparisons] [sessions] [pairs] [passes]`, default 40 comparisons by rounds
and no sessions: a quarter of an hour on two busy cores.

1. Comparisons as `compare_profiles` makes them: rounds in which two models alternate pass by pass, until the verdict is
   decided or the default limits are reached. A model is compared with itself (anything but `unchanged` and
   `inconclusive` is false) and with one that has a tenth more blocks (`regressed` is right), in turns. A quarter of the
   models takes about 25 ms a pass, the others 5 ms. Some more follow with passes of tens of microseconds, and with two
   threads, where wall time decides.
2. Simulated rounds, for what real ones are too few: false verdicts by the kind of noise, for a true difference of 0 %,
   3 % (the threshold itself: whatever is decided there is wrong half of the time) and 10 %. Each comparison looks after
   every round.
3. The engine's own time for 10 profiles of 5,000 layers.
4. Process runs, as the verb `compare` judges recorded profiles; only when sessions are asked for. Each session measures
   in turns a model, the very same again, and one with a tenth more blocks. Two sessions joined show what 10 pairs would
   have shown, and the first 20 passes of each run what shorter runs would have. Simulated runs complete them.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

from ndld_flow.measure.pair_rounds import RoundLimits, measure_rounds
from ndld_flow.measure.process_runs import MeasuringPlan, ProfilingRequest, Side
from ndld_flow.measure.profiler import measure_sides
from ndld_flow.profiles.compare.comparison import compare_profiles
from ndld_flow.profiles.compare.intervals import RatioInterval, paired_ratio, unpaired_ratio
from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.profiles.compare.rounds import RoundsPlan, describe_rounds, judge_by_rounds
from ndld_flow.records.comparison import MetricVerdict, Verdict
from ndld_flow.records.measurement import Machine
from ndld_flow.records.noise import Round
from ndld_flow.records.profile import Layer, Profile, ProfileRun, TensorInfo
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.steps.compare_profiles import CompareProfiles
from ndld_flow.store.digest import digest_file
from tests.support.models import GraphBuilder, make_cnn, rename_output, save, tensor
from tests.support.simulated_rounds import BOUNDS, METRIC, SCENARIOS, decide_slowly

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
        session=OnnxruntimeRequest(),
        plan=MeasuringPlan(runs=runs, stable=0.0, passes=passes * runs, budget_ms=600_000),
        layer_passes=0,
        batches=(),
        seed=0,
        options={},
    )


@dataclass
class Tally:
    """Verdicts of one kind of comparison, and what they cost."""

    name: str
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    clocks: Counter[str] = field(default_factory=Counter)

    def add(self, base: Path, candidate: Path, threads: int, folder: Path) -> None:
        """Compare two models as `compare_profiles` does by default."""
        requests = [
            replace(request(path, "", 5, 1), session=OnnxruntimeRequest(threads=threads)) for path in (base, candidate)
        ]
        sides = [Side(request, folder, lambda *_: None) for request in requests]
        limits = RoundLimits(
            CompareProfiles.model_fields["rounds"].default, CompareProfiles.model_fields["budget"].default
        )
        plan = RoundsPlan(on_device=False, rounds_limit=limits.rounds, budget_ms=limits.budget_ms, threshold=THRESHOLD)

        def judge(rounds: Sequence[Round]) -> MetricVerdict:
            return judge_by_rounds(METRIC, (0, 1), BOUNDS, describe_rounds(rounds, plan, ""))

        start = time.perf_counter()
        measured_rounds = measure_rounds(sides, folder, limits, lambda rounds: judge(rounds).verdict != "inconclusive")
        verdict = judge(measured_rounds.rounds)
        self.verdicts.append(verdict.verdict)
        self.seconds.append(time.perf_counter() - start)
        self.rounds.append(len(measured_rounds.rounds))
        self.ratios.append(verdict.ratio)
        self.clocks[verdict.clock] += 1

    def report(self) -> str:
        counts = Counter(self.verdicts)
        result = ", ".join(f"{counts[verdict]:2} {verdict}" for verdict in VERDICTS)
        took = f"{statistics.median(self.seconds):.1f} s (at most {max(self.seconds):.0f})"
        rounds = f"{statistics.median(self.rounds):g} rounds (at most {max(self.rounds)})"
        clocks = " and ".join(f"{clock} time in {number}" for clock, number in self.clocks.items())
        return (
            f"  {self.name}: {result}; {took}, {rounds}; ratio {min(self.ratios):.3f} to {max(self.ratios):.3f}, "
            f"median {statistics.median(self.ratios):.3f}; {clocks}"
        )


def report_rounds(comparisons: int) -> None:
    print(f"\ncomparisons by rounds at default settings, threshold {THRESHOLD:.0%}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chains = {blocks: make_chain(folder / f"{blocks}.onnx", blocks) for blocks in (1, 40, 44, 180, 198)}
        chains[0] = make_cnn(folder / "tiny.onnx")
        quick, slow = ((40, 40), (40, 44)), ((180, 180), (180, 198))
        mixed = [slow if number % 4 == 3 else quick for number in range(comparisons)]
        report_pairs("one thread", mixed, chains, 1)
        report_pairs("tens of microseconds", [((0, 0), (0, 1))] * max(1, comparisons // 4), chains, 1)
        report_pairs("two threads", [quick] * max(1, comparisons // 10), chains, 2)


def report_pairs(name: str, pairs: Sequence[Sequence[tuple[int, int]]], chains: dict[int, Path], threads: int) -> None:
    """Alternate A/A and A/B comparisons, so that the machine's load is the same for both."""
    tallies = Tally(f"{name}, A/A"), Tally(f"{name}, A/B")
    for comparisons in pairs:
        for tally, (base, candidate) in zip(tallies, comparisons, strict=True):
            tally.add(chains[base], chains[candidate], threads, chains[base].parent)
    for tally in tallies:
        print(tally.report(), flush=True)


def report_simulated_rounds() -> None:
    effects = (0.0, 0.03, 0.1)
    print("\nsimulated rounds: % of 300 comparisons called different / unchanged, and rounds taken, by true difference")
    print(f"  {'noise':33} {'  '.join(f'{effect:>18.0%}' for effect in effects)}")
    for name, scenario in SCENARIOS.items():
        outcome = []
        for effect in effects:
            rng = random.Random(f"{name} {effect}")
            result = [decide_slowly(rng, scenario, effect) for _ in range(300)]
            counts = Counter(verdict for verdict, _ in result)
            called, same = counts["regressed"] + counts["improved"], counts["unchanged"]
            outcome.append(f"{called / 3:5.1f} /{same / 3:5.1f} {statistics.fmean(n for _, n in result):4.1f}")
        print(f"  {name:33} {'  '.join(outcome)}", flush=True)


def measure(sessions: int, pairs: int, passes: int) -> Iterator[tuple[Profile, Profile, Profile]]:
    """Each session's A, A again and B."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = (make_chain(Path(folder) / f"{blocks}.onnx", blocks) for blocks in (BLOCKS, MORE_BLOCKS))
        for number in range(sessions):
            requests = [request(path, label, pairs, passes) for path, label in ((a, "A"), (a, "again"), (b, "B"))]
            sides = [Side(request, Path(folder), lambda *_: None) for request in requests]
            sides = sides[number % 3 :] + sides[: number % 3]  # nobody is always the first
            result = {profile.label: profile for profile, _ in measure_sides(sides)}
            tell_sitting(number, result)
            yield result["A"], result["again"], result["B"]


def tell_sitting(number: int, profiles: dict[str, Profile]) -> None:
    result = []
    for name in ("A", "again", "B"):
        quickest, medians = ([f(run.latency_ms) for run in profiles[name].runs] for f in (min, statistics.median))
        result.append(
            f"{name} min {statistics.median(quickest):.2f} ({min(quickest):.2f} to {max(quickest):.2f}), "
            f"median {statistics.median(medians):.2f} ({min(medians):.2f} to {max(medians):.2f})"
        )
    print(f"  session {number + 1:2}: {'; '.join(result)} ms", flush=True)


def joined(first: Profile, second: Profile) -> Profile:
    return first.model_copy(update={"runs": (*first.runs, *second.runs)})


def shortened(profile: Profile, passes: int) -> Profile:
    runs = tuple(run.model_copy(update={"latency_ms": run.latency_ms[:passes]}) for run in profile.runs)
    return profile.model_copy(update={"runs": runs})


def verdict_of(base: Profile, candidate: Profile, metric: str) -> tuple[Verdict, float]:
    # As if they were of one session, which joined ones are in pairs, and of two models: of one model that is measured
    # twice, the digest would decide.
    pair = [
        item.model_copy(update={"session": "one", "model_digest": side})
        for side, item in (("base", base), ("candidate", candidate))
    ]
    comparison = compare_profiles(
        "x", [Measured(index, "", item) for index, item in enumerate(pair)], Rules(metric=metric)
    )
    verdict = next(verdict for verdict in comparison.verdicts if (verdict.metric, verdict.base) == (metric, 0))
    return verdict.verdict, verdict.ratio


def count(sessions: Sequence[tuple[Profile, Profile, Profile]]) -> None:
    for metric in METRICS:
        for name, place in (("A/A", 1), ("A/B", 2)):
            result = [verdict_of(session[0], session[place], metric) for session in sessions]
            counts = Counter(verdict for verdict, _ in result)
            outcome = ", ".join(f"{counts[verdict]:2} {verdict}" for verdict in VERDICTS)
            ratios = [ratio for _, ratio in result]
            print(f"  {metric:15} {name}: {outcome}; ratio {min(ratios):.3f} to {max(ratios):.3f}", end="")
            print(f", median {statistics.median(ratios):.3f}")


def report_real(sessions: int, pairs: int, passes: int) -> None:
    print(f"\nreal process runs: {BLOCKS} blocks against {BLOCKS} and {MORE_BLOCKS}, threshold {THRESHOLD:.0%}")
    result = list(measure(sessions, pairs, passes))
    halves = zip(result[::2], result[1::2], strict=False)
    twice = [(joined(a, d), joined(b, e), joined(c, f)) for (a, b, c), (d, e, f) in halves]
    for kept in dict.fromkeys((SHORT, passes)):
        for comparisons, number in ((result, pairs), (twice, 2 * pairs)):
            if not comparisons:  # one session alone cannot be joined
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
    rng = random.Random(f"{pairs} {scatter} {bursts} {effect}")

    def run(drift: float) -> float:
        burst = rng.uniform(1.2, 2.5) if rng.random() < bursts else 1.0
        return drift * burst * rng.lognormvariate(0, scatter)

    called = 0
    for _ in range(1000):
        drifts = [rng.lognormvariate(0, 2 * scatter) for _ in range(pairs)]
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
                result = " ".join(f"{share:>6.1%}" for share in shares)
                print(f"  {name:10} {pairs:5} {scatter:>7.0%} {bursts:>6.0%} {result}")


def made_up(layers: int, seed: int, *, nodes: bool, names: bool) -> Profile:
    """Five process runs, and layers of ten passes in each; a tenth of the layers is fused with the next."""
    rng = random.Random(seed)
    shapes = [TensorInfo(name="t", dtype="float32", shape=(1, 16 * width, 8, 8)) for width in range(1, 5)]
    result: list[Layer] = []
    at = 0
    while at < layers:
        fused = 1 + (nodes and at % 10 == 0 and seed % 2)
        result.append(
            Layer(
                index=len(result),
                name=f"node_{at}" if names else f"{seed}_{at}",
                type=("Conv", "Relu", "Add", "MatMul", "Softmax")[at % 5],
                onnx_nodes=tuple(f"node_{index}" for index in range(at, at + fused)) if nodes else (),
                outputs=(shapes[at % 4],),
                samples_ms=tuple(0.03 * rng.lognormvariate(0, 0.05) for _ in range(50)),
            )
        )
        at += fused
    # Where only dims are left, something is missing here and there.
    kept = tuple(layer for layer in result if names or nodes or rng.random() > 0.05)
    machine = Machine(system="", architecture="", cpu="", cpu_count=0, memory_bytes=0)
    runs = tuple(ProfileRun(latency_ms=tuple(rng.lognormvariate(0, 0.02) for _ in range(50))) for _ in range(5))
    return Profile(
        label=str(seed), model_digest="", backend="", machine=machine, versions={}, options={}, inputs=(), outputs=(),
        warmup_passes=0, warmup_ms=0, runs=runs, layers=kept, layer_runs=(10,) * 5, session="one",
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
    measured = [Measured(index, "", profile) for index, profile in enumerate(profiles)]
    whole = quickest(lambda: compare_profiles("x", measured, Rules()))
    print(f"  {name:15} {whole:.2f} ({quickest(lambda: match_layers(profiles)):.2f})")


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    comparisons, sessions, pairs, passes = (*given, *(40, 0, 5, 200)[len(given) :])
    report_rounds(comparisons)
    report_simulated_rounds()
    report_engine()
    if sessions:
        report_simulated()
        report_real(sessions, pairs, passes)


if __name__ == "__main__":
    main()
