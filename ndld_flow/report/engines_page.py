"""The page of two engines that are compared without running them: whether they are the same, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.quantities import ABSENT, count, counted, size, size_change
from ndld_flow.base.text import short_name, shortened
from ndld_flow.profiles.compare.engines import CHOICES, NOT_SET, EngineSide, count_changes, facts_of_engine
from ndld_flow.records.build import EngineComparison, LayerAspect, MatchedEngineLayer
from ndld_flow.report.measured import UNKNOWN, Figure
from ndld_flow.report.render import PageParts, render, write_page

_SURE = 0.9
_ROWS_WITHOUT_SCRIPT = 100
_LONGEST = 300
_LONGEST_IN_TABLE = 2_000
_HEADLINES = {
    "identical": ("passed", "Identical", "both files have the same bytes"),
    "equal": ("passed", "Equal", "equal layers, precisions, formats and tactics; the bytes differ"),
    "different": ("failed", "Different", ""),
    "undecided": ("inconclusive", "Undecided", ""),
}


@dataclass(frozen=True)
class FactPair:
    """One fact of both engines; an empty text was not recorded."""

    name: str
    before: str
    after: str

    @property
    def state(self) -> str:
        """`differs`, `same`, or `unknown` if one of them was not recorded."""
        if not (self.before and self.after):
            return "unknown"
        return "same" if self.before == self.after else "differs"


@dataclass(frozen=True)
class FactGroup:
    """Facts of one kind."""

    title: str
    differing: tuple[FactPair, ...]
    """Those that differ, or are known for one engine only."""
    same: tuple[FactPair, ...]


@dataclass(frozen=True)
class RollupRow:
    """The layers of both engines with one precision or type."""

    name: str
    before: int
    after: int
    before_bytes: int
    """Weights of these layers, as far as they are recorded."""
    after_bytes: int


@dataclass(frozen=True)
class EngineAspects:
    """Matched layers in one engine; texts are empty where it lacks the layers, or where they are not recorded."""

    type: str
    precision: str
    tactic: str
    formats: str
    shapes: str
    bytes: int
    """Weights."""


@dataclass(frozen=True)
class EngineRow:
    """One row of the script's table."""

    change: str
    """`precision, tactic`, `only in A`, `same`, or `renamed`."""
    differs: bool
    name: str
    was: str
    """The name in the earlier engine, if it is another one."""
    method: str
    """Empty for a layer of one engine."""
    confidence: float
    before: EngineAspects
    after: EngineAspects


