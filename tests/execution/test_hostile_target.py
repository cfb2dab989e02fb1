"""A target that answers every message of the protocol with hostile values names no file, and ends the run plainly."""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.ssh import bootstrap
from ndld_flow.execution.ssh.connection import SSH_VARIABLE, Connection, ConnectionLostError
from ndld_flow.recipe.targets import Target
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store
from tests.support.models import make_cnn

Answers = dict[str, Any]
Change = Callable[[Answers], None]
RECIPE = "name: far\nmodel: model.onnx\nsteps: {half: {step: convert_fp16}}\n"
SERVER = Path(__file__).parents[1] / "support" / "hostile_ssh.py"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, and with its results, which an honest target would return."""
    folder = tmp_path_factory.mktemp("honest")
    make_cnn(folder / "model.onnx")
    (folder / "far.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.run("far.yaml", outputs=folder / "results")
    return folder


@pytest.fixture
def here(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and what else the user has."""
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (project / "model.onnx").write_bytes((honest / "model.onnx").read_bytes())
    (project / "far.yaml").write_text(RECIPE.replace("}}", ", on: ssh://evil}}"))
    (tmp_path / "home" / ".bashrc").write_text("true\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    return project


def record_of(honest: Path) -> tuple[StepRecord, Path]:
    store = Store(honest / "results" / "store")
    (path,) = (store.root / "records").glob("*/*.json")
    record = store.read_record(path.stem)
    assert record is not None
    return record, store.object_folder(record.artifact.digest)


def answer_honestly(honest: Path) -> Answers:
    record, folder = record_of(honest)
    tree = json.loads(record.to_json())
    program = Path(bootstrap.__file__).read_bytes()
    described = {"kind": "described", "libraries": record.parts.libraries, "machine": record.parts.machine}
    fetched = {
        f"fetch {file.path}": [[json.dumps({"kind": "sent", "size_bytes": file.size_bytes}), str(folder / file.path)]]
        for file in record.artifact.files
    }
    return {
        "program_bytes": len(program),
        "first": [{"kind": "ready", "name": "evil", "store": "/store"}],
        "describe": [described],
        "find": [{"kind": "found", "records": []}],
        "lack": [{"kind": "lacking", "artifacts": [], "files": {}, "free_bytes": 10**12}],
        "keep": [{"kind": "kept", "kept": True}],
        "examine": [{"kind": "examined", "checks": []}],
        "compute": [
            {"kind": "progressed", "index": 0, "done": 1, "total": 2, "what": "half"},
            {"kind": "done", "records": [tree]},
        ],
        **fetched,
    }  # fmt: skip


def serve(answers: Answers, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `ssh` lead to a target with these answers."""

    def to_line(answer: object) -> object:
        return json.dumps(answer) if isinstance(answer, dict) else answer

    lines = {
        name: [to_line(answer) for answer in value] if isinstance(value, list) else value
        for name, value in answers.items()
    }
    (folder / "answers.json").write_text(json.dumps(lines))
    monkeypatch.setenv(SSH_VARIABLE, shlex.join([sys.executable, str(SERVER), str(folder / "answers.json")]))


def everything(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without those of the outputs."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "outputs" not in path.relative_to(folder).parts
    }


def is_designed(error: NdldFlowError) -> bool:
    """Return whether an error is one paragraph with an exit code of its own."""
    return error.exit_code in (2, 5) and len(str(error).splitlines()) == 1 and len(str(error)) < 2_000


def test_an_honest_target_serves(here: Path, honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(answer_honestly(honest), here.parent.parent, monkeypatch)
    api.run("far.yaml", trust=True)
    record, _ = record_of(honest)
    assert Store(here / "outputs" / "store").is_intact(record.artifact)


def of_record(*place: str | int, value: object) -> Change:
    """Return a change of the record that the target returns for the task."""

    def change(answers: Answers) -> None:
        inner = answers["compute"][1]["records"][0]
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value

    return change


def of_answer(question: str, **values: object) -> Change:
    def change(answers: Answers) -> None:
        answers[question][-1] = answers[question][-1] | values

    return change


def instead(question: str, *lines: object) -> Change:
    def change(answers: Answers) -> None:
        answers[question] = list(lines)

    return change


def of_fetch(**values: object) -> Change:
    def change(answers: Answers) -> None:
        for place in [answer for answer in answers if answer.startswith("fetch")]:
            line, path = answers[place][0]
            answers[place] = [[json.dumps(json.loads(line) | values), path]]

    return change


def sampled(changes: Iterable[Change], count: int = 2) -> Iterator[Any]:
    """Leave the first changes of a family to every run of CI, and the others to the long attacks."""
    for index, change in enumerate(changes):
        yield change if index < count else pytest.param(change, marks=pytest.mark.slow)


UP = "../" * 8
FILE = ("artifact", "files", 0)
OTHER = "ab" * 32
PATHS = (
    "../x",
    "/etc/x",
    f"{UP}home/.bashrc",
    "a//b",
    "a/./b",
    "",
    ".",
    "a\\b",
    "C:x",
    "a\0b",
    "a/" + "b" * 300,
    5,
    None,
)
DIGESTS = ("../../../.bashrc", "/etc/x", "a" * 63, "A" * 64, "a" * 65, "a" * 64 + "\n", "", ".", 5, ["a"])
NUMBERS = (-1, 10**400, 2**60, "5", 1.5, None, True)
NO_LISTS: tuple[object, ...] = ([], {}, [5], None)
NO_ANSWERS = (
    {"kind": "ready", "name": "x", "store": "/"}, "hello", "{}", "[" * 100_000, '{"kind": "no such kind"}',
    {"kind": "sent", "size_bytes": 1}, {"kind": "refused", "error": "BackendError", "text": "a\n\x1b[2Jb" * 1000},
)  # fmt: skip
RECORDS: list[Any] = [
    *sampled(of_record(*FILE, "path", value=path) for path in PATHS),
    *sampled(of_record(*FILE, "digest", value=digest) for digest in (OTHER, *DIGESTS)),
    *sampled(of_record("artifact", "digest", value=digest) for digest in (OTHER, *DIGESTS)),
    *sampled(of_record("key", value=digest) for digest in (OTHER, *DIGESTS)),
    *sampled(of_record(*FILE, "size_bytes", value=number) for number in (*NUMBERS, 2**53)),
    *sampled(of_record("wall_s", value=number) for number in (float("nan"), -1, 10**400, "5", "NaN", float("inf"))),
    *sampled(
        of_record("started_at", value=time) for time in ("2020-01-01T00:00:00", "0001-01-01T00:00:00+14:00", 5, "")
    ),
    *sampled(of_record("format_version", value=number) for number in (0, 1, 99, 10**400, "3")),
    *sampled(of_record("artifact", "kind", value=kind) for kind in ("lint", "no such kind", "", 5)),
    *sampled(of_record("artifact", "files", value=files) for files in NO_LISTS),
    of_record("parts", "settings", value={}),
    of_record("parts", "reads", value={"from": "../x"}),
    of_record("parts", "together", value=["../x"]),
    of_record("unknown", value=1),
    *(instead("compute", {"kind": "done", "records": records}) for records in NO_LISTS),
]
MESSAGES: list[Any] = [
    *(instead("describe", line) for line in NO_ANSWERS),
    *sampled(instead("find", line) for line in NO_ANSWERS),
    *sampled(instead("lack", line) for line in NO_ANSWERS),
    *sampled(instead("compute", line) for line in NO_ANSWERS),
    *(of_answer("describe", **{name: 5}) for name in ("libraries", "machine", "notes")),
    *sampled(of_answer("lack", free_bytes=number) for number in NUMBERS),
    of_answer("lack", files={"../x": 1}),
    of_answer("lack", artifacts=["../x"]),
    of_answer("find", records=5),
    *sampled((of_fetch(size_bytes=number) for number in (10**9, 0, *NUMBERS)), 4),
    of_fetch(kind="refused", error="BackendError", text="x"),
    *(
        instead("compute", {"kind": "progressed", "index": 0, "done": 1, "total": 2, "what": "w"} | values)
        for values in ({"index": -1}, {"done": 10**400}, {"total": -1}, {"what": 5})
    ),
    *(
        instead("compute", {"kind": "refused", "error": error, "text": "x"})
        for error in ("NdldFlowError", "shortened", "Path", "__name__", "", "no such name")
    ),
    instead("compute", {"kind": "refused", "error": "FormatError", "text": "x"}),
    instead("compute", {"kind": "failed", "error": "E", "text": "x", "traceback": "t\n" * 1000}),
    instead("compute", {"kind": "died", "text": "a\nb" * 1000, "killed": True}),
    instead("compute", {"kind": "died", "text": "x", "killed": "yes"}),
    *(
        instead("first", line)
        for line in (
            {"kind": "ready", "name": "x"}, {"kind": "ready", "name": 5, "store": "/"}, {"kind": "no such kind"},
            {"kind": "refused"}, {"kind": "refused", "error": "Path", "text": "x"}, {"kind": "progress", "text": 5},
            {"kind": "refused", "error": "BackendError", "text": "a\nb" * 1000},
            {"kind": "new", "python": ["--index-url=https://evil.example", 1]}, {"kind": "removed", "bytes": -1},
        )
    ),
    instead("first", *[{"kind": "failed", "text": "a\nERROR: x\n"}] * 3),
]  # fmt: skip


def attack(change: Change, here: Path, honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the recipe with a target whose answers are changed; nothing but the outputs may change."""
    answers = copy.deepcopy(answer_honestly(honest))
    change(answers)
    serve(answers, here.parent.parent, monkeypatch)
    before = everything(here.parent.parent)
    with pytest.raises(NdldFlowError) as error:
        api.run("far.yaml", trust=True)
    assert is_designed(error.value), (error.value.exit_code, str(error.value)[:500])
    assert everything(here.parent.parent) == before
    store = Store(here / "outputs" / "store")
    assert not list((store.root / "records").glob("*/*"))


def test_a_digest_that_is_a_path_appends_to_no_file(here: Path, honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(of_record(*FILE, "digest", value="../../../../.bashrc"), here, honest, monkeypatch)


def test_only_the_end_of_what_a_target_prints_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.stdin.read(1); sys.stderr.write('x' * 10**7 + '\\nthe end\\n')"
    monkeypatch.setenv(SSH_VARIABLE, shlex.join([sys.executable, "-c", program]))
    connection = Connection(Target(host="ssh://evil"), "evil")
    with pytest.raises(ConnectionLostError, match="the end"):
        connection.receive()
    assert len(connection._printed) <= 4096
    connection.release()


@pytest.mark.thorough
@pytest.mark.parametrize("change", [*RECORDS, *MESSAGES])
def test_no_answer_of_a_target_names_a_file(
    change: Change, here: Path, honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack(change, here, honest, monkeypatch)
