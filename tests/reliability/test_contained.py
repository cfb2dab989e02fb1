"""Contained runs: attempts to read other files, to reach a network, and to leave the sandbox of the kernel."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.cli import contained
from ndld_flow.processes.sandbox import find_obstacle
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

pytestmark = pytest.mark.skipif(bool(find_obstacle()), reason=f"no sandbox here: {find_obstacle()}")

SECRET = "a-secret-of-the-tests-7c1f"  # noqa: S105 - no password
NOBODY = 65534
RECIPE = """
name: stranger
model: {model}
inputs:
  x: {{data: {data}}}
steps:
  clean: {{step: sanitize}}
  half: {{step: convert_fp16}}
  agree: {{step: check_accuracy, reference: source, candidate: half}}
"""


@dataclass(frozen=True)
class Place:
    """A project of a stranger, and the files of its victim beside it."""

    project: Path
    home: Path
    url: str

    def write(self, model: str = "model.onnx", data: str = "random", more: str = "") -> None:
        (self.project / "stranger.yaml").write_text(RECIPE.format(model=model, data=data) + more)

    def run(self, *arguments: str, is_contained: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "ndld_flow", "run", "stranger.yaml", *arguments]
        environment = os.environ | {"HOME": str(self.home), "MY_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
        return subprocess.run(
            [*command, *(["--contained"] if is_contained else [])],
            cwd=self.project, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def is_leaked(self, done: subprocess.CompletedProcess[str]) -> bool:
        """Return whether the secret is in anything that the run has printed or written."""
        written = [path for path in (self.project / "outputs").rglob("*") if path.is_file() and not path.is_symlink()]
        return SECRET in done.stdout + done.stderr or any(SECRET.encode() in path.read_bytes() for path in written)


class _Model(BaseHTTPRequestHandler):
    served: list[str]
    model: bytes

    def do_GET(self) -> None:
        self.served.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.model)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> list[str]:
    return []


@pytest.fixture
def place(tmp_path: Path, served: list[str]) -> Iterator[Place]:
    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project, home, home / "models"):
        folder.mkdir()
    make_cnn(project / "model.onnx")
    make_cnn(home / "models" / "private.onnx")
    np.save(home / "models" / "private.npy", np.zeros((1, 3, 16, 16), np.float32))
    (home / "secret.txt").write_text(SECRET)
    handler = type("Handler", (_Model,), {"served": served, "model": (project / "model.onnx").read_bytes()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Place(project, home, f"http://127.0.0.1:{server.server_address[1]}/model.onnx")
        server.shutdown()


def test_a_contained_run_passes_and_leaves_nothing_behind(place: Place) -> None:
    place.write()
    before = set(Path("/tmp").glob("ndld_flow-contained-*"))
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert (place.project / "outputs/runs/stranger/latest/report.html").is_file()
    assert set(Path("/tmp").glob("ndld_flow-contained-*")) <= before
    assert "nothing to do" in place.run().stdout


def python_for_others(folder: Path) -> str:
    """Return a Python of this version that every user may run, with the packages of this one."""
    name = f"python3.{sys.version_info.minor}"
    system = next(
        (path for path in (Path(sys.base_prefix, "bin", name), Path("/usr/bin", name)) if is_open(path)), None
    )
    paths = [path for path in sys.path if Path(path).name == "site-packages" or Path(path, "ndld_flow").is_dir()]
    if system is None or not all(is_open(Path(path)) for path in paths):
        pytest.skip("other users cannot run this Python, or import its packages")
    subprocess.run([system, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (folder / "venv/lib" / name / "site-packages/these.pth").write_text("\n".join(paths))
    return str(folder / "venv/bin/python")


def is_open(path: Path) -> bool:
    """Return whether every user may reach a file or folder."""
    return path.exists() and all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.resolve().parents))


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to become another user")
def test_a_user_without_privileges_is_contained_too() -> None:
    """Without the capabilities that root gives up, and with no more than other users may read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # those of the tests are closed to others
    project, home = folder / "project", folder / "home"
    for each in (project, home):
        each.mkdir()
    make_cnn(project / "model.onnx")
    make_cnn(home / "private.onnx")
    place = Place(project, home, "")
    place.write()
    (project / "thief.yaml").write_text(RECIPE.format(model=home / "private.onnx", data="random"))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    python = python_for_others(folder)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(folder)}

    def run(recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*become, python, "-P", "-m", "ndld_flow", "run", recipe, *arguments],
            cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    try:
        done = run("stranger.yaml", "--contained")
        assert done.returncode == 0, done.stderr
        assert (project / "outputs").stat().st_uid == NOBODY
        stolen = run("thief.yaml", "--contained", "--outputs", "other")
        assert stolen.returncode == 2, stolen.stderr
        assert run("thief.yaml", "--outputs", "other").returncode == 0, "its own user may read it"
        assert not list(folder.glob("ndld_flow-contained-*"))
    finally:
        shutil.rmtree(folder)


