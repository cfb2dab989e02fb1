"""Settings of steps that run a model on several samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.inputs import Data, patterns_of
from ndld_flow.step import DataFile, RunsCode, SampleData


class SampleSettings(Settings):
    """What a step runs its model on. `make_samples` reads it."""

    data: Annotated[dict[str, Data], SampleData()] = Field(default={})
    """Input name -> its values for this step, in place of `inputs.NAME.data`, and of the same forms: sample i is the
    i-th file, frame or row. Shape, `mean`, `std`, `layout` and `every` stay those of `inputs:`."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """How many samples; when not given, all that `data` has, or one where all of it is generated."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs: sample i gets `seed` + i."""
    loader: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file whose function `samples()` yields for each sample a mapping, input -> array, or a pair of its label
    and that; no more of them than `samples`. Its contents and those of the modules beside it that it imports are part
    of the step's key; other files that it opens are not, unless it names them by `__file__`. It runs only when the
    recipe is trusted."""

    @model_validator(mode="after")
    def _check_loader(self) -> SampleSettings:
        files = [name for name, data in self.data.items() if patterns_of(data)]
        if self.loader is not None and files:
            raise ValueError(f"give either `loader` or files in `data` ({files[0]}), not both")
        return self
