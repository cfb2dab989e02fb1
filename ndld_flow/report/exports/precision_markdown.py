"""Write a precision search and a comparison for pull requests: the summary first, then the kept nodes and reasons."""

from __future__ import annotations

from ndld_flow.base.quantities import count, number, seconds
from ndld_flow.report.collect_accuracy import AccuracyView
from ndld_flow.report.collect_insights import InsightView, Passage
from ndld_flow.report.collect_search import KeptRow, SearchView
from ndld_flow.report.exports.github_markdown import code, details, prose, table

_KEPT = 30
_TRIALS = 50
_SIGN = {True: "✅", False: "❌"}


def search_markdown(view: SearchView, picture: str = "") -> str:
    """Return the summary of a search, its kept nodes and its cost. `picture` is the name of a file in the same
    folder."""
    story = [*map(_passages, view.story), f"Cost: {_passages(view.cost_words)}"]
    parts = [
        f"### {_SIGN[view.outcome.passed]} {code(view.step)}: {prose(view.outcome.standing)}\n",
        "".join(f"- {sentence}\n" for sentence in story),
        *(f"- **Open**: {_insight(one)}\n" for one in view.insights),
        f"![Divergence along the depth of the network]({picture})\n" if picture else "",
        _kept(view),
        _trials(view),
    ]
    return "\n".join(part for part in parts if part)


def _passages(passages: tuple[Passage, ...]) -> str:
    return "".join(code(text, 100) if is_code else prose_piece(text) for text, is_code in passages)


def prose_piece(text: str) -> str:
    """Return a part of a sentence, preserving blanks at both ends."""
    lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{lead}{prose(text.strip())}{trail}"


def _insight(one: InsightView) -> str:
    return f"{prose(one.title)}. {_passages(one.evidence)} {_passages(one.next_step)}"


def _kept(view: SearchView) -> str:
    if not view.kept:
        return ""
    rows = [_kept_cells(row) for row in view.kept[:_KEPT]]
    more = "" if view.kept_count <= _KEPT else f"\n{count(view.kept_count - _KEPT)} more are in `kept.csv`.\n"
    return f"{table(['Kept', 'Type', 'Cause', 'Evidence', 'Without it'], rows)}{more}"


def _kept_cells(row: KeptRow) -> list[str]:
    evidence = "; ".join(prose(sentence) for sentence, _ in row.evidence[:2])
    without = ", ".join(map(prose, row.without)) or "\N{EN DASH}"
    return [code(row.node) or "(no name)", code(row.op_type), row.cause, evidence, without]


def _trials(view: SearchView) -> str:
    if not view.trials:
        return ""
    metric = view.outcome.metric
    rows = [
        [
            str(trial.number),
            trial.phase,
            prose(trial.what),
            count(trial.kept_count),
            number(trial.metrics[metric]) if metric in trial.metrics else "\N{EN DASH}",
            _SIGN[trial.passed],
            seconds(trial.wall_s),
        ]
        for trial in view.trials[:_TRIALS]
    ]
    head = ["#", "Phase", "What", "Kept", prose(metric) or "Metric", "Passed", "Took"]
    return details(
        f"{count(len(view.trials))} trials in {seconds(view.wall_s)}", table(head, rows, numbers=(0, 3, 4, 6))
    )


def accuracy_markdown(view: AccuracyView, picture: str = "") -> str:
    """Return the outcome of a comparison, its margins and where divergence starts. `picture` is a file in the same
    folder.
    """
    starts = f"Divergence starts at {code(view.first_divergent, 100)}.\n" if view.first_divergent else ""
    parts = [
        f"### {_SIGN[view.passed]} {code(view.candidate)} against {code(view.reference)}\n",
        _labelled(view),
        _outputs(view),
        starts,
        f"![Divergence along the depth of the network]({picture})\n" if picture else "",
        "".join(f"- {prose(note)}\n" for note in view.notes[:20]),
    ]
    return "\n".join(part for part in parts if part)


def _labelled(view: AccuracyView) -> str:
    if not view.labelled:
        return ""
    rows = [
        [code(row.name), row.reference, row.candidate, prose(row.drop), prose(row.bounds) or "any", _SIGN[row.passed]]
        for row in view.labelled
    ]
    head = ["Labelled set", code(view.reference), code(view.candidate), "Change", "Bound", "Passed"]
    return table(head, rows, numbers=(1, 2))


def _outputs(view: AccuracyView) -> str:
    head = ["Output", *map(code, view.metrics), "Passed"]
    rows = [
        [code(row.output), *(cell.value if cell else "\N{EN DASH}" for cell in row.cells), _SIGN[not row.failed]]
        for row in view.rows
    ]
    limits = ["tolerance", *((prose(limit) or "any") for limit in view.tolerances), ""]
    return table(head, [*rows, limits], numbers=tuple(range(1, 1 + len(view.metrics))))