@pytest.mark.thorough
def test_data_inside_the_project_are_read(place: Place) -> None:
    (place.project / "data").mkdir()
    shutil.copy(place.home / "models" / "private.npy", place.project / "data")
    place.write(data="data/*.npy")
    done = place.run()
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["absolute", "parent", "link", "linked folder", "glob", "proc"])
def test_data_and_models_outside_are_not_read(place: Place, way: str) -> None:
    private = place.home / "models"
    (place.project / "linked").symlink_to(private)
    (place.project / "x.npy").symlink_to(private / "private.npy")
    data, model = {
        "absolute": (private / "private.npy", private / "private.onnx"),
        "parent": ("../home/models/private.npy", "../home/models/private.onnx"),
        "link": ("x.npy", "linked/private.onnx"),
        "linked folder": ("linked/private.npy", "linked/private.onnx"),
        "glob": (f"{private}/*.npy", "linked/private.onnx"),
        "proc": (f"/proc/self/root{private}/private.npy", f"/proc/self/root{private}/private.onnx"),
    }[way]
    for settings in ({"data": str(data)}, {"model": str(model)}):
        place.write(**settings)
        done = place.run()
        assert done.returncode == 2, (settings, done.stdout, done.stderr)
        shutil.rmtree(place.project / "outputs")
        done = place.run(is_contained=False)
        assert done.returncode == 0, (settings, done.stderr)  # the attack would work
        shutil.rmtree(place.project / "outputs")


@pytest.mark.thorough
def test_nothing_is_fetched(place: Place, served: list[str]) -> None:
    from hashlib import sha256

    digest = sha256((place.project / "model.onnx").read_bytes()).hexdigest()
    place.write(model=f"{{source: '{place.url}', sha256: {digest}}}")
    done = place.run()
    assert done.returncode == 2
    assert "a contained run has no network" in done.stderr
    assert not served
    assert place.run(is_contained=False).returncode == 0
    assert served


@pytest.mark.thorough
def test_external_data_of_a_model_stay_inside(place: Place) -> None:
    import onnx

    for location in (str(place.home / "secret.txt"), "../home/secret.txt", "weights.bin"):
        model = onnx.load(place.project / "model.onnx")
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in {"location": location, "offset": "0", "length": str(len(SECRET))}.items():
            tensor.external_data.add(key=key, value=value)
        (place.project / "outer.onnx").write_bytes(model.SerializeToString())
        (place.project / "weights.bin").unlink(missing_ok=True)
        (place.project / "weights.bin").symlink_to(place.home / "secret.txt")
        place.write(model="outer.onnx")
        done = place.run()
        assert done.returncode == 2, done.stderr
        assert not place.is_leaked(done)


@pytest.mark.thorough
def test_code_and_programs_of_a_recipe_do_not_run(place: Place) -> None:
    (place.project / "steal.py").write_text("raise SystemExit('it ran')")
    place.write(more="steps_from: [steal.py]\n")
    done = place.run()
    assert done.returncode == 2
    assert "it ran" not in done.stderr
    place.write(more="  tool: {step: run_tool, command: [touch, ran]}\n")
    assert place.run().returncode == 2
    assert not (place.project / "ran").exists()


@pytest.mark.parametrize("option", ["--trust", "--ray local", "--push", "-o x.onnx", "--apply best.yaml"])
def test_options_that_open_the_sandbox_are_refused(place: Place, option: str) -> None:
    place.write()
    done = ndld_flow("run", "stranger.yaml", "--contained", *option.split(" "), cwd=place.project)
    assert done.returncode == 2
    assert "--contained exclude each other" in done.stderr
    assert not (place.project / "outputs").exists()


