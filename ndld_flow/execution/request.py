"""Requests to run or plan a recipe, which is a file or passed by a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ndld_flow.base.text import lazy_pattern
from ndld_flow.recipe.yaml_file import YamlFile, yaml_of_values
from ndld_flow.runs.cache_settings import NO_CACHE, CacheChoice

if TYPE_CHECKING:
    from ndld_flow.records.run_record import RunRecord

AnyRecipe = str | Path | Mapping[str, Any]
"""The path of a recipe's file, or its contents."""


_ARGUMENT = lazy_pattern(r"(?s)[~+]{0,2}[\w.@]+(=.*)?")


@dataclass(frozen=True)
class Placement:
    """The processes or machines that compute the steps of a run or a sweep."""

    jobs: int | None = None
    """Number of worker processes for the steps of a sweep that do not measure; None: one."""
    ray: str = ""
    """Address of a Ray cluster that computes all steps, such as `auto` or `HOST:PORT`. Its machines share the outputs
    folder, or a shared cache to which this request may push."""


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
    """The processes or machines that compute the steps."""
    apply: Path | None = None
    """File to write the best point of a sweep to, as a recipe of its own."""
    output: Path | None = None
    """File or folder to which the result is exported."""
    on: str = ""
    """The target on which the steps that need a device run: a name, or `ssh://...`."""
    cache: CacheChoice = NO_CACHE
    """The shared cache; without an entry here, none is used, whatever the settings files name."""
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
        options = (*(("--trust",) if self.trust else ()), *(("--on", self.on) if self.on else ()))
        options += ("--ray", self.place.ray) if self.place.ray else ()
        if self.given is not None:
            return ("ndld-flow", "run", str(folder / "recipe.yaml"), *options)
        multirun = ("-m",) if self.multirun else ()
        return ("ndld-flow", "run", *multirun, str(self.recipe), *self.overrides, *options)


def recipe_of(run: RunRecord) -> tuple[Path | None, tuple[str, ...]]:
    """Return the recipe's file and the overrides in the command of a run; None if the command names no file."""
    if run.command[1:2] != ("run",):
        return None, ()
    for index, word in enumerate(run.command[2:], 2):
        path = Path(run.directory, word)
        is_option_value = run.command[index - 1] in ("--best", "--output", "-o")
        if path.suffix.lower() in (".yaml", ".yml") and not is_option_value and path.is_file():
            words = [each for each in run.command[index + 1 :] if _ARGUMENT.fullmatch(each)]
            return path, tuple(each for each in words if "=" in each or each.startswith("~"))
    return None, ()


class RequestOptions(TypedDict, total=False):
    """The fields of `Request` as programs and the command line give them."""

    outputs: str | Path
    force: Sequence[str]
    trust: bool
    multirun: bool
    place: Placement | None
    apply: str | Path | None
    output: str | Path | None
    on: str
    cache: CacheChoice
    command: Sequence[str]


def request_recipe(recipe: AnyRecipe, overrides: Sequence[str] = (), **options: Unpack[RequestOptions]) -> Request:
    """Return the request to run a recipe. Raises RecipeError for a mapping with unusable values."""
    if isinstance(recipe, Mapping):
        given = yaml_of_values(recipe)
        path = given.path
    else:
        given, path = None, Path(recipe)
    apply, output = options.get("apply"), options.get("output")
    return Request(
        recipe=path,
        overrides=tuple(overrides),
        outputs=Path(options.get("outputs", "outputs")),
        force=tuple(options.get("force", ())),
        trust=options.get("trust", False),
        command=tuple(options.get("command", ())),
        multirun=options.get("multirun", False),
        place=options.get("place") or Placement(),
        apply=Path(apply) if apply is not None else None,
        output=Path(output) if output is not None else None,
        on=options.get("on", ""),
        cache=options.get("cache", NO_CACHE),
        given=given,
    )
