"""Answers an unchanged command from its receipt, before the program and the libraries that it needs are imported.

A `run` or a `plan` that found all of its results leaves a receipt in the store: what it printed, and everything that it
consulted (`base/consulted.py`). The same command prints the same again if the environment, the terminal, the code, the
installed packages, this machine, and the stamp of every file and folder are equal: the recipe, models, data, stored
results, the folder of the run. Otherwise, and in every doubt, the program runs. The digests of large files are
remembered by the same rule (`store/digest.py`). `schema`, `steps` and `ops` depend on code, packages and the files that
they open; their receipts are in the user's cache folder.

Missing results leave no receipt: whether a file exists is often asked without opening it, which no audit hook hears.

Only light modules are imported here; `tests/benchmarks/bench_tool.py` prints what that saves.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from blake3 import blake3

from ndld_flow import __version__
from ndld_flow.base import user_folders
from ndld_flow.base.consulted import Consultation, Stamp, consulting, link_target, stamp_of, stop_consulting
from ndld_flow.base.stamps import is_settled

if TYPE_CHECKING:
    from ndld_flow.runner.events import Event, RunFinished, SweepFinished
    from ndld_flow.runner.listener import Listener
    from ndld_flow.runner.plan import Decision

FORMAT = 1
FOLDER = "store/caches/commands"
"""Folder of the receipts of `run` and `plan`, in the outputs folder."""
KEPT = 20
"""Receipts in a folder; the oldest are removed."""
_MAX_OUTPUT_CHARACTERS = 2_000_000
_MAX_BYTES = 20_000_000
_MAX_PATHS = 50_000
"""A command that consults more, such as a calibration set of as many files, leaves no receipt."""
_NEUTRAL_VARIABLES = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})
"""Set by every shell anew; the current directory is compared itself."""
_UNSUITABLE = {
    "run": frozenset({"--debug", "--json", "--ray", "--trust"}),
    "plan": frozenset({"--debug", "--trust"}),
}
"""Verb -> options of commands without a receipt: their output has times, or code elsewhere decides."""
_IN_FLUX = tuple(f"store/{name}" for name in ("building", "caches", "digests", "externals", "locks", "recipes"))
"""Folders of the outputs for work in progress, and for values that can be computed again from what is consulted."""
_VIRTUAL = ("/proc/", "/sys/", "/dev/")
"""Files without a meaningful stamp. What a result depends on is in the description of the machine."""


def replay(arguments: Sequence[str]) -> int | None:
    """Print the output of an unchanged command again, and return its exit code; None where the program must run."""
    if not _is_suitable(arguments):
        return None
    try:
        receipt = _read(_find_receipts(arguments) / f"{_identify(arguments)}.json")
        if not _is_current(receipt):
            return None
        output = [(str(name), str(text)) for name, text in receipt["output"]]
        exit_code = int(receipt["exit_code"])
    except Exception:  # no receipt, or one that is damaged in any way
        return None
    return _print(output, exit_code)


def _read(path: Path) -> Any:  # noqa: ANN401 - JSON
    with path.open("rb") as file:
        return json.loads(file.read(_MAX_BYTES))


def _print(output: Sequence[tuple[str, str]], exit_code: int) -> int:
    from ndld_flow.cli.guarded_output import ReaderGoneError, guarded_output, open_missing_streams

    open_missing_streams()
    with guarded_output():
        try:
            for name, text in output:
                (sys.stderr if name == "stderr" else sys.stdout).write(text)
            sys.stdout.flush()
        except ReaderGoneError:
            return 141
    return exit_code


def _is_suitable(arguments: Sequence[str]) -> bool:
    verb = next(iter(arguments), "")  # a program that uses the verbs has its own arguments, or none
    return _UNSUITABLE.get(verb, frozenset({"--debug"})).isdisjoint(arguments)


def _find_receipts(arguments: Sequence[str]) -> Path:
    """Return the folder of a command's receipts. A wrong guess finds none."""
    return (
        _find_outputs(arguments) / FOLDER
        if next(iter(arguments), "") in _UNSUITABLE
        else user_folders.cache_folder() / "commands"
    )


def _find_outputs(arguments: Sequence[str]) -> Path:
    """Return the outputs folder as the options name it."""
    for place, argument in enumerate(arguments):
        if argument == "--outputs":
            return Path(arguments[place + 1]) if place + 1 < len(arguments) else Path()
        if argument.startswith("--outputs="):
            return Path(argument.partition("=")[2])
    return Path(os.environ.get("NDLD_FLOW_OUTPUTS") or "outputs")


def _identify(arguments: Sequence[str]) -> str:
    """Return the digest of a command and its surroundings. They may contain credentials, so only this is written."""
    environment = {name: value for name, value in os.environ.items() if name not in _NEUTRAL_VARIABLES}
    streams = [(stream.isatty(), stream.encoding, _size(stream)) if stream else None for stream in _streams()]
    request = [FORMAT, __version__, list(arguments), os.getcwd(), environment, streams]  # noqa: PTH109
    program = [sys.executable, sys.version, sys.path, list(sys.flags), sys.argv[0]]
    return blake3(json.dumps([request, program], sort_keys=True).encode(errors="surrogatepass")).hexdigest()[:32]


def _streams() -> tuple[TextIO | None, TextIO | None]:
    return sys.stdout, sys.stderr


def _size(stream: TextIO) -> list[int] | None:
    """Return the columns and lines of a terminal."""
    try:
        return [*os.get_terminal_size(stream.fileno())]
    except (OSError, ValueError):
        return None