@pytest.mark.thorough
def test_variables_and_hidden_files_of_the_project_are_out_of_reach(place: Place) -> None:
    (place.project / ".git").mkdir()
    np.save(place.project / ".git" / "config.npy", np.zeros((1, 3, 16, 16), np.float32))
    (place.project / "config.npy").symlink_to(".git/config.npy")
    for data in (".git/config.npy", "config.npy"):
        place.write(data=data)
        assert place.run().returncode == 2, data
    for text in ("${oc.env:MY_TOKEN}", "${oc.env:AWS_SECRET_ACCESS_KEY}", "${oc.env:MY_TOKEN,none}"):
        place.write(more=f"description: '{text}'\n")
        assert not place.is_leaked(place.run())


@pytest.mark.thorough
def test_the_project_decides_neither_the_cache_nor_where_results_go(place: Place) -> None:
    place.write()
    (place.project / ".ndld_flow.yaml").write_text(f"cache: {place.home}\n")
    done = place.run()
    assert done.returncode == 0, done.stderr
    (place.project / ".ndld_flow.yaml").unlink()
    shutil.rmtree(place.project / "outputs")
    (place.project / "outputs").symlink_to(place.home)
    done = place.run()
    assert done.returncode == 2
    assert "is a link, and would decide where results are written" in done.stderr
    assert not (place.home / "runs").exists()


@pytest.mark.thorough
def test_a_cache_in_a_folder_is_read_and_not_written(place: Place, tmp_path: Path) -> None:
    place.write()
    cache = tmp_path / "cache"
    assert (
        place.run("--cache", str(cache), "--push", "--outputs", str(tmp_path / "ours"), is_contained=False).returncode
        == 0
    )
    files = sorted(cache.rglob("*"))
    done = place.run("--cache", str(cache))
    assert done.returncode == 0, done.stderr
    record = json.loads((place.project / "outputs/runs/stranger/latest/run.json").read_text())
    assert {step["reason"] for step in record["steps"]} == {"reused from cache"}
    assert sorted(cache.rglob("*")) == files
    done = place.run("--cache", "s3://team/cache")
    assert done.returncode == 2
    assert "there is no network, so the cache must be a folder" in done.stderr


def test_a_home_folder_is_no_project(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.home))
    monkeypatch.chdir(place.home)
    with pytest.raises(RequestError, match="your home folder is in it"):
        contained.find_project(Path("stranger.yaml"))
    monkeypatch.chdir(place.home.parent)
    with pytest.raises(RequestError, match="your home folder is in it"):
        contained.find_project(Path("project/stranger.yaml"))
    monkeypatch.chdir(place.home)
    assert contained.find_project(place.project / "stranger.yaml") == place.project
    monkeypatch.chdir(place.project)
    assert contained.find_project(Path("stranger.yaml")) == place.project


