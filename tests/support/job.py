"""A stand-in for the runners of GitHub and GitLab that carries out the shell of an action or a component.

The `ndld-flow` of its shell hands its words to the test process, which carries them out without the seconds that
starting the program takes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from ndld_flow.processes.worker import IN_PROCESS
from tests.support.command_line import ndld_flow
from tests.support.forge import TOKEN

ROOT = Path(__file__).parents[2]
_STAND_IN = f"""#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.path.join(os.path.dirname(sys.argv[0]), "asked"))
    asked.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    code, out, err = json.loads(asked.makefile().read())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
_EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")


@dataclass
class Job:
    """A job in its own workspace. Its steps that use other actions restore and save a cache in a folder."""

    workspace: Path
    temporary: Path
    variables: dict[str, str]
    cache: Path
    saved: bool = False
    log: str = ""
    starts_programs: bool = False
    """True to start `ndld-flow` itself."""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def run_action(self, inputs: dict[str, str], skip: tuple[str, ...] = ("Install ndld-flow",)) -> int:
        """Carry out `action.yml`; return the exit code of the job."""
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        given = {name: str(item.get("default", "")) for name, item in action["inputs"].items()} | inputs
        assert set(given) == set(action["inputs"])
        code = 0
        for step in action["runs"]["steps"]:
            condition = str(step.get("if", "true"))
            if step.get("name") in skip or (code and "always()" not in condition) or not self._holds(condition, given):
                continue
            if "run" in step:
                code = self._run(step, given) or code
            elif "cache/restore" in step["uses"] and self.cache.exists():
                shutil.copytree(self.cache, self.workspace / given["outputs"], symlinks=True)
            elif "cache/save" in step["uses"]:
                shutil.copytree(self.workspace / given["outputs"], self.cache, symlinks=True)
                self.saved = True
        return code

    def _run(self, step: dict[str, Any], inputs: dict[str, str]) -> int:
        written = self.temporary / "output.txt"
        written.write_text("")
        own = {name: self._filled(str(value), inputs) for name, value in step.get("env", {}).items()}
        code = self.shell(step["run"], {**own, "GITHUB_OUTPUT": str(written), "GITHUB_ACTION_PATH": str(ROOT)})
        lines = [line.partition("=") for line in written.read_text().splitlines()]
        self.outputs[step.get("id", "")] = {name: value for name, _, value in lines}
        return code

    def shell(
        self, script: str, variables: dict[str, str], shell: tuple[str, ...] = ("bash", "-eo", "pipefail")
    ) -> int:
        """Run a script as a runner does; return its exit code."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{self.variables['PATH']}"
        # Workers of their own for the steps would take a third of the time, and are not what a job is about.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == IN_PROCESS or not name.startswith(("GITHUB_", "CI_", "NDLD_"))
        }
        environment = {**kept, **self.variables, "PATH": path, "RUNNER_TEMP": str(self.temporary), **variables}
        run = _run if self.starts_programs else run_with_stand_in
        done = run([*shell, "-c", script], self.workspace, environment)
        self.log += done.stdout
        return done.returncode

    def _value(self, name: str, inputs: dict[str, str]) -> str:
        """Return the value of a context's property, such as `steps.run.outputs.report`."""
        first, *rest = name.split(".")
        if first == "inputs":
            return self._filled(inputs[rest[0]], inputs)
        if first == "steps":
            return self.outputs.get(rest[0], {}).get(rest[2], "")
        if name == "github.token":
            return TOKEN
        known = {"github.event_name": "GITHUB_EVENT_NAME"}
        return self.variables.get(known.get(name, ""), name)

    def _filled(self, text: str, inputs: dict[str, str]) -> str:
        return _EXPRESSION.sub(lambda match: self._value(match[1], inputs), text)

    def _holds(self, condition: str, inputs: dict[str, str]) -> bool:
        """Return the value of an `if:`, as Python's of the same expression."""
        text = re.sub(
            r"'[^']*'|\b(?:inputs|steps|github)\.[\w.-]+", lambda match: self._quoted(match[0], inputs), condition
        )
        text = text.replace("&&", " and ").replace("||", " or ").replace("always()", "True")
        text = re.sub(r"!(?!=)", " not ", text).replace("true", "True")
        return bool(eval(" ".join(text.split()), {"startsWith": str.startswith}))  # noqa: S307 - our own action.yml

    def _quoted(self, part: str, inputs: dict[str, str]) -> str:
        return repr(part.strip("'") if part.startswith("'") else self._value(part, inputs)).replace("true", "\\x74rue")

    def run_component(self, inputs: dict[str, str]) -> int:
        """Carry out the script of the GitLab component, without the installation; return the exit code of the job."""
        header, body = (ROOT / "templates/run.yml").read_text().split("\n---\n")
        declared = yaml.safe_load(header)["spec"]["inputs"]
        given = {name: str(item.get("default", "")) for name, item in declared.items()} | inputs
        assert set(given) == set(declared)
        text = re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda match: json.dumps(given[match[1]])[1:-1], body)
        [job] = yaml.safe_load(text).values()
        script = "\n".join(line for line in job["script"] if "venv" not in line and "/tmp/ndld-flow/bin" not in line)
        script = script.replace("/tmp/ndld-flow", f"{self.temporary}/ndld-flow")
        return self.shell(script, {name: str(value) for name, value in job["variables"].items()}, ("sh", "-e"))


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_with_stand_in(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command whose `ndld-flow` asks this process, which answers until the command ends."""
    # The listener is closed first, so that a command whose question could not be answered does not ask the next.
    with (
        tempfile.TemporaryDirectory(prefix="job-") as programs,
        ThreadPoolExecutor(1) as pool,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        program, address = Path(programs, "ndld-flow"), str(Path(programs, "asked"))
        program.write_text(_STAND_IN)
        program.chmod(0o755)
        listener.bind(address)
        listener.listen()
        path = f"{programs}{os.pathsep}{environment['PATH']}"

        def run() -> subprocess.CompletedProcess[str]:
            try:
                return _run(command, folder, {**environment, "PATH": path})
            finally:
                with socket.socket(socket.AF_UNIX) as last:
                    last.connect(address)

        running = pool.submit(run)
        while _answer(listener):
            pass
        return running.result()


def _answer(listener: socket.socket) -> bool:
    """Carry out what one `ndld-flow` asks; return False when the command has ended."""
    connection, _ = listener.accept()
    with connection, connection.makefile() as asked:
        question = asked.readline()
        if question:
            words, folder, environment = json.loads(question)
            with mock.patch.dict(os.environ, environment, clear=True):
                done = ndld_flow(*words, cwd=Path(folder))
            connection.sendall(json.dumps([done.returncode, done.stdout, done.stderr]).encode())
    return bool(question)
