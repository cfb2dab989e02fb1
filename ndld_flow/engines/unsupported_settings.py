"""Settings that a release does not support, reported before anything is built."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.text import short_name, suggest
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.contradictions import list_contradictions
from ndld_flow.engines.needed_names import Need, list_needs
from ndld_flow.engines.rtx_limits import list_rtx_limits
from ndld_flow.runtimes.tensorrt.release_names import Names, members, release_title, releases_text


def refuse_settings(settings: BuildSettings, names: Names) -> tuple[str, ...]:
    """Why a release cannot build with these settings: a sentence for each that it cannot, which names the setting as
    the recipe writes it and what to do instead; empty when it can.
    """
    said = [*_lacking(settings, names), *_beyond_rtx(settings, names), *list_contradictions(settings, names)]
    of_setting: dict[str, str] = {}
    for sentence in said:  # one reason for each setting will do
        of_setting.setdefault(sentence.split("`")[1], sentence)
    # Recipes may come from strangers: what they say is made visible, and cannot fill a page.
    return tuple(short_name(sentence, 600) for sentence in of_setting.values())


def _lacking(settings: BuildSettings, names: Names) -> Iterator[str]:
    title = release_title(names)
    for need in list_needs(settings):
        if not _is_there(need, names):
            yield f"`{need.written}`: {title} has no {need.what}{_when(need, names)}; {_instead(need, names)}"


def _is_there(need: Need, names: Names) -> bool:
    """Bindings have more than members: `BuilderFlag.name`."""
    return names.has(need.owner, need.name) and (need.name.isupper() or not need.own_word)


def _when(need: Need, names: Names) -> str:
    when = releases_text(names.backend, need.owner, need.name)
    return f" ({when})" if when else ""


def _instead(need: Need, names: Names) -> str:
    """Suggest a name for one that no release has."""
    if need.own_word and not releases_text(names.backend, need.owner, need.name):
        return suggest(need.name, members(names, need.owner)) or need.instead
    return need.instead


def _beyond_rtx(settings: BuildSettings, names: Names) -> Iterator[str]:
    if names.backend == "tensorrt_rtx":
        for limit in list_rtx_limits(settings, names):
            yield f"`{limit.written}`: {release_title(names)} {limit.fact}; {limit.instead}"
