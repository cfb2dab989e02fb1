"""Summarize a run in a few lines of plain text, for a terminal."""

from __future__ import annotations

from ndld_flow.base.quantities import count, number, seconds, size, size_change
from ndld_flow.base.text import first_of, short_name
from ndld_flow.records.accuracy import describe_worst_slice
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.records.power import first_reason
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_latency import MODEL_KINDS, latency_of_result
from ndld_flow.report.collect_summary import AccuracyOutcome, EngineOutcome, GraphOutcome, Summary, collect_summary
from ndld_flow.report.measured import measured_inputs
from ndld_flow.report.search_outcome import search_words


def summarize_run(documents: RunDocuments) -> list[str]:
    """Return the summary of a run: five lines that each begin with a keyword, and one more for each further reason why
    it did not pass, engine and precision search, and for optimized graphs that were compared.
    """
    return verdict_lines(collect_summary(documents))


def describe_results(documents: RunDocuments) -> dict[str, str]:
    """Return model or engine -> `5.2 MiB, 4.92x to 5.48x as fast as the source`, or that this is not proven."""
    results = {}
    for step in documents.run.steps:
        if step.record is not None and step.record.artifact.kind in MODEL_KINDS:
            latency = latency_of_result(documents, step.name)
            gain = latency.gain if latency is not None else ""
            unproven = f"not proven faster{'' if latency is not None else ': not measured against the source'}"
            words = f"{gain} as the source" if gain else unproven
            results[step.name] = f"{size(step.record.artifact.size_bytes)}, {words}"
    return results


def verdict_lines(summary: Summary) -> list[str]:
    """Return lines for outcome, further reasons, graph, engines, searches, accuracy, latency, gates and warnings."""
    engines = [f"engine {engine_words(engine)}" for engine in summary.engines]
    searches = [f"precision {search_words(search)}" for search in summary.searches]
    return [
        outcome_line(summary),
        *(f"and {reason}" for reason in summary.reasons[1:]),
        f"graph {graph_words(summary.graph)}",
        *([] if summary.executed is None else [f"optimized {executed_words(summary.executed)}"]),
        *engines,
        *searches,
        f"accuracy {accuracy_words(summary)}",
        *([f"next {remedy}"] if (remedy := remedy_words(summary)) else []),
        f"latency {latency_words(summary)}",
        f"gates {gate_words(summary)}",
        *(f"warning {warning}" for warning in summary.warnings),
    ]


def outcome_line(summary: Summary) -> str:
    """Return `PASSED ppocr-det in 8.2 s (6 of 6 steps reused)`."""
    run = summary.run
    line = f"{ENDINGS[run.outcome].headline} {short_name(run.recipe_name)} in {seconds(run.wall_s)}"
    if summary.failure is not None:
        where = " and ".join(summary.failure.steps)
        return f"{line}{f', in step {where}' if where else ''}: {summary.reasons[0]}"
    if summary.reasons:
        return f"{line}: {summary.reasons[0]}"
    reused = summary.outcomes.get("reused", 0)
    steps = sum(summary.outcomes.values())
    line = f"{line} ({reused} of {steps} steps reused)" if reused else line
    return f"{line}, weak: {weak_words(summary)}" if summary.weak else line


def weak_words(summary: Summary) -> str:
    """Return why the comparisons that passed show little: `1 of 43 rows of embedding are read (agree)`."""
    return "; ".join(f"{first_reason(reasons)} ({step})" for step, reasons in summary.weak.items() if reasons)


def graph_words(graph: GraphOutcome) -> str:
    """Return `672 -> 320 nodes, 4.49 -> 2.36 MiB`."""
    if graph.final == "source":
        return f"not changed, {size(graph.bytes_after)}"
    sizes = size_change(graph.bytes_before, graph.bytes_after)
    if graph.before is None or graph.after is None:
        return sizes
    nodes = f"{count(graph.before.node_count)} -> {count(graph.after.node_count)} nodes"
    return f"{nodes}, {sizes}"


