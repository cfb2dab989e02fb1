"""Presets of `optimize --for`: what a target runs, and its limits; one YAML file each, in `configs/optimize/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.quantities import Bytes
from ndld_flow.base.settings import Settings
from ndld_flow.recipe.config_files import shipped_folder
from ndld_flow.recipe.yaml_file import read_yaml
from ndld_flow.runtimes.registry import DEFAULT, find_builder, runtime_names

_GROUP = "optimize"
_RUN_MODELS = tuple(name for name in runtime_names() if find_builder(name) is None)
_Key = Annotated[str, Field(pattern=r"^[a-z_]+$")]
"""A setting, which is written into recipes as it is."""


class Limits(Settings):
    """Limits of a target. A variant beyond one is not a candidate."""

    operators: tuple[str, ...] = ()
    """All operators that it runs; empty: all that ONNX Runtime runs."""
    model: Bytes | None = None
    """The largest size of a model's files."""


class Preset(Settings):
    """A target."""

    description: str
    """The target, in a line."""
    runtimes: tuple[Literal[_RUN_MODELS], ...] = Field(default=(DEFAULT,), min_length=1)  # type: ignore[valid-type]
    """Runtimes in which each variant is tried and judged. The source is measured in the first."""
    minimize: tuple[str, ...] = ()
    """Objectives without `--minimize` and `--maximize`."""
    maximize: tuple[str, ...] = ()
    speed: dict[_Key, JsonValue] = {}
    """Settings of the runtimes, for the source too, such as `{threads: 1}`."""
    engine: dict[_Key, JsonValue] = {}
    """Settings of `build_engine`, for targets that run engines."""
    fp16: bool = False
    """True if the target computes in FP16."""
    remote: bool = False
    """True if another machine builds and measures; `--on` names it."""
    limits: Limits = Limits()
    unknown: str = ""
    """A sentence on what is not measured here."""

    @model_validator(mode="after")
    def _check_speed(self) -> Preset:
        if self.engine and self.speed:
            raise ValueError("`speed` sets runtimes, and `engine` is what runs here: remove `speed`")
        return self

    @property
    def built_only(self) -> bool:
        """Return whether engines are built, and nothing runs them."""
        return bool(self.engine) and not self.remote

    @property
    def defaults(self) -> tuple[str, ...]:
        """Return the names of the objectives without options."""
        return (*self.minimize, *self.maximize) or (("size", "build_time") if self.built_only else ("latency",))


def preset_files() -> dict[str, Path]:
    """Return name -> file: those in `configs/optimize/` of the current directory, and those of the package."""
    folders = (shipped_folder("configs") / _GROUP, Path.cwd() / "configs" / _GROUP)
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def read_preset(name: str) -> Preset:
    """Return a preset. Raises RequestError for an unknown or a wrong one, RecipeError for invalid YAML."""
    files = preset_files()
    if name not in files:
        raise UnknownNameError(f"--for {name}: there is no such target", name, list(files))
    try:
        return Preset.model_validate_json(json.dumps(read_yaml(files[name]).values, default=str))
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = f"{'.'.join(map(str, wrong['loc']))}: " if wrong["loc"] else ""
        problem = wrong["msg"].removeprefix("Value error, ")
        raise RequestError(f"--for {name}: {files[name]}: {where}{problem}") from None