def _is_current(receipt: dict[str, Any]) -> bool:
    """Return whether everything that a command consulted is as it was."""
    if any(link_target(path) != target for path, target in receipt["links"].items()):
        return False
    if any(stamp_of(path) != stamp for path, stamp in receipt["paths"].items()):
        return False
    from ndld_flow.machine.reuse import Reuse, describe_place

    return all(describe_place(Reuse(where), device) == text for where, device, text in receipt["places"])


# --- keeping a receipt -----------------------------------------------------------------------------------------------


class Recorder:
    """Records what a command prints and consults, and keeps its receipt."""

    def __init__(self, consultation: Consultation) -> None:
        self._arguments = sys.argv[1:]
        self._identity = _identify(self._arguments)  # at once: the program may change its environment
        self._began_ns = time.time_ns()
        self._consultation = consultation
        self._output: list[tuple[str, str]] = []

    def listening(self, listener: Listener) -> Listener:
        """Return a listener that stops recording when a step starts: then this run leaves no receipt."""

        def listen(event: Event) -> None:
            if event.event == "step_started":
                stop_consulting()
            listener(event)

        return listen

    def write(self, name: str, text: str) -> None:
        self._output.append((name, text))

    def keep_run(self, finished: RunFinished | SweepFinished, outputs: Path) -> None:
        """Write the receipt of a finished `run`, unless it computed something."""
        if not finished.nothing_to_do:
            return
        folder = Path(finished.folder)
        for path in (*_tree(folder), *getattr(finished, "exported", ())):
            self._consultation.note(path)
        latest = os.path.abspath(folder.parent / "latest")  # noqa: PTH100 - a link, which must not be resolved
        self._keep(finished.exit_code, outputs / FOLDER, _leave_out_flux(outputs), {latest: link_target(latest)})

    def keep_plan(self, decisions: Sequence[Decision], outputs: Path, exit_code: int) -> None:
        """Write the receipt of a `plan`, unless results are missing or a step is not built in: such a step may foresee
        by anything what it needs.
        """
        from ndld_flow.machine.reuse import Reuse, describe_place
        from ndld_flow.recipe.step_types import BUILT_IN

        if any(not each.reused or each.step.type.origin != BUILT_IN for each in decisions):
            return
        if not self._consultation.asked_others:
            describe_place(Reuse.THIS_MACHINE, "")  # notes the GPUs, which decide what steps need
            self._keep(exit_code, outputs / FOLDER, _leave_out_flux(outputs))

    def keep_listing(self) -> None:
        """Write the receipt of a verb that reads code, packages and the files that it opens, and no outputs."""
        if not self._consultation.asked_others:
            with contextlib.suppress(RuntimeError):  # no home folder
                self._keep(0, user_folders.cache_folder() / "commands", lambda path: not path.startswith(_VIRTUAL))

    def _keep(
        self, exit_code: int, folder: Path, decides: Callable[[str], bool], links: Mapping[str, Stamp] = {}
    ) -> None:
        """Write a receipt of the paths that decide. A failure to write it is no error."""
        suitable = self._consultation.repeatable and _is_suitable(self._arguments)
        if not suitable or sum(len(text) for _, text in self._output) > _MAX_OUTPUT_CHARACTERS:
            return
        for path in sys.path:
            self._consultation.note(path)
        paths = {path: stamp for path, stamp in self._consultation.paths.items() if decides(path)}
        code = {file: stamp_of(file) for module in list(sys.modules.values()) if (file := _file_of(module))}
        is_young = any(isinstance(stamp, list) and not is_settled(stamp, self._began_ns) for stamp in code.values())
        if is_young or self._consultation.unsettled & paths.keys() or len(paths) > _MAX_PATHS:
            return
        receipt = {
            "output": self._output,
            "exit_code": exit_code,
            "links": links,
            "paths": paths | code,
            "places": [[where, device, text] for (where, device), text in self._consultation.places.items()],
        }
        with contextlib.suppress(OSError):
            _write(folder, f"{self._identity}.json", json.dumps(receipt))


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Record what this process prints and consults inside the block."""
    with consulting() as consultation:
        recorder = Recorder(consultation)
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Copied(out, "stdout", recorder), _Copied(err, "stderr", recorder)
        try:
            yield recorder
        finally:
            sys.stdout, sys.stderr = out, err


class _Copied:
    """A text stream whose text a recorder receives too."""

    def __init__(self, stream: TextIO, name: str, recorder: Recorder) -> None:
        self._stream, self._name, self._recorder = stream, name, recorder

    def write(self, text: str) -> int:
        count = self._stream.write(text)  # raises first: click tries out whether a stream takes bytes
        self._recorder.write(self._name, text)
        return count

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the stream
        return getattr(self._stream, name)


def _tree(folder: Path) -> Iterator[str]:
    """Yield the paths of a folder and everything in it."""
    for place, _, names in os.walk(folder):
        yield place
        yield from (os.path.join(place, name) for name in names)  # noqa: PTH118


def _file_of(module: object) -> str:
    """Return the absolute path of a module's file; empty for a built-in one."""
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else ""  # noqa: PTH100


def _leave_out_flux(outputs: Path) -> Callable[[str], bool]:
    """Return a filter of paths. Those left out decide nothing, or are compared as code or as part of the machine."""
    folders = tuple(str(Path(outputs, name).absolute()) for name in _IN_FLUX)
    below = (*_VIRTUAL, *(f"{folder}{os.sep}" for folder in folders))
    return lambda path: not (path in folders or path.startswith(below) or path.endswith(".pyc"))


def _write(folder: Path, name: str, text: str) -> None:
    from ndld_flow.store.files import write_text_atomically

    write_text_atomically(folder / name, text)
    for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
        old.unlink(missing_ok=True)
