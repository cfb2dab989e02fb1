"""Run any program that changes a model."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Milliseconds
from ndld_flow.base.text import suggest
from ndld_flow.base.user_code import list_files
from ndld_flow.inputs import InputSpec
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, DataFile, Foresight, Reads, Result, Returns, Reuse, RunsCode, Step, metrics
from ndld_flow.store.digest import cached_digest, digest_json
from ndld_flow.store.hidden_credentials import is_secret_variable
from ndld_flow.store.kinds import Artifact, Onnx, TorchModule

_PLACEHOLDER = re.compile(r"\$(?:\$|(\w+)\{([^{}]*)\}|(\w+))")
_WORDS = ("Model", "Output", "Scratch", "Python", "Module", "Weights")
_NAMED = ("Input", "File")
_SHORT = 16
"""Digits of a digest: enough to detect a change, and short enough to read."""


class RunTool(LoadsCustomOps, Step[Onnx, Onnx]):
    """Run any program that changes the model.

    The program runs without a shell; each argument is one item of the list. Arguments and `environment` may contain
    these placeholders:

        $Model          the model to read, with external data in the same folder
        $Output         the file to write the model to; external data go to the same folder
        $Scratch        an empty temporary folder
        $Python         the Python that runs ndld-flow, with the packages that are installed beside it
        $Module         the folder of the step `export_pytorch` that `module` names
        $Weights        instead of $Output: a safetensors file to write that module's trained state dict to; the
                        result is the model with these weights
        $Input{NAME}    a .npy file with the values of this input from the recipe's `inputs:`
        $File{NAME}     the file of this name in `files`
        $$              a dollar sign

    For example `command: [$Python, "$File{prune.py}", --model, $Model, --to, $Output]` with `files: [prune.py]`. It
    runs in the current directory; from your environment it gets only PATH, HOME, LANG, LC_ALL, LC_CTYPE and TZ, and the
    variables of `environment`. Its output goes to the step's log. It succeeds when it exits with code 0 and its model
    passes the ONNX checker; a timeout, an error or Ctrl-C ends it and all processes that it started.
    """

    also_called: ClassVar[tuple[str, ...]] = ("command", "shell", "exec", "run", "tool")
    synonyms: ClassVar[Mapping[str, str]] = {"cmd": "command"}

    version: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir")
    uses_inputs: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes")

    command: Annotated[tuple[str, ...], RunsCode()] = Field(min_length=1)
    """The program, found on PATH or by its path, and its arguments. The contents of the program and of arguments that
    are files are part of the step's key: a changed script runs again."""
    files: Annotated[tuple[Path, ...], DataFile()] = ()
    """Files that determine the result, such as scripts, modules and configurations; their contents are part of the
    key."""
    module: Annotated[str | None, Reads(TorchModule)] = None
    """A step `export_pytorch`, of the same model, whose module a program trains: `$Module`, `$Weights`."""
    environment: dict[str, str | None] = Field(default={})
    """Environment variables to set; null passes on the current value, which is part of the step's key and hidden in the
    log. The value of a variable that is a credential by its name (`HF_TOKEN`, `..._PASSWORD`) is neither part of the
    key nor recorded."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 3_600_000.0
    """Time limit, such as `10 min`."""
    in_place: bool = False
    """The program changes $Model in place: it gets a copy, which becomes the result; there is no $Output."""
    deterministic: bool = True
    """The program writes the same model for the same files each time, so that the result may be reused; `false` runs
    it every time."""

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        used = set(self._placeholders())
        for word, name in used:
            if word not in (_NAMED if name is not None else _WORDS):
                near = suggest(word, [*_WORDS, *(f"{word}{{NAME}}" for word in _NAMED)])
                raise ValueError(f"there is no ${word}; {near} (`$$` is a dollar sign)")
            if word == "File" and [path.name for path in self.files].count(name or "") > 1:
                raise ValueError(f"`files` has several {name!r}: use different file names")
            if word == "File" and name not in self._files_by_name:
                near = suggest(name or "", self._files_by_name) or "it is empty"
                raise ValueError(f"`files` has no {name!r}; {near}")
        # The program writes its result in exactly one way.
        words = {word for word, _ in used}
        if self.module is None and words & {"Module", "Weights"}:
            raise ValueError("$Module and $Weights need `module`, a step `export_pytorch`")
        if {"Output", "Weights"} <= words:
            raise ValueError("pass either $Output, for a model, or $Weights, for a trained state dict")
        if bool(words & {"Output", "Weights"}) == self.in_place:
            raise ValueError(
                "there is no $Output and no $Weights with `in_place`"
                if self.in_place
                else "pass $Output, the file to which it writes its model"
            )
        return self

    def _placeholders(self) -> Iterator[tuple[str, str | None]]:
        """Yield `("Model", None)`, `("Input", "x")`, ... from arguments and environment."""
        for text in (*self.command, *(value for value in self.environment.values() if value is not None)):
            for match in _PLACEHOLDER.finditer(text):
                if match[0] != "$$":
                    yield (match[3], None) if match[3] else (match[1], match[2])

    @property
    def _files_by_name(self) -> dict[str, Path]:
        return {path.name: path for path in self.files}

    @property
    def _program(self) -> str | None:
        """Return the program's file, or None if there is none of that name."""
        return shutil.which(self.command[0].replace("$$", "$"))

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        return spec if any(word == "Input" for word, _ in self._placeholders()) else None

    def foresee(self) -> Foresight:
        if "$" not in self.command[0] and self._program is None:
            return Foresight(lacks=(f"there is no program {self.command[0]!r} on PATH: install it, or give its path",))
        return Foresight()

    def reused_where(self) -> Reuse:
        return Reuse.ANYWHERE if self.deterministic else Reuse.NEVER

    def library_versions(self) -> dict[str, str]:
        named = [
            self._program or "",
            *(part for argument in self.command[1:] for part in {argument, argument.partition("=")[2]}),
        ]
        used = [Path(text) for text in named if text and "$" not in text and Path(text).is_file()]
        versions = super().library_versions()
        if ("Python", None) in self._placeholders():
            versions["python"] = platform.python_version()
        # The recipe refers to `files` by name, so that not only their contents matter but also which name each has.
        for path in (*used, *(path for path in self.files if path.is_file())):
            name = f"file {path.name}"  # files in different folders may have the same name
            names = chain([name], (f"{name} {number}" for number in count(2)))
            versions[next(each for each in names if each not in versions)] = cached_digest(path)[:_SHORT]
        for path in (*used, *self.files):
            if path.suffix == ".py" and path.is_file():
                neighbours: list[JsonValue] = [[each, cached_digest(file)] for each, file in list_files(path).items()]
                versions[f"files next to {path.name}"] = digest_json(neighbours)[:_SHORT]
        return versions

    def passed_variables(self) -> tuple[str, ...]:
        """Return the variables that the program inherits, without credentials: a token gives access to a result but
        does not change it.
        """
        passed = (name for name, value in self.environment.items() if value is None)
        return tuple(name for name in passed if not is_secret_variable(name))

    def samples_read(self) -> int:
        return 1

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.model_tool import copy_model, move_model, run_on_model
        from ndld_flow.models.files import describe_change
        from ndld_flow.processes.launch import Program, log_to, minimal_environment, run_program

        folder, scratch = context.scratch / "output", context.scratch / "scratch"
        folder.mkdir()
        scratch.mkdir()
        model = copy_model(source.path, folder) if self.in_place else source.path
        trained = folder / "trained.safetensors"
        paths = {"Model": model, "Output": folder / Onnx.main, "Scratch": scratch, "Weights": trained}
        paths["Python"] = Path(sys.executable)
        module = context.read("module") if self.module is not None else None
        if module is not None:
            paths["Module"] = module.folder
        replace = self._replacer(paths, context)
        passed = (name for name, value in self.environment.items() if value is None)
        given = {name: replace(value) for name, value in self.environment.items() if value is not None}
        program = Program(
            command=[replace(argument) for argument in self.command],
            environment={**minimal_environment(scratch, passed), **given},
            timeout_s=self.timeout / 1e3,
            secrets={name: os.environ.get(name, "") for name, value in self.environment.items() if value is None},
        )
        context.progress(0, 0, f"running {program.name}")
        report = log_to(context.log, context.progress)
        run_program(program, report) if self.in_place else run_on_model(program, model, report)
        if module is not None and ("Weights", None) in self._placeholders():
            return self._import(program.name, source, trained, module, out, context)
        for file in move_model(source.path, folder / Onnx.main, out, program.name, context.log):
            context.log.info("%s is not kept: the model does not refer to it", file)
        change = describe_change(source.path, out / Onnx.main)
        before, after = change.before.node_count, change.after.node_count
        return Result(f"{program.name}: {before} -> {after} nodes", metrics={"nodes": after}, change=change)

    def _import(
        self, program: str, source: Onnx, trained: Path, module: Artifact, out: Path, context: Context
    ) -> Result:
        """Write the model with the weights that the program wrote."""
        from ndld_flow.export.pytorch.export_model import NAMES
        from ndld_flow.graph.model_tool import import_trained

        if not trained.is_file():
            raise RequestError(f"the program {program!r} succeeded but wrote no weights to $Weights")
        change = import_trained(source.path, trained, module.folder / NAMES, out / Onnx.main, context.log)
        nodes = change.after.node_count
        notes = "".join(f", {note}" for note in change.notes)
        return Result(f"{program}: weights trained{notes}", metrics={"nodes": nodes}, change=change)

    def _replacer(self, paths: Mapping[str, Path], context: Context) -> Callable[[str], str]:
        """Return a function that replaces placeholders by paths; an input's values are written when first used."""
        from ndld_flow.graph.model_tool import write_input

        def path_of(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            if match[3]:
                return str(paths[match[3]])
            if match[1] == "File":
                return str(self._files_by_name[match[2]].absolute())
            return str(write_input(paths["Model"], match[2], context.inputs, context.scratch))

        return lambda text: _PLACEHOLDER.sub(path_of, text)
