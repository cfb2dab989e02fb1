"""Passwords and tokens, in the environment and in URLs, are never written or printed."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from ndld_flow.cli.app import write_bug
from ndld_flow.store.hidden_credentials import hide_credentials
from tests.reliability.packed_bytes import spoken
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.tally import Tally

Attack = Callable[[str], Tally]

PASSWORD, TOKEN, VARIABLE = "canary-password", "canary-token", "canary-variable"


TALKS = """
import shutil, warnings
from pathlib import Path
from ndld_flow.base.errors import RequestError
from ndld_flow.plugin import Context, Onnx, Result, Step

class Talks(Step[Onnx, Onnx]):
    \"""Tells where its model is from, by every way that a step has.\"""
    fails: bool = False
    \"""Whether it fails.\"""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        context.log.info("from %s", "{address}")
        context.progress(0, 0, "{address}")
        warnings.warn("{address}")
        if self.fails:
            raise RequestError("{address} is bad")
        shutil.copy(source.path, out / "model.onnx")
        return Result("read {address}")
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder to clients with the password and the token."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        known = base64.b64encode(f"joe:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {known}" or f"token={TOKEN}" not in self.path:
            self.send_error(401)
        else:
            super().do_GET()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of models, with credentials."""
    served = tmp_path / "served"
    served.mkdir()
    make_cnn(served / "m.onnx")
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://joe:{PASSWORD}@127.0.0.1:{server.server_port}/m.onnx?token={TOKEN}"
    server.shutdown()
    server.server_close()


def told(folder: Path) -> list[str]:
    """Files below a folder that hold a canary, in their contents or their names."""
    result = []
    for path in folder.rglob("*"):
        pieces = [str(path.relative_to(folder)).encode()]
        if path.is_file():
            pieces += spoken(path.read_bytes())
        result += [str(path) for piece in pieces if b"canary" in piece]
    return result


def test_a_run_reveals_no_secret(tmp_path: Path, address: str, tally: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tally("secrets")
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, VARIABLE)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    digest = hashlib.sha256((tmp_path / "served" / "m.onnx").read_bytes()).hexdigest()
    recipe = (
        f"model: {{source: '{address}', sha256: '{digest}'}}\nsteps_from: [talks.py]\n"
        "steps: {sanitize: {}, talks: {}}\n"
    )
    (tmp_path / "talks.py").write_text(TALKS.format(address=address))
    (tmp_path / "in_file.yaml").write_text(recipe)
    (tmp_path / "typed.yaml").write_text("model: {source: other.onnx}\nsteps: {sanitize: {}}\n")
    source = f"model.source='{address}'"
    for arguments, code in (
        (["run", "in_file.yaml", "--trust"], 0),
        (["run", "in_file.yaml", "--trust", "--json", "--force", "talks"], 0),
        (["run", "typed.yaml", source, f"model.sha256='{digest}'"], 0),
        (["run", "typed.yaml", source, f"model.sha256='{'0' * 64}'"], 2),
        (["run", "typed.yaml", source.replace(TOKEN, "canary-wrong"), f"model.sha256='{'1' * 64}'", "--json"], 2),
        (["run", "typed.yaml", source, "-m", f"model.sha256='{digest}'", "steps.sanitize.fold=true,false"], 2),
        (["run", "in_file.yaml", "--trust", "steps.talks.fails=true"], 2),
        (["plan", "in_file.yaml", "--trust"], 0),
        ([address], 2),
        (["runs", "--json"], 0),
        (["report", "in_file"], None),
        (["doctor"], None),
        (["inspect", address], 2),
        (["run", address], 2),
    ):
        done = ndld_flow(*arguments, cwd=tmp_path)
        assert code is None or done.returncode == code, done.stderr
        assert "canary" not in done.stdout + done.stderr, arguments
        assert told(tmp_path / "outputs") == []
        count.survived += 1
    # What was written names the model without credentials, and runs again from the store.
    # One run of it failed, as requested; ids of runs in the same second are in no order.
    records = (tmp_path / "outputs" / "runs" / "in_file").glob("2*/run.json")
    passed = next(path for path in records if json.loads(path.read_text())["outcome"] == "passed")
    written = passed.with_name("recipe.yaml")
    assert "***@127.0.0.1" in written.read_text()
    assert ndld_flow("run", str(written), "--trust", cwd=tmp_path).returncode == 0
    done = ndld_flow("run", str(written), "--trust", "--outputs", "elsewhere", cwd=tmp_path)
    assert (done.returncode, "credentials were removed" in done.stderr) == (2, True)


def test_a_bug_reveals_no_secret(tmp_path: Path, address: str, tally: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file belongs to this user alone, under a name at which no link could be prepared."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["ndld-flow", "run", f"model={address}"])
    bug = write_bug(ZeroDivisionError(f"cannot open {address}"))
    (path,) = tmp_path.glob("ndld-flow-bug-*.txt")
    assert "canary" not in bug + path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tally("secrets").survived += 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://joe:pw@host/m.onnx", "https://***@host/m.onnx"),
        ("model=s3://key:sec/ret@bucket/m.onnx", "model=s3://***@bucket/m.onnx"),
        ("'https://token@host/x?ref=main' is not there", "'https://***@host/x?ref=main' is not there"),
        ("https://h/x?download=true&X-Amz-Signature=ab", "https://h/x?download=true&X-Amz-Signature=***"),
        ("https://host:8080/a@b/m.onnx", "https://host:8080/a@b/m.onnx"),
        ("https://host/x#access_token=abc", "https://host/x#access_token=***"),
        ("see https://host/page#a-long-heading", "see https://host/page#a-long-heading"),
        ("https://host/x?opaque-token", "https://host/x?***"),
    ],
)
def test_credentials_in_urls_are_hidden(text: str, shown: str) -> None:
    assert hide_credentials(text) == shown
    assert hide_credentials(shown) == shown
