"""Compare models, runs, profiles or exports, and judge them.

\b
  ndld-flow compare model.onnx fast.onnx --data photos/   # how right, and how much faster
  ndld-flow compare shipped-1.0 latest
  ndld-flow compare quickstart:base quickstart:speed
  ndld-flow compare quickstart                       # the profiles of one run with each other
  ndld-flow compare trtexec/fp32 trtexec/fp16        # folders of trtexec exports, TREx folders, profile files
  ndld-flow compare main latest --gate 'latency.min <= +5 %' --to comparison

Two models run on the same inputs: those of --data; for a result of `optimize` and its source, by default the samples
and the conditions of its proof; else generated ones, on which INT8 stays undecided. Their outputs are compared,
and they are measured in alternating passes. The recipe is kept under outputs/comparisons/, and ends as `run` does.

The first subject is the base. A metric is `improved` or `regressed` if the whole 95 % interval of its ratio is outside
the threshold, `unchanged` if it is inside, and `inconclusive` otherwise; a threshold learned by `ndld-flow noise`
replaces a lower one. Profiles are incomparable if they differ in hardware, drivers, library versions, clocks, input
shapes or values, or if one was taken with a profiler attached, unless --allow names the difference. Conditions that
were not recorded do not count as equal unless `--allow unknown` is given; those that two exports of other programs both
lack make the verdict conditional.

\b
A gate:  METRIC <= +5 %      at most 5 % more than the base
         METRIC <= +0.5 ms   at most 0.5 ms more than the base
         METRIC <= 20 ms     at most 20 ms

Two engines without times, such as `RUN:STEP` of `build_engine` or what `trtexec --exportLayerInfo` wrote, are compared
by their layers, precisions, formats, tactics and settings, as `diff` does.

The results are written under outputs/comparisons/, or to the folder of --to: comparison.html, comparison.json,
comparison.md with its picture, junit.xml, benchmark.json (github-action-benchmark), layers.csv and trace.json (Chrome,
Perfetto).

Exit codes: 0 every gate passed, or without gates nothing regressed; 1 a gate failed, something regressed, or the
engines differ; 2 the request is invalid, or the profiles cannot be compared; 4 inconclusive: --measure measures two
profiles of runs again until the evidence is sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.quantities import parse_percent
from ndld_flow.cli.options import (
    Loudness,
    data_option,
    gate_option,
    json_option,
    loudness_options,
    outputs_option,
    print_json,
    refuse_missing,
    rules_options,
    shapes_option,
    tokenizer_option,
)
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.compare.compare_models import ComparedModels, ModelOptions
    from ndld_flow.compare.compare_runs import Compared
    from ndld_flow.profiles.compare.measured import Rules
    from ndld_flow.records.build import EngineComparison
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.measurement import Allowance
    from ndld_flow.runs.diff_engines import ComparedEngines

OUTPUT: VerbOutput[Comparison | EngineComparison] = VerbOutput(
    __name__, "The document `comparison`, or `engine comparison` for two engines without times.", version=None
)


@public
def compare(
    subjects: Sequence[str],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    to: str | Path | None = None,
    measure: Listener | None = None,
) -> Compared:
    """Compare runs, tags, ids, points of sweeps (`SWEEP#17`), `RUN:STEP`, profile files and folders of exports, the
    first being the base.

    `gates` are conditions such as `latency.min <= +5 %`; `rules` define the differences that count; `to` is the folder
    to write instead of one below `outputs/comparisons/`. With `measure`, a listener of events, two profiles of runs are
    measured again, in turns, until the evidence decides.
    """
    from ndld_flow.compare.compare_runs import compare_runs

    return compare_runs(
        subjects, gates, rules, outputs=Path(outputs), to=Path(to) if to is not None else None, measure=measure
    )


@public
def compare_models(
    models: Sequence[str | Path],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    options: ModelOptions | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> ComparedModels:
    """Compare two models, the base first, on the same inputs: their outputs, and their latency in alternating passes.

    Both are measured again each time, in a run whose recipe is kept. `gates` are conditions such as
    `latency.median <= -10 %`. Raises RequestError unless there are two models.
    """
    from ndld_flow.compare.compare_models import compare_models as compare

    return compare(
        [Path(model) for model in models], gates, rules, options, outputs=Path(outputs), listener=listener or ignore
    )


@public
def compare_engines(
    subjects: Sequence[str | Path], *, outputs: str | Path = DEFAULT_OUTPUTS, to: str | Path | None = None
) -> ComparedEngines | None:
    """Compare two engines that were not measured, and write page and record into a folder: `to`, or a new one.

    Subjects are those of `compare`; a run means its only engine. Returns None unless there are two, and neither has
    times. Raises RequestError for a subject that cannot be found or read.
    """
    from ndld_flow.runs.diff_engines import compare_untimed
    from ndld_flow.runs.outputs import Outputs

    return compare_untimed(list(map(str, subjects)), Outputs(Path(outputs)), None if to is None else Path(to))


@click.command("compare", help=__doc__)
@click.argument("subjects", nargs=-1, required=True, metavar="BASE [CANDIDATE]...")
@gate_option
@data_option
@tokenizer_option
@shapes_option
@click.option("--runtime", metavar="NAME", help="For models: onnxruntime or openvino.")
@rules_options
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Folder to write to.")
@click.option(
    "--measure", is_flag=True, help="Measure two profiles of runs again, in turns, until the evidence is sufficient."
)
@outputs_option
@loudness_options
@json_option
def command(
    subjects: tuple[str, ...],
    gates: tuple[str, ...],
    data: tuple[str, ...],
    tokenizer: Path | None,
    shapes: tuple[str, ...],
    runtime: str | None,
    allow: tuple[str, ...],
    metric: str | None,
    threshold: str | None,
    to: Path | None,
    measure: bool,
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
) -> int:
    refuse_missing(subjects, data)
    from ndld_flow.cli.progress import choose_listener_beside_result
    from ndld_flow.compare.compare_models import ModelOptions, is_model
    from ndld_flow.recipe.write_recipe import parse_shape

    options = ModelOptions(data, dict(map(parse_shape, shapes)), tokenizer, runtime)
    if any(map(is_model, subjects)):
        if to is not None or measure:
            raise RequestError("--to and --measure do not fit models: they are always measured, in a run.")
        rules = _make_rules(allow, metric or "latency.median", threshold)
        with choose_listener_beside_result(as_json, loudness) as listener:
            found = compare_models(subjects, gates, rules, options, outputs=outputs, listener=listener)
        if as_json:
            print_json(OUTPUT, found.comparison)
        return found.finished.exit_code
    if options != ModelOptions():
        raise RequestError("--data, --tokenizer, --shape and --runtime are for models: FILE.onnx.")
    if not measure and (engines := compare_engines(subjects, outputs=outputs, to=to)) is not None:
        if gates:
            raise RequestError("--gate judges measurements: these are engines without times.")
        if as_json:
            print_json(OUTPUT, engines.comparison)
        else:
            from ndld_flow.cli.comparison_table import print_engines

            print_engines(" -> ".join(subjects), engines.comparison, f"report {engines.report}")
        return {"identical": 0, "equal": 0, "different": 1, "undecided": 4}[engines.comparison.verdict]
    rules = _make_rules(allow, metric or ("latency.median" if measure else None), threshold)
    return _compare_profiles(subjects, gates, rules, outputs, to, loudness, measure=measure, as_json=as_json)


def _compare_profiles(
    subjects: tuple[str, ...],
    gates: tuple[str, ...],
    rules: Rules,
    outputs: Path,
    to: Path | None,
    loudness: Loudness | None,
    *,
    measure: bool,
    as_json: bool,
) -> int:
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    with choose_listener(loudness=loudness) if measure and not as_json else nullcontext(ignore) as listener:
        compared = compare(
            subjects, gates, rules, outputs=outputs, to=to, measure=leave_out_end(listener) if measure else None
        )
    if as_json:
        print_json(OUTPUT, compared.comparison)
    else:
        from ndld_flow.cli.comparison_table import print_comparison, print_verdict

        if loudness != "quiet":
            print_comparison(compared.comparison, compared.profiles)
        print_verdict(compared.comparison)
        click.echo(f"report {compared.report}")
    # The gates decide, or the verdict if there are none; the first code that applies.
    words: set[str] = {gate.outcome for gate in compared.comparison.gates} or {compared.comparison.verdict}
    for code, meaning in ((2, {"incomparable"}), (1, {"failed", "regressed"}), (4, {"inconclusive"})):
        if words & meaning:
            return code
    return 0


def _make_rules(allow: tuple[str, ...], metric: str | None, threshold: str | None) -> Rules:
    from ndld_flow.profiles.compare.measured import Rules
    from ndld_flow.records.measurement import Circumstance

    known: tuple[Allowance, ...] = (*get_args(Circumstance), "unknown")
    wrong = [word for word in allow if word not in known]
    if wrong:
        raise UnknownNameError(f"--allow {wrong[0]}: there is no such circumstance", wrong[0], known)
    try:
        share = Rules.threshold if threshold is None else parse_percent(threshold)
    except ValueError as error:
        raise RequestError(f"--threshold: {error}") from None
    allowed = frozenset(word for word in known if word in allow)
    return Rules(threshold=share, metric=metric or Rules.metric, allow=allowed)
