"""Stand-ins for releases of ONNX Runtime: the installed one, under another version and with another setting."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_SHIM = """
import ctypes, pathlib, sys
_here = pathlib.Path(__file__).resolve().parent
_real = next(pathlib.Path(path, "onnxruntime") for path in sys.path
             if pathlib.Path(path, "onnxruntime", "capi").is_dir() and pathlib.Path(path, "onnxruntime") != _here)
__path__ = [str(_real)]
exec(compile((_real / "__init__.py").read_text(), str(_real / "__init__.py"), "exec"))
_run_bound = InferenceSession.run_with_iobinding
_repeat, _add = {repeat}, {add}
def run_with_iobinding(self, binding, *arguments):
    for _ in range(_repeat):
        _run_bound(self, binding, *arguments)
    for value in getattr(binding, "_iobinding", binding).get_outputs() if _add else ():
        floats = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_float))
        for place in range(value.numpy().size):
            floats[place] += _add
InferenceSession.run_with_iobinding = run_with_iobinding
_run = InferenceSession.run
def run(self, *arguments, **named):
    return [output + output.dtype.type(_add) for output in _run(self, *arguments, **named)]
InferenceSession.run = run
"""


def shim_files(version: str, repeat: int = 1, add: float = 0.0) -> dict[str, str]:
    """The files of a release that runs each pass several times, or adds a number to its float outputs."""
    info = f"onnxruntime-{version}.dist-info"
    files = {
        "onnxruntime/__init__.py": _SHIM.format(repeat=repeat, add=add),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    # The list differs with the contents, as digests would.
    lines = [*(f"{name},," for name in files), f"{info}/RECORD,,", f"{repeat}-{add},,"]
    return files | {f"{info}/RECORD": "\n".join(lines) + "\n"}


def write_environment(folder: Path, version: str, repeat: int = 1, add: float = 0.0) -> Path:
    """Write a virtual environment as far as its packages, without pip."""
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name, text in shim_files(version, repeat, add).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    return folder


def write_wheel(folder: Path, version: str, repeat: int = 1, add: float = 0.0) -> Path:
    """Write a release as a wheel, for `--find-links`."""
    folder.mkdir(exist_ok=True)
    path = folder / f"onnxruntime-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in shim_files(version, repeat, add).items():
            lines = "".join(f"{shim_file},,\n" for shim_file in shim_files(version))
            archive.writestr(name, lines if name.endswith("RECORD") else text)
    return path