def executed_words(change: GraphChange) -> str:
    """Return `graphs 422 -> 415 nodes, 4 nodes added, 11 removed`, or that two releases run the same graph."""
    differences = "not compared" if change.diff is None else change.diff.one_line
    before, after = change.before.node_count, change.after.node_count
    nodes = f"{count(before)} nodes" if before == after else f"{count(before)} -> {count(after)} nodes"
    return f"graphs {nodes}, {differences}"


def engine_words(engine: EngineOutcome) -> str:
    """Return `engine 9.38 MiB in 1.2 s, 97 layers, by TensorRT-RTX 1.7.1.116, not checked`."""
    build = engine.build
    built = f"{size(build.engine_bytes)} in {seconds(build.build_s)}, {count(len(build.layers))} layers"
    return f"{engine.step} {built}, by {short_name(build.library, 60)}, {engine.checked}"


_UNREAD = "unknown, as its record cannot be read"


def accuracy_words(summary: Summary) -> str:
    """Return `worst slice off by 1.2 % of its spread (channel 4), cosine 0.99998 (within tolerance)`."""
    accuracy = summary.accuracy
    if accuracy is None:
        return _UNREAD if summary.accuracy_unread else "not checked"
    parts = []
    if accuracy.accuracy.worst_slice is not None:
        parts.append(describe_worst_slice(*accuracy.accuracy.worst_slice))
    if accuracy.cosine is not None:
        parts.append(f"cosine {number(accuracy.cosine)}")
    if accuracy.max_abs is not None:
        parts.append(f"max abs {number(accuracy.max_abs)}")
    return f"{', '.join(parts)} ({tolerance_words(accuracy)})".lstrip()


def remedy_words(summary: Summary) -> str:
    """Return what to do about a reduced precision that is not accurate enough; empty for other runs."""
    steps = {step.step for step in summary.run.steps}
    failed = summary.accuracy is not None and summary.accuracy.accuracy.outcome == "failed"
    if not failed or "find_precision" in steps or not steps & {"quantize", "convert_fp16"}:
        return ""
    return "a step `find_precision`, or `ndld-flow optimize`, finds the layers that must keep their precision"


def tolerance_words(accuracy: AccuracyOutcome) -> str:
    """Return whether the comparison passed, and how many others did."""
    limit, outcome = "rounding" if accuracy.accuracy.by_rounding else "tolerance", accuracy.accuracy.outcome
    if outcome == "passed":
        text = f"within {limit}"
        text += f"; not judged: {', '.join(accuracy.unjudged)}" if accuracy.unjudged else ""
    elif outcome == "inconclusive":
        text = f"undecided: {accuracy.undecided or 'the check is weak'}"
    else:
        text = f"outside {limit}: {first_of(accuracy.broken, 1)}"
    if accuracy.checks == 1:
        return text
    return f"{text}; {accuracy.checks_passed} of {accuracy.checks} comparisons passed"


def latency_words(summary: Summary) -> str:
    """Return `half 12.1 ms vs source 14.3 ms: 1.18x as fast (x 1x80 float32; median of 200 passes ...)`."""
    if summary.latency is None:
        return _UNREAD if summary.latency_unread else "not measured"
    basis = filter(None, (measured_inputs(summary.latency.candidate.profile), summary.latency.basis))
    return f"{summary.latency.words} ({'; '.join(basis)})"


def gate_words(summary: Summary) -> str:
    """Return `2 of 2 passed` or `0 of 2 passed, 1 not reached`."""
    if not summary.gates:
        return "none requested"
    others = [(summary.gates.get(outcome, 0), outcome) for outcome in ("inconclusive", "incomparable", "not reached")]
    passed = f"{summary.gates.get('passed', 0)} of {sum(summary.gates.values())} passed"
    return ", ".join([passed, *(f"{times} {outcome}" for times, outcome in others if times)])
