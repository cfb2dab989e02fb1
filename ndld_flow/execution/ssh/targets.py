"""The targets of a run: which step runs where, and what is known of it there."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ndld_flow.base.errors import Problem, RecipeError, RequestError, UnknownNameError
from ndld_flow.base.text import suggest
from ndld_flow.execution.keys import Site
from ndld_flow.execution.listener import Listener
from ndld_flow.machine.host import Check
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.recipe.targets import HERE, ON, Target, is_host
from ndld_flow.runs.cache_settings import PROJECT_FILE, read_settings, user_settings_file

if TYPE_CHECKING:
    from ndld_flow.execution.ssh.host import Host
    from ndld_flow.recipe.sweep_axes import SweptAxis


def name_targets(recipe: Recipe, axes: Sequence[SweptAxis] = ()) -> dict[str, str]:
    """Return the targets of a recipe, and those that the axes of its sweep set: name -> the place that names it."""
    named = {}
    for axis in axes:
        for place, value in axis.samples():
            for key, changed in axis.changes(value).items():
                root, *words = key.split(".")
                entry = changed.get(ON) if len(words) == 1 and isinstance(changed, dict) else changed
                if root == "steps" and words[1:] in ([], [ON]) and isinstance(entry, str) and entry not in ("", HERE):
                    named[entry] = place
    return named | {name: f"steps.{step.name}.{ON}" for step in reversed(recipe.steps) if (name := step.target)}


@dataclass
class Targets:
    """The targets of a recipe, which are connected when they are first needed."""

    known: Mapping[str, Target]
    listener: Listener
    _hosts: dict[str, Host] = field(default_factory=dict)
    _sites: dict[tuple[str, str, str], Site] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def host_of(self, step: RecipeStep) -> Host | None:
        """Return the target of a step; None for a step that runs here."""
        from ndld_flow.execution.ssh.host import Host

        name = step.target
        if not name:
            return None
        if name not in self.known:
            raise RequestError(
                f"steps.{step.name}.{ON}: {name!r} comes from an interpolation in a sweep; use an axis "
                f"`{step.name}.{ON}`."
            )
        with self._lock:
            if name not in self._hosts:
                self._hosts[name] = Host(name, self.known[name], self.listener)
            return self._hosts[name]

    def site_of(self, step: RecipeStep) -> Site | None:
        """Return the circumstances of a step on its target; None for a step that runs here. Raises BackendError."""
        host = self.host_of(step)
        if host is None:
            return None
        key = (host.name, step.type.name, json.dumps(step.step.model_dump(mode="json"), sort_keys=True))
        if key not in self._sites:
            self._sites[key] = host.describe(step)
        return self._sites[key]

    def close(self) -> None:
        """End all connections, and everything that runs on the targets for them. Any thread may call this."""
        with self._lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.close()


def open_targets(
    recipe: Recipe, listener: Listener, *, typed: str, trust: bool, axes: Sequence[SweptAxis] = ()
) -> Targets | None:
    """Return the targets of a recipe, and of a sweep over it with these axes; None if all of its steps run here.

    `typed`: the target that the command line names; the steps that need a device have been sent there.

    Raises RecipeError for unknown targets, and for those that only the recipe defines without the user's `trust`: the
    steps' models would be sent to a machine that a stranger chose.
    """
    named = name_targets(recipe, axes)
    if not named:
        return None
    if read_settings(Path(PROJECT_FILE)).targets:
        raise RequestError(
            f"{PROJECT_FILE}: targets: a project cannot choose machines for this user, since a pull request could "
            f"change them. Define them in {user_settings_file()}."
        )
    own, of_recipe = read_settings(user_settings_file()).targets, recipe.file.targets
    problems = []
    for name, place in named.items():
        where = "--on" if name == typed else place
        strangers = of_recipe[name].host if name in of_recipe else name if is_host(name) and name != typed else ""
        if name in own or (name == typed and is_host(name)) or (strangers and trust):
            continue
        what, hint = f"there is no target {name!r}", suggest(name, [*own, *of_recipe])
        if strangers:
            what = f"the recipe sends models to {strangers}, and runs steps there with your keys"
            hint = f"check that machine, then allow it with --trust, or define it in {user_settings_file()}"
        problems.append(Problem(str(recipe.path), where, what, hint))
    if problems:
        raise RecipeError(problems)
    known = {name: own.get(name) or of_recipe.get(name) or _at(name, recipe.path) for name in named}
    return Targets(known, listener)


def find_target(name: str) -> Target:
    """Return a target of the user's settings, or one at an address. Raises RequestError for an unknown name."""
    own = read_settings(user_settings_file()).targets
    if name not in own and not is_host(name):
        raise UnknownNameError(f"there is no target {name!r} in {user_settings_file()}", name, own)
    return own.get(name) or _at(name, Path("--on"))


def _at(address: str, path: Path) -> Target:
    try:
        return Target(host=address)
    except ValidationError as error:
        raise RecipeError([Problem(str(path), ON, str(error.errors()[0]["ctx"]["error"]))]) from None


def examine_target(name: str, listener: Listener) -> list[Check]:
    """Return what `doctor` finds on a target. Raises RequestError for an unknown name, and BackendError."""
    from ndld_flow.execution.ssh.host import Host

    host = Host(name, find_target(name), listener)
    try:
        return host.examine()
    finally:
        host.close()
