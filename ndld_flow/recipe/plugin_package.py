"""Write a package with a step and an operation of one's own, their entry points, and a test that runs a recipe."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ndld_flow import __version__
from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.store.files import write_text_atomically

_LONGEST_NAME = 60
_RESERVED = ("src", "tests", "test", "setup", "conftest")
"""Names that pytest or the layout of the package uses."""

_FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1.0"
description = "Steps and operations for ndld-flow."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["ndld-flow>=VERSION", "onnx"]

[project.optional-dependencies]
dev = ["mypy>=1.15", "pytest>=8.3", "ruff>=0.12"]

# The name on the left is the word in recipes; `ndld-flow steps` lists the steps.
[project.entry-points."ndld_flow.steps"]
NAME_stamp = "NAME.stamp:Stamp"

# `ndld-flow steps edit.NAME_clear_doc_strings` explains the operation.
[project.entry-points."ndld_flow.operations"]
NAME_clear_doc_strings = "NAME.clear_doc_strings:ClearDocStrings"

[tool.hatch.build.targets.wheel]
packages = ["src/NAME"]

[tool.mypy]
strict = true
packages = ["NAME", "tests"]
mypy_path = "src"

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
src = ["src"]
line-length = 100
""",
    "README.md": """\
# NAME

A step and an operation for [ndld-flow](https://ndld-flow.github.io/ndld-flow).

```bash
pip install -e '.[dev]'
ndld-flow steps NAME_stamp
ndld-flow run recipe.yaml model=MODEL.onnx
pytest && ruff check && mypy
```

A step or an operation imports only `ndld_flow.plugin`. To add one, write a file into `src/NAME/`, and its entry point
into `pyproject.toml`; then install the package again, so that the entry point is found.

- A step's result is reused as long as its settings, its input and its code are the same. The code of an installed
  package is known by the package's version: raise it when a step gives another result. In an editable install
  (`pip install -e`) every change of the code counts.
- `version` of a class does the same for one step or operation.
""",
    ".gitignore": """\
__pycache__/
*.egg-info/
/dist/
/outputs/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.venv/
""",
    "recipe.yaml": """\
# ndld-flow run recipe.yaml model=MODEL.onnx
name: NAME
model: model.onnx

steps:
  stamped: {step: NAME_stamp, text: hello}
  clean:
    step: edit
    operations: [NAME_clear_doc_strings]

gates:
  - stamped.length == 5
""",
    "src/NAME/__init__.py": '''\
"""Steps and operations for ndld-flow."""
''',
    "src/NAME/py.typed": "",
    "src/NAME/stamp.py": '''\
"""The step `NAME_stamp`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ndld_flow.plugin import Context, Metric, Onnx, Result, Returns, Step, metrics


class Stamp(Step[Onnx, Onnx]):
    """Write a text into the model's doc string."""

    libraries: ClassVar[tuple[str, ...]] = ("onnx",)
    returns: ClassVar[tuple[Returns, ...]] = metrics("length")

    text: str = "stamped"
    """The text to write."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx

        model = onnx.load(source.path)
        model.doc_string = self.text
        onnx.save(model, out / Onnx.main)
        return Result(f"wrote {self.text}", metrics={"length": Metric(value=len(self.text))})
''',
    "src/NAME/clear_doc_strings.py": '''\
"""The operation `NAME_clear_doc_strings`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.plugin import Operation

if TYPE_CHECKING:
    from ndld_flow.plugin import EditedModel


class ClearDocStrings(Operation):
    """Remove the doc strings of all nodes.

    Nodes in subgraphs are nodes too:

        NAME_clear_doc_strings: {keep_model: false}
    """

    heading = "nodes"
    keeps_outputs = True

    keep_model: bool = True
    """Leave the doc string of the model."""

    def apply(self, edited: EditedModel) -> str:
        nodes = [node for node in edited.model.graph.all_nodes() if node.doc_string]
        for node in nodes:
            node.doc_string = None
        if not self.keep_model:
            edited.model.doc_string = None
        return f"{len(nodes)} doc strings removed"
''',
    "tests/__init__.py": "",
    "tests/test_recipe.py": '''\
"""The recipe of this package, run on a small model."""

from __future__ import annotations

from pathlib import Path

import onnx
from ndld_flow import api
from onnx import TensorProto, helper

RECIPE = Path(__file__).parents[1] / "recipe.yaml"


def write_model(path: Path) -> None:
    """Write a model of one node that has a doc string."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu", doc_string="a note")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([node], "graph", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)


def test_the_recipe_runs(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    model = f"model={tmp_path / 'model.onnx'}"
    finished = api.run(RECIPE, [model], outputs=tmp_path / "outputs")
    assert finished.passed
    assert finished.metrics["stamped.length"].value == 5
    written = onnx.load(finished.artifacts["clean"])
    assert written.doc_string == "hello"
    assert [node.doc_string for node in written.graph.node] == [""]
''',
}
"""Path in the package's folder -> its text."""


def write_plugin(name: str, folder: Path | None = None) -> Path:
    """Write a package with a step and an operation into a new or empty folder, by default `NAME`; return the folder.

    Raises RequestError for a name that is no good name of a package, and for a folder with files in it.
    """
    check_plugin_name(name)
    target = folder if folder is not None else Path(name)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise RequestError(
                f"{target}: it exists and is no empty folder. Give another: init --plugin {name} FOLDER."
            )
        for path, text in _FILES.items():
            filled = text.replace("NAME", name).replace("VERSION", __version__)
            write_text_atomically(target / path.replace("NAME", name), filled)
    except OSError as error:
        raise OutputsError(f"{target}: the package cannot be written ({error.strerror}).") from None
    return target


def check_plugin_name(name: str) -> None:
    """Raise RequestError for a name that Python cannot import, or that another package has."""
    shown = short_name(repr(name), _LONGEST_NAME + 10)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > _LONGEST_NAME or keyword.iskeyword(name):
        hint = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_0123456789")[:_LONGEST_NAME]
        example = hint if hint and not keyword.iskeyword(hint) else "my_steps"
        raise RequestError(
            f"--plugin {shown}: a package's name has small letters, digits and underscores, begins with a letter, and "
            f"is no keyword of Python. Try {example}."
        )
    owner = _find_owner(name)
    if owner:
        raise RequestError(f"--plugin {shown}: {owner} has this name. Try my_{name}.")


def _find_owner(name: str) -> str:
    """Return the package or module that has a name already, in words; empty if there is none."""
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    if name in _RESERVED:
        return "a folder or file of the package itself"
    try:
        found = distribution(name)
        return f"the installed package {found.name} {found.version}"
    except PackageNotFoundError:
        pass
    spec = importlib.util.find_spec(name)
    return f"the installed module {spec.origin}" if spec is not None and spec.origin else ""