NATIVE = r"""
import ctypes, errno, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from ndld_flow.processes.sandbox import Access, enter_sandbox

project, home, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
secret = home / "secret.txt"
outside = os.open("/", os.O_PATH)

system = [Path(name) for name in ("/usr", "/bin", "/lib", "/lib64", sys.prefix, sys.base_prefix)]
enter_sandbox(Access(
    read=(project, Path("/proc"), Path("/sys"), Path("/etc/ld.so.cache")),
    execute=(*system, Path(sys.argv[4])), write=(project / "outputs",), devices=(Path("/dev/null"),),
))
here = project / "outputs"
(here / "mine").write_text("allowed")
assert (here / "mine").read_text() == "allowed"
(here / "mine").rename(here / "renamed")

def native_open(path, flags=0):
    descriptor = libc.open(os.fsencode(path), flags)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "open")
    return os.read(descriptor, 100)

def from_program(*words):
    done = subprocess.run(words, capture_output=True)
    if done.returncode:
        raise OSError(errno.EACCES, done.stderr)

def in_thread():
    found = []
    def work():
        try:
            found.append(secret.read_text())
        except OSError as error:
            found.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]

def system_call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "syscall")

def link_and_read():
    os.link(secret, here / "hard")
    (here / "hard").read_text()

def symlink_and_read():
    (here / "soft").symlink_to(secret)
    (here / "soft").read_text()

def device():
    os.mknod(here / "disk", 0o60600, os.makedev(8, 0))

def new_namespace():
    if libc.unshare(0x10000000 | 0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.socket()

x86 = os.uname().machine == "x86_64"
attacks = {
    "open": lambda: secret.read_text(),
    "native open": lambda: native_open(secret),
    "native open by /proc/self/root": lambda: native_open(f"/proc/self/root{secret}"),
    "native open by a descriptor of before": lambda: os.open(str(secret)[1:], os.O_RDONLY, dir_fd=outside),
    "list": lambda: os.listdir(home),
    "shadow": lambda: native_open("/etc/shadow"),
    "environment of the parent": lambda: native_open(f"/proc/{parent}/environ"),
    "memory of the parent": lambda: native_open(f"/proc/{parent}/mem"),
    "files of the parent": lambda: os.readlink(f"/proc/{parent}/fd/0"),
    "root of the parent": lambda: native_open(f"/proc/{parent}/root{secret}"),
    "hard link": link_and_read,
    "link": symlink_and_read,
    "write": lambda: (home / "new").write_text("x"),
    "truncate": lambda: os.truncate(secret, 0),
    "remove": lambda: secret.unlink(),
    "rename out": lambda: (here / "renamed").rename(home / "stolen"),
    "rename in": lambda: secret.rename(here / "stolen"),
    "write into the project": lambda: (project / "model.onnx").write_text("x"),
    "thread": in_thread,
    "program": lambda: from_program("/usr/bin/env", "cat", str(secret)),
    "shell": lambda: from_program("/bin/sh", "-c", f"cat {secret}"),
    "own program": lambda: from_program(str(here / "program")),
    "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "datagrams": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "local sockets": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "connection": lambda: socket.create_connection(("127.0.0.1", 9)),
    "maps of the parent": lambda: native_open(f"/proc/{parent}/maps"),
    "working directory of the parent": lambda: os.listdir(f"/proc/{parent}/cwd"),
    "environment of init": lambda: native_open("/proc/1/environ"),
    "real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "another user": lambda: os.setuid(12345),
    "io_uring": lambda: system_call(425, 8, ctypes.create_string_buffer(200)),
    "ptrace": lambda: system_call(101 if x86 else 117, 16, parent, 0, 0),
    "bpf": lambda: system_call(321 if x86 else 280, 0, 0, 0),
    "handles": lambda: system_call(304 if x86 else 265, outside, ctypes.create_string_buffer(100), 0),
    "keys": lambda: system_call(250 if x86 else 219, 0, -3, 0),
    "mount": lambda: system_call(165 if x86 else 40, b"none", os.fsencode(here), b"tmpfs", 0, 0),
    "namespace": new_namespace,
    "device": device,
    "kernel memory": lambda: native_open("/dev/mem"),
    "shared memory": lambda: os.listdir("/dev/shm"),
    "chroot": lambda: (os.chroot(here), native_open("/../../etc/shadow")),
}
(here / "program").write_text("#!/bin/sh\ntrue\n")
(here / "program").chmod(0o755)
if libc.syscall(444, None, 0, 1) >= 6:  # earlier kernels do not restrict signals
    attacks["signal"] = lambda: os.kill(parent, 0)
escaped = []
for name, attack in attacks.items():
    try:
        attack()
        escaped.append(name)
    except (OSError, PermissionError) as error:
        pass
socket.socketpair()
print("tried more than 40:", len(attacks) > 40, "escaped:", escaped)
"""


def test_native_code_does_not_leave_the_sandbox(place: Place) -> None:
    import ndld_flow

    (place.project / "outputs").mkdir()
    package = str(Path(ndld_flow.__file__).parent)
    arguments = [str(place.project), str(place.home), str(os.getpid()), package]
    done = subprocess.run(
        [sys.executable, "-c", NATIVE, *arguments],
        cwd=Path(package).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tried more than 40: True escaped: []\n", done.stdout
    assert (place.home / "secret.txt").read_text() == SECRET
    assert {path.name for path in place.home.iterdir()} == {"models", "secret.txt"}


def test_a_process_with_threads_does_not_enter_the_sandbox() -> None:
    code = (
        "import threading, time\n"
        "from ndld_flow.processes.sandbox import Access, enter_sandbox\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "enter_sandbox(Access())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "this process has 2 threads" in done.stderr
