"""Descriptions of settings are read from the docstrings below them, on demand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from ndld_flow.base.quantities import Fraction
from ndld_flow.base.settings import Settings, describe_settings, fields_of
from ndld_flow.recipe.recipe import RecipeFile
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.recipe.sweep_section import SweepSection

CLASSES = '''
    class Inner({base}):
        """Settings of their own."""

        depth: int = 1
        """How deep."""

    class Outer({base}):
        """What it is."""

        plain: int = 1
        """The first
            with an indented line."""
        share: Fraction = 0.5
        """Told over what the type says."""
        silent: int = 3
        named: int = Field(default=1, alias="from")
        """Has an alias."""
        said: int = Field(default=1, description="Told by the field.")
        """Not this."""
        inner: Inner = Inner()
        """Refers to another."""
        maybe: Annotated[Inner | None, Field(title="T")] = None
        """Either."""

        "nobody's"

    class Heir(Outer):
        """Inherits most."""

        plain: int = 2
        share: Fraction = 0.1
        """Told anew."""
'''


class Slow(BaseModel):
    """Pydantic reads docstrings itself, each time a class is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def make_classes(base: type[BaseModel], folder: Path) -> dict[str, type[BaseModel]]:
    """`Inner`, `Outer` and `Heir` derived from a base; inside a function, as tests of steps make theirs."""
    name = f"settings_of_{base.__name__.lower()}"
    text = f"def make(Base, Fraction, Field, Annotated):\n{CLASSES.format(base='Base')}\n    return locals()\n"
    (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    try:
        result: dict[str, type[BaseModel]] = __import__(name).make(base, Fraction, Field, Annotated)
    finally:
        sys.path.remove(str(folder))
    return result


@pytest.mark.parametrize("name", ["Inner", "Outer", "Heir"])
def test_the_schema_matches_pydantic_with_docstrings(name: str, tmp_path: Path) -> None:
    ours, theirs = (make_classes(base, tmp_path)[name] for base in (Settings, Slow))
    assert ours.model_json_schema() == theirs.model_json_schema()
    assert describe_settings(ours) == {
        field: info.description for field, info in theirs.model_fields.items() if info.description
    }


def test_a_class_without_source_has_no_descriptions() -> None:
    space: dict[str, type[Settings]] = {"Settings": Settings}
    exec("class Bare(Settings):\n    a: int = 1\n    'told'\n", space)  # noqa: S102
    assert describe_settings(space["Bare"]) == {}
    assert "a" in space["Bare"].model_json_schema()["properties"]


@pytest.mark.representatives("Edit", "Quantize", "Sanitize")
@pytest.mark.parametrize("model", [RecipeFile, SweepSection, *(StepType.cls for StepType in StepTypes())])
def test_every_setting_is_described(model: type[BaseModel]) -> None:
    described = {name for name, item in model.model_json_schema()["properties"].items() if item.get("description")}
    assert described == {info.alias or name for name, info in fields_of(model).items()}


def test_creating_settings_reads_no_source() -> None:
    code = (
        "import inspect, ndld_flow.base.settings as settings\n"
        "def refuse(*_): raise AssertionError('a source file was read')\n"
        "inspect.getsource = inspect.getsourcelines = inspect.findsource = refuse\n"
        "from ndld_flow.steps.lint import Lint\n"
        "assert Lint.model_validate({}).fail_on\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
