"""Let any program change a model."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ndld_flow.base.imported_modules import find_imported
from ndld_flow.base.text import suggest
from ndld_flow.base.units import Milliseconds
from ndld_flow.inputs import InputSpec
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, DataFile, Foresight, Result, Returns, Reuse, RunsCode, Step, metrics
from ndld_flow.store.digest import SETTLED_AFTER_S, digest_file
from ndld_flow.store.hidden_credentials import is_secret_variable
from ndld_flow.store.kinds import Onnx

_PLACEHOLDER = re.compile(r"\$(?:\$|(\w+)\{([^{}]*)\}|(\w+))")
_WORDS = ("Model", "Output", "Scratch")
_NAMED = ("Input", "File")


class RunTool(Step[Onnx, Onnx]):
    """Let any program change the model.

    The program is started without a shell; each argument is one item of the list. In arguments and in `environment`
    these stand for paths:

        $Model          the model it reads, with external data beside it
        $Output         where it must write its model; external data beside it
        $Scratch        an empty folder for whatever it needs
        $Input{NAME}    a .npy file with the values of this input, as the recipe's `inputs:` say
        $File{NAME}     the file of this name in `files`
        $$              a dollar sign

    For example `command: [python, "$File{prune.py}", --model, $Model, --to, $Output]` with `files: [prune.py]`. It
    stands where you stand, and of your environment gets PATH, HOME, LANG, LC_ALL, LC_CTYPE and TZ only, besides what
    `environment` says. What it prints is in the step's log. It is done when it ends with code 0 and its model passes
    the ONNX checker; a timeout, an error or Ctrl-C ends it with all it started.
    """

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir")
    uses_inputs: ClassVar[bool] = True
    reads_first_sample: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes")

    command: Annotated[tuple[str, ...], RunsCode()] = Field(min_length=1)
    """The program, found on PATH or by its path, and its arguments. The program and arguments that are files are part
    of the step's key by their contents: a changed script runs again."""
    files: Annotated[tuple[Path, ...], DataFile()] = ()
    """Files that shape the result, such as scripts, modules and configurations; their contents are part of the key."""
    environment: dict[str, str | None] = Field(default={})
    """Variables to set; null passes ours on, whose value is in the step's key. Of one that is a credential by its name
    (`HF_TOKEN`, `..._PASSWORD`) it is not, and not recorded; what null passes on is hidden in the log."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 3_600_000.0
    """How long it may take, such as `10 min`; an hour by default."""
    in_place: bool = False
    """The program changes $Model itself: it gets a copy, which is the result; there is no $Output."""
    deterministic: bool = True
    """Whether it makes the same model of the same files each time, so that the result may be used again; `false` runs
    it every time."""

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        used = set(self._placeholders())
        for word, name in used:
            if word not in (_NAMED if name is not None else _WORDS):
                told = suggest(word, [*_WORDS, *(f"{word}{{NAME}}" for word in _NAMED)])
                raise ValueError(f"there is no ${word}; {told} (`$$` is a dollar sign)")
            if word == "File" and [path.name for path in self.files].count(name or "") > 1:
                raise ValueError(f"`files` has several {name!r}: files of one name cannot be told apart")
            if word == "File" and name not in self._files_by_name:
                told = suggest(name or "", self._files_by_name) or "it is empty"
                raise ValueError(f"`files` has no {name!r}; {told}")
        if (("Output", None) in used) == self.in_place:
            told = "with `in_place` there is no $Output" if self.in_place else "say where it writes its model: $Output"
            raise ValueError(told)
        return self

    def _placeholders(self) -> Iterator[tuple[str, str | None]]:
        """`("Model", None)`, `("Input", "x")`, ... in arguments and environment."""
        for text in (*self.command, *(value for value in self.environment.values() if value is not None)):
            for found in _PLACEHOLDER.finditer(text):
                if found[0] != "$$":
                    yield (found[3], None) if found[3] else (found[1], found[2])

    @property
    def _files_by_name(self) -> dict[str, Path]:
        return {path.name: path for path in self.files}

    @property
    def _program(self) -> str | None:
        """The program's file, None when there is none of that name."""
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
        named = [self._program or "", *(part for argument in self.command[1:] for part in {argument, _value(argument)})]
        used = [Path(text) for text in named if text and "$" not in text and Path(text).is_file()]
        found = super().library_versions()
        # The recipe names `files` by their names, so that it matters which name has which contents.
        for path in (*used, *(path for path in self.files if path.is_file())):
            found |= {_unused(f"file {path.name}", found): _digest(path)}
        for path in used:
            if path.suffix == ".py":
                code = find_imported(path, path.read_bytes())
                imported = code.digests | {name: _digest(file) for name, file in code.files.items()}
                found |= {f"{name} (used by {path.name})": digest[:16] for name, digest in imported.items()}
        return found

    def passed_variables(self) -> tuple[str, ...]:
        """Return those that the program gets of ours; who may fetch something (a token) does not decide what it is."""
        passed = (name for name, value in self.environment.items() if value is None)
        return tuple(name for name in passed if not is_secret_variable(name))

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.model_tool import copy_model, move_model, run_on_model
        from ndld_flow.models.files import describe_change
        from ndld_flow.processes.program import Program, log_to, run_program

        folder, scratch = context.scratch / "output", context.scratch / "scratch"
        folder.mkdir()
        scratch.mkdir()
        model = copy_model(source.path, folder) if self.in_place else source.path
        put = self._putting({"Model": model, "Output": folder / Onnx.main, "Scratch": scratch}, context)
        program = Program(
            command=[put(argument) for argument in self.command],
            environment=self._environment(put, scratch),
            timeout_s=self.timeout / 1e3,
            secrets={name: os.environ.get(name, "") for name, value in self.environment.items() if value is None},
        )
        context.progress(0, 0, f"running {program.name}")
        hear = log_to(context.log, context.progress)
        run_program(program, hear) if self.in_place else run_on_model(program, model, hear)
        for left in move_model(folder / Onnx.main, out, program.name):
            context.log.info("%s is not kept: the model does not name it", left)
        change = describe_change(source.path, out / Onnx.main)
        before, after = change.before.node_count, change.after.node_count
        return Result(
            f"{program.name}: {before} -> {after} nodes", metrics={"nodes": Metric(value=after)}, change=change
        )

    def _putting(self, paths: Mapping[str, Path], context: Context) -> Callable[[str], str]:
        """Puts paths where a text has placeholders; an input's values are written when they are asked for."""
        from ndld_flow.graph.model_tool import write_input

        def path_of(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            if found[3]:
                return str(paths[found[3]])
            if found[1] == "File":
                return str(self._files_by_name[found[2]].absolute())
            return str(write_input(paths["Model"], found[2], context.inputs, context.scratch))

        return lambda text: _PLACEHOLDER.sub(path_of, text)

    def _environment(self, put: Callable[[str], str], scratch: Path) -> dict[str, str]:
        from ndld_flow.processes.program import minimal_environment

        passed = (name for name, value in self.environment.items() if value is None)
        said = {name: put(value) for name, value in self.environment.items() if value is not None}
        return {**minimal_environment(scratch, passed), **said}


def _value(argument: str) -> str:
    """What follows in `--config=FILE`."""
    return argument.partition("=")[2]


def _unused(name: str, taken: Mapping[str, str]) -> str:
    """Return a name that no other file has: those of different folders may be called the same."""
    names = (f"{name} {number}" if number > 1 else name for number in count(1))
    return next(each for each in names if each not in taken)


def _digest(path: Path) -> str:
    status = path.stat()
    stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
    if time.time() - max(status.st_mtime, status.st_ctime) < SETTLED_AFTER_S:
        return digest_file(path)[:16]
    return _digest_of(path, *stamp)


@lru_cache
def _digest_of(path: Path, *stamp: int) -> str:
    """Return the first digits: enough to tell a change, and short enough for people."""
    del stamp  # only to be told apart by
    return digest_file(path)[:16]
