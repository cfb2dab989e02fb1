"""The pages of a site of all runs: the first page, and one for each recipe, model and machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from urllib.parse import quote

from ndld_flow.base.quantities import counted, quantity
from ndld_flow.base.text import short_name
from ndld_flow.records.history import MetricHistory
from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import ENDINGS, RunOutcome
from ndld_flow.report.encoding import Texts, packed
from ndld_flow.report.history_page import HistoryPage, collect_history, period_of
from ndld_flow.report.page_data import SiteRunsPayload
from ndld_flow.report.render import PageParts, render

_MOST_ROWS = 20_000
"""Number of runs in the table of the first page; each takes about 20 bytes."""
_MOST_OF_GROUP = 1_000
"""Number of runs in the table of a model or a machine."""
_STATIC_ROWS = 50
"""Number of runs that a page shows without JavaScript."""
_ROWS_OF_RECIPE = 20
_LONGEST = 120
INDEX = "index.html"


@dataclass(frozen=True)
class SiteRun:
    """A run or a sweep."""

    recipe: str
    id: str
    outcome: RunOutcome
    failed_in: tuple[str, ...]
    started_at: datetime
    wall_s: float
    points: int
    """Number of points of a sweep; 0 for a run."""
    model: str
    """The model's location, as written in the recipe; empty if it was not recorded, as are the others."""
    digest: str
    machine: str
    user: str
    host: str
    commit: str
    tags: tuple[str, ...]
    metrics: Mapping[str, Metric]
    """The metrics of its gates, or its latencies."""
    damage: str
    """The reason why it cannot be read."""
    report: str = ""
    """Path of its report in the site; empty if the site does not have it."""

    @cached_property
    def key(self) -> str:
        """Return a text that differs if anything differs."""
        metrics = [(name, metric.value, metric.unit) for name, metric in self.metrics.items()]
        return repr([metrics if name == "metrics" else value for name, value in vars(self).items()])

    @property
    def tone(self) -> str:
        return "failed" if self.damage else ENDINGS[self.outcome].tone

    @property
    def word(self) -> str:
        if self.damage:
            return "cannot be read"
        where = f" in {' and '.join(self.failed_in)}" if self.failed_in else ""
        return f"{ENDINGS[self.outcome].headline.lower()}{where}"

    @property
    def model_name(self) -> str:
        return self.model.replace("\\", "/").rpartition("/")[2]

    @property
    def shown(self) -> str:
        """The main metric: `speed.latency.median 3.2 ms`."""
        return next((f"{name} {quantity(metric.value, metric.unit)}" for name, metric in self.metrics.items()), "")


@dataclass(frozen=True)
class SitePaths:
    """Paths of the pages, relative to the site's folder."""

    recipes: Mapping[str, str]
    models: Mapping[str, str]
    machines: Mapping[str, str]


@dataclass(frozen=True)
class RecipeState:
    """The state of a recipe: its newest run, and its history."""

    name: str
    tone: str
    word: str
    sentence: str
    """The change that its history shows, or the place where its newest run failed."""


@dataclass(frozen=True)
class RowView:
    """A line of a table of recipes, models or machines."""

    name: str
    about: str
    link: str
    tone: str
    word: str
    sentence: str
    runs: int
    newest: datetime
    links: tuple[tuple[str, str], ...] = ()
    """(text, link) of related pages."""


@dataclass(frozen=True)
class RunView:
    """A run in the table that is shown without JavaScript."""

    name: str
    report: str
    recipe: str
    recipe_link: str
    tone: str
    word: str
    started_at: datetime
    model: str
    metric: str


@dataclass(frozen=True)
class RunsView:
    """All runs of a page: the newest as HTML, and all as data."""

    newest: tuple[RunView, ...]
    count: int
    left_out: int
    all_link: str
    """Link to the table of all runs; empty if this is it."""
    payload: str