@dataclass(frozen=True)
class EnginesPage:
    """The page of two engines."""

    before: str
    after: str
    tone: str
    word: str
    sentence: str
    why: tuple[str, ...]
    """Circumstances that differ, as sentences."""
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    facts: tuple[FactGroup, ...]
    precisions: tuple[RollupRow, ...]
    types: tuple[RollupRow, ...]
    rows: Sequence[EngineRow]
    """The first rows that differ, for paper and pages without a script."""
    differing: int
    row_count: int
    data: list[EngineRow]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections."""
        return (("builds", "Builds"), ("precisions", "Precisions"), ("layers", "Layers"))


def collect_engines_page(compared: EngineComparison, before: EngineSide, after: EngineSide) -> EnginesPage:
    """Convert a comparison to page data."""
    tone, word, sentence = _HEADLINES[compared.verdict]
    data = _data_of(compared, before, after)
    differing = [row for row in data if row.differs]
    return EnginesPage(
        before=short_name(before.label, 100),
        after=short_name(after.label, 100),
        tone=tone,
        word=word,
        sentence=sentence or _sentence(compared),
        why=tuple(short_name(cause, 300).replace("`", "") for cause in compared.causes),
        figures=tuple(_figures(compared, before, after)),
        notes=tuple(_notes(compared, before, after)),
        facts=tuple(_facts(before, after)),
        precisions=_rollup(before, after, "precision"),
        types=_rollup(before, after, "type"),
        rows=differing[:_ROWS_WITHOUT_SCRIPT],
        differing=len(differing),
        row_count=len(compared.rows),
        data=data,
    )


def _differs(row: MatchedEngineLayer) -> bool:
    return not (row.before and row.after) or any(aspect in CHOICES for aspect in row.changed)


def _sentence(compared: EngineComparison) -> str:
    """Return what differs in numbers, or why nothing is decided."""
    matched = [row for row in compared.rows if row.before and row.after]
    changed = [row for row in matched if _differs(row)]
    counts = count_changes(changed)
    parts = []
    if changed:
        kinds = ", ".join(f"{count(counts[aspect])} in {aspect}" for aspect in CHOICES if counts[aspect])
        verb = "differs" if len(changed) == 1 else "differ"
        parts.append(f"{count(len(changed))} of {counted(len(matched), 'matched layer')} {verb}: {kinds}")
    only = _only(compared)
    parts += [f"{counted(number, 'layer')} only in {side}" for number, side in zip(only, "AB", strict=True) if number]
    if compared.verdict == "undecided" or not parts:
        parts.append(shortened(compared.differences[-1], _LONGEST) if compared.differences else "nothing is known")
    return "; ".join(parts)


def _only(compared: EngineComparison) -> tuple[int, int]:
    """Return the number of layers that only the earlier and only the later engine has."""
    return (
        sum(len(row.before) for row in compared.rows if not row.after),
        sum(len(row.after) for row in compared.rows if not row.before),
    )


def _figures(compared: EngineComparison, before: EngineSide, after: EngineSide) -> Iterator[Figure]:
    matched = [row for row in compared.rows if row.before and row.after]
    ours, theirs = len(before.profile.layers), len(after.profile.layers)
    only = _only(compared)
    yield Figure(
        "Layers", f"{count(ours)} → {count(theirs)}", f"{count(only[0])} only in A, {count(only[1])} only in B"
    )
    counts = count_changes(matched)
    for aspect in CHOICES:
        unknown = sum(aspect in row.unknown for row in matched)
        if matched and unknown == len(matched):
            yield Figure(aspect.capitalize(), ABSENT, "not recorded for any layer of one or both")
            continue
        note = f"of {counted(len(matched) - unknown, 'matched layer')}" if matched else "no layers match"
        if unknown:
            note += f"; not recorded for {count(unknown)}"
        yield Figure(aspect.capitalize(), count(counts[aspect]), note)
    if compared.before_bytes is not None and compared.after_bytes is not None:
        change = size_change(compared.before_bytes, compared.after_bytes).replace("->", "→")
        yield Figure("Engine file", size(compared.after_bytes), change)
    else:
        known = [None if value is None else size(value) for value in (compared.before_bytes, compared.after_bytes)]
        yield Figure("Engine file", " → ".join(text or ABSENT for text in known), "sizes are not in exports of layers")


def _notes(compared: EngineComparison, before: EngineSide, after: EngineSide) -> Iterator[str]:
    for side in (before, after):
        if not side.reveals_layers and side.profile.layers:
            yield (
                f"The layers of {short_name(side.label, 60)} are those of the network before its optimization: the "
                "builder did not reveal the engine's own."
            )
    unsure = sum(bool(row.before and row.after) and row.confidence < _SURE for row in compared.rows)
    if unsure:
        yield (
            f"{counted(unsure, 'match')} of layers "
            f"{'is' if unsure == 1 else 'are'} less certain than 90 %: see the column Match."
        )
    library = None if after.lock is None else ENGINE_LIBRARIES[after.lock.request.backend]
    if compared.verdict == "equal" and library is not None and library.compiles_on_load:
        yield f"{library.title} chooses most kernels when an engine is first run: they are not compared."


def _facts(before: EngineSide, after: EngineSide) -> Iterator[FactGroup]:
    ours, theirs = facts_of_engine(before), facts_of_engine(after)
    for title in ours:
        names = dict.fromkeys((*ours[title], *theirs[title]))
        pairs = [
            FactPair(short_name(name, 80), *(short_name(each[title].get(name, ""), 200) for each in (ours, theirs)))
            for name in names
        ]
        known = [pair for pair in pairs if (pair.before or NOT_SET, pair.after or NOT_SET) != (NOT_SET, NOT_SET)]
        if known:
            yield FactGroup(
                title,
                tuple(pair for pair in known if pair.state != "same"),
                tuple(pair for pair in known if pair.state == "same"),
            )


def _rollup(before: EngineSide, after: EngineSide, aspect: LayerAspect) -> tuple[RollupRow, ...]:
    """Return the number of layers and the bytes of their weights, by one aspect; the most frequent first."""
    sides = (before, after)
    counts, weights = (Counter[str](), Counter[str]()), (Counter[str](), Counter[str]())
    for number, side in enumerate(sides):
        for index, layer in enumerate(side.profile.layers):
            name = side.aspect(aspect, [index]) or UNKNOWN
            counts[number][name] += 1
            weights[number][name] += layer.weight_bytes
    names = sorted({*counts[0], *counts[1]}, key=lambda name: (-counts[0][name] - counts[1][name], name))
    return tuple(
        RollupRow(short_name(name, 80), counts[0][name], counts[1][name], weights[0][name], weights[1][name])
        for name in names
    )


def _change(row: MatchedEngineLayer) -> str:
    if not row.after:
        return "only in A"
    if not row.before:
        return "only in B"
    changed = [aspect for aspect in CHOICES if aspect in row.changed]
    return ", ".join(changed) or ("renamed" if "name" in row.changed else "same")


def _data_of(compared: EngineComparison, before: EngineSide, after: EngineSide) -> list[EngineRow]:
    return [
        EngineRow(
            change=_change(row),
            differs=_differs(row),
            name=short_name(" + ".join(row.names), _LONGEST_IN_TABLE),
            was=short_name(was, _LONGEST_IN_TABLE) if row.before and row.after and "name" in row.changed else "",
            method=row.method if row.before and row.after else "",
            confidence=round(row.confidence, 3),
            before=_aspects(before, row.before),
            after=_aspects(after, row.after),
        )
        for row in compared.rows
        for was in [" + ".join(before.profile.layers[index].name for index in row.before)]
    ]


def _aspects(side: EngineSide, places: Sequence[int]) -> EngineAspects:
    def text(name: LayerAspect) -> str:
        # Another arrow than the one between the two engines.
        return short_name(side.aspect(name, places).replace(" -> ", " ▸ "), _LONGEST_IN_TABLE) if places else ""

    weights = sum(side.profile.layers[index].weight_bytes for index in places)
    return EngineAspects(text("type"), text("precision"), text("tactic"), text("formats"), text("shapes"), weights)


ENGINES_PAGE = PageParts("engines", "charts tables diff engines")


def draw_engines(compared: EngineComparison, before: EngineSide, after: EngineSide, path: Path) -> Path:
    """Write the page of two engines atomically and return its path.

    Raises an `OutputsError` if it cannot be written.
    """
    text = render(ENGINES_PAGE, collect_engines_page(compared, before, after), aspects=CHOICES)
    return write_page(path, text, "ndld-flow diff")
