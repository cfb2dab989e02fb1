"""Requests to run or plan a recipe, which is a file or passed by a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndld_flow.recipe.yaml_file import YamlFile, yaml_of_values

AnyRecipe = str | Path | Mapping[str, Any]
"""The path of a recipe's file, or its contents."""


@dataclass(frozen=True)
class Placement:
    """The processes or machines that compute the steps of a sweep."""

    jobs: int | None = None
    """Number of worker processes for the steps that do not measure; None: one."""
    ray: str = ""
    """Address of a Ray cluster that computes all steps, such as `auto` or `HOST:PORT`."""
    remote_store: str = ""
    """URL of a store for the cluster's machines if they share no folder: `s3://...`."""


@dataclass(frozen=True)
class Request:
    """A request to `run` or `plan`."""

    recipe: Path
    """The recipe's file; for a recipe that a program passes, its name in messages."""
    overrides: tuple[str, ...] = ()
    outputs: Path = Path("outputs")
    force: tuple[str, ...] = ()
    """Steps to run even if nothing changed; `all` for every one."""
    trust: bool = False
    """Allow the code that a recipe names: `steps_from:`, and settings marked `RunsCode`."""
    command: tuple[str, ...] = ()
    """The command as it was typed, for the run's record."""
    multirun: bool = False
    """Overrides with several values sweep over them: `steps.speed.threads=1,2,4`."""
    place: Placement = Placement()
    """The processes or machines that compute the steps of a sweep."""
    apply: Path | None = None
    """File to write the best point of a sweep to, as a recipe of its own."""
    output: Path | None = None
    """File or folder to which the result is exported."""
    given: YamlFile | None = None
    """The recipe that a program passes. Its relative paths start at the current directory."""

    @property
    def source(self) -> Path | YamlFile:
        """Return the recipe's file, or the recipe that a program passes."""
        return self.recipe if self.given is None else self.given

    def command_in(self, folder: Path) -> tuple[str, ...]:
        """Return the command as it was typed, or one that repeats the request of a program; `folder` is the run's.

        A recipe without a file is repeated from the copy in the folder, which has the overrides already.
        """
        if self.command:
            return self.command
        trust = ("--trust",) if self.trust else ()
        if self.given is not None:
            return ("ndld-flow", "run", str(folder / "recipe.yaml"), *trust)
        multirun = ("-m",) if self.multirun else ()
        return ("ndld-flow", "run", *multirun, str(self.recipe), *self.overrides, *trust)


def request_recipe(recipe: AnyRecipe, overrides: tuple[str, ...] = (), **options: Any) -> Request:  # noqa: ANN401
    """Return the request to run a recipe; `options` are further fields. Raises RecipeError for unusable values."""
    if isinstance(recipe, Mapping):
        given = yaml_of_values(recipe)
        return Request(given.path, overrides, given=given, **options)
    return Request(Path(recipe), overrides, **options)