@dataclass(frozen=True, kw_only=True)
class RunsPage:
    """A page with a table of runs, and the sections that have lines."""

    recipes: tuple[RowView, ...] = ()
    models: tuple[RowView, ...] = ()
    machines: tuple[RowView, ...] = ()
    runs: RunsView

    @property
    def payload(self) -> str:
        return self.runs.payload

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections."""
        names = ("recipes", "runs", "models", "machines")
        return tuple((name, name.capitalize()) for name in names if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class IndexPage(RunsPage):
    """The first page."""

    title: str
    tone: str
    word: str
    sentence: str
    meta: str


@dataclass(frozen=True, kw_only=True)
class GroupPage(RunsPage):
    """The page of a model, a machine, or a recipe without a history."""

    kind: str
    name: str
    about: str
    facts: tuple[tuple[str, str], ...]


def newest_finished(runs: Sequence[SiteRun]) -> SiteRun:
    """Return the newest run that is not active; `runs` has the newest first."""
    return next((run for run in runs if run.outcome != "running" or run.damage), runs[0])


def describe_recipe(runs: Sequence[SiteRun], history: HistoryPage | None) -> RecipeState:
    """Return the state of a recipe; `runs` has the newest first. A regression matters only if the newest run passed."""
    newest = newest_finished(runs)
    if newest.tone != "passed" or history is None:
        return RecipeState(newest.recipe, newest.tone, newest.word, newest.shown)
    if history.tone == "failed":
        return RecipeState(newest.recipe, "failed", history.word.lower(), history.sentence)
    word = "passed" if newest.word == "passed" else newest.word
    return RecipeState(newest.recipe, "passed", word, newest.shown)


def draw_index(title: str, runs: Sequence[SiteRun], states: Sequence[RecipeState], paths: SitePaths) -> str:
    """Return the first page; `runs` has the newest first."""
    open_states = [state for state in states if state.tone != "passed"]
    count = counted(len(states), "recipe")
    if not states:
        tone, word, sentence = "inconclusive", "No runs yet", "`ndld-flow run` creates one"
    elif open_states:
        tone = "failed" if any(state.tone == "failed" for state in open_states) else "inconclusive"
        word = f"{len(open_states)} of {count} need{'s' if len(open_states) == 1 else ''} attention"
        sentence = "; ".join(f"{short_name(state.name, 40)} {state.word}" for state in open_states[:4])
    else:
        tone, word = "passed", "Passed" if len(states) == 1 else f"All {count} passed"
        sentence = "no regression that nobody accepted"
    by_recipe = _grouped(runs, "recipe")
    ordered = sorted(
        states, key=lambda state: (state.tone == "passed", -by_recipe[state.name][0].started_at.timestamp())
    )
    page = IndexPage(
        title=short_name(title, 100),
        tone=tone,
        word=word,
        sentence=sentence,
        meta=_meta(runs),
        recipes=tuple(_recipe_row(state, by_recipe[state.name], paths, "") for state in ordered),
        models=_rows("model", runs, paths.models, paths),
        machines=_rows("machine", runs, paths.machines, paths),
        runs=_collect_runs(runs, paths, ""),
    )
    return render(SITE_INDEX, page)


def draw_group(kind: str, name: str, runs: Sequence[SiteRun], states: Sequence[RecipeState], paths: SitePaths) -> str:
    """Return the page of a model, a machine or a recipe; `runs` are its runs, the newest first."""
    by_recipe = _grouped(runs, "recipe")
    named = {state.name: state for state in states}
    rows = (
        [] if kind == "Recipe" else [_recipe_row(named[recipe], own, paths, "../") for recipe, own in by_recipe.items()]
    )
    page = GroupPage(
        kind=kind,
        name=short_name(name.replace("\\", "/").rpartition("/")[2] if kind == "Model" else name, 100),
        about=_meta(runs),
        facts=tuple(_facts(kind, name, runs)),
        recipes=tuple(rows),
        runs=_collect_runs(runs, paths, "../", _MOST_OF_GROUP, _word_of(kind, name)),
    )
    return render(SITE_GROUP, page)


def draw_recipe(history: MetricHistory, runs: Sequence[SiteRun], paths: SitePaths) -> tuple[HistoryPage, str]:
    """Return the history of a recipe as page data, and its page with the newest runs."""
    page = collect_history(history)
    reports = {run.id: f"../{_link(run.report)}" for run in runs if run.report}
    views = tuple(_run_view(run, paths, "../") for run in runs[:_ROWS_OF_RECIPE])
    more = _filter_link(_word_of("Recipe", runs[0].recipe)) if runs else ""
    return page, render(SITE_RECIPE, page, views=views, run_count=len(runs), all_runs=more, reports=reports)


def _grouped(runs: Sequence[SiteRun], name: str) -> dict[str, list[SiteRun]]:
    groups: dict[str, list[SiteRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, name), []).append(run)
    return groups


def _meta(runs: Sequence[SiteRun]) -> str:
    if not runs:
        return ""
    return f"{counted(len(runs), 'run')}, {period_of(runs[-1].started_at, runs[0].started_at)}"


def _recipe_row(state: RecipeState, runs: Sequence[SiteRun], paths: SitePaths, up: str) -> RowView:
    return RowView(
        name=short_name(state.name, _LONGEST),
        about="",
        link=f"{up}{_link(paths.recipes[state.name])}",
        tone=state.tone,
        word=state.word,
        sentence=short_name(state.sentence, 240),
        runs=len(runs),
        newest=runs[0].started_at,
    )


def _rows(name: str, runs: Sequence[SiteRun], own: Mapping[str, str], paths: SitePaths) -> tuple[RowView, ...]:
    """Return the lines of all models or machines, that with the newest run first."""
    rows = []
    for key, members in _grouped(runs, name).items():
        if key not in own:
            continue
        recipes = list(_grouped(members, "recipe"))
        links = [(short_name(recipe, 60), _link(paths.recipes[recipe])) for recipe in recipes[:6]]
        failed, newest = sum(run.tone == "failed" for run in members[:50]), newest_finished(members)
        rows.append(
            RowView(
                name=short_name(members[0].model_name if name == "model" else key, _LONGEST),
                about=short_name(key, 200) if name == "model" and "/" in key else "",
                link=_link(own[key]),
                tone=newest.tone,
                word=newest.word,
                sentence=f"{failed} of the newest {min(len(members), 50)} failed" if failed else "",
                runs=len(members),
                newest=members[0].started_at,
                links=tuple(links),
            )
        )
    return tuple(rows)


def _facts(kind: str, name: str, runs: Sequence[SiteRun]) -> list[tuple[str, str]]:
    """Return (name, value) of what is known of a model or a machine."""
    if kind == "Model":
        digests = list(dict.fromkeys(run.digest[:12] for run in runs if run.digest))
        versions = f"{', '.join(digests[:8])}{f' and {len(digests) - 8} more' if len(digests) > 8 else ''}"
        machines = dict.fromkeys(run.machine for run in runs if run.machine)
        facts = [("Location", name), ("Versions, newest first", versions), ("Machines", "\n".join(machines))]
    else:
        hosts, users = (dict.fromkeys(filter(None, names)) for names in _columns(runs))
        models = dict.fromkeys(run.model_name for run in runs if run.model)
        facts = [("Hosts", ", ".join(hosts)), ("Users", ", ".join(users)), ("Models", ", ".join(models))]
    return [(title, short_name(text, 600) if "\n" not in text else text[:2000]) for title, text in facts if text]


def _columns(runs: Sequence[SiteRun]) -> tuple[list[str], list[str]]:
    return [run.host for run in runs], [run.user for run in runs]


def _collect_runs(
    runs: Sequence[SiteRun], paths: SitePaths, up: str, most: int = _MOST_ROWS, word: str = ""
) -> RunsView:
    drawn = runs[:most]
    return RunsView(
        newest=tuple(_run_view(run, paths, up) for run in drawn[:_STATIC_ROWS]),
        count=len(runs),
        left_out=len(runs) - len(drawn),
        all_link=_filter_link(word) if word and len(runs) > len(drawn) else "",
        payload=_payload(drawn, paths, up),
    )


def _run_view(run: SiteRun, paths: SitePaths, up: str) -> RunView:
    return RunView(
        name=short_name(run.id, _LONGEST),
        report=f"{up}{_link(run.report)}" if run.report else "",
        recipe=short_name(run.recipe, _LONGEST),
        recipe_link=f"{up}{_link(paths.recipes[run.recipe])}",
        tone=run.tone,
        word=short_name(run.word),
        started_at=run.started_at,
        model=short_name(run.model_name, 60),
        metric=short_name(run.shown, 100),
    )


def _payload(runs: Sequence[SiteRun], paths: SitePaths, up: str) -> str:
    texts = Texts()

    def places(values: Sequence[str], limit: int = _LONGEST) -> list[int]:
        return texts.places(values, lambda text: short_name(text, limit))

    metrics = [next(iter(run.metrics.items()), ("", Metric(value=0.0))) for run in runs]
    data: SiteRunsPayload = {
        "id": [short_name(run.id, _LONGEST) for run in runs],
        "started_s": [int(run.started_at.timestamp()) for run in runs],
        "wall_s": [round(run.wall_s, 1) for run in runs],
        "recipe": places([run.recipe for run in runs]),
        "page": texts.places(f"{up}{_link(paths.recipes[run.recipe])}" for run in runs),
        "outcome": places([run.word for run in runs]),
        "tone": texts.places(run.tone for run in runs),
        "points": [run.points for run in runs],
        "model": places([run.model_name for run in runs]),
        "machine": places([run.machine for run in runs], 200),
        "user": places([run.user for run in runs], 60),
        "host": places([run.host for run in runs], 60),
        "commit": [run.commit[:10] for run in runs],
        "tags": places([", ".join(run.tags) for run in runs], 200),
        "metric": places([name for name, _ in metrics]),
        "value": [quantity(metric.value, metric.unit) if name else "" for name, metric in metrics],
        "others": places(
            [
                ", ".join(f"{name} {quantity(each.value, each.unit)}" for name, each in list(run.metrics.items())[1:])
                for run in runs
            ],
            300,
        ),
        "report": [f"{up}{_link(run.report)}" if run.report else "" for run in runs],
        "texts": [],
    }
    return packed({**data, "texts": texts.as_list()})


def _link(path: str) -> str:
    return quote(path)


def _word_of(kind: str, name: str) -> str:
    """Return the word of the filter for a group, as `exactWord` in `table.js` writes it."""
    limit = 200 if kind == "Machine" else _LONGEST
    shown = short_name(name.replace("\\", "/").rpartition("/")[2] if kind == "Model" else name, limit)
    return f'{kind.lower()}="{shown.lower().replace(chr(34), chr(34) * 2)}"'


def _filter_link(word: str) -> str:
    return f"../{INDEX}#runs={quote(word)}"


_STYLES = ("tokens.css", "page.css", "charts.css", "tables.css")
SITE_INDEX = PageParts("site.html.j2", (*_STYLES, "site.css", "print.css"), "static/site/page.js")
SITE_GROUP = PageParts("site_group.html.j2", (*_STYLES, "site.css", "print.css"), "static/site/page.js")
SITE_RECIPE = PageParts(
    "site_recipe.html.j2", (*_STYLES, "history.css", "site.css", "print.css"), "static/history/page.js"
)
