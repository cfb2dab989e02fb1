"""ES modules are bundled into one script with the same behaviour."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ndld_flow.report.render import BundleError, bundle, read_module
from tests.support.message_files import CheckMessage


def write(folder: Path, **texts: str) -> Path:
    """Write modules, `__` for the slash in their names."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_module_follows_its_imports(tmp_path: Path) -> None:
    write(
        tmp_path,
        a__page='import { twice } from "../twice.js";\nexport function start() { return twice(2); }\n',
        twice='import { two } from "./numbers.js";\nexport const twice = (n) => two * n;\n',
        numbers="export const two = 2;\nconst hidden = 3;\n",
    )
    assert bundle("a/page.js", tmp_path).splitlines() == [
        "const modules = {};",
        'modules["numbers.js"] = (() => {',
        "const two = 2;",
        "const hidden = 3;",
        "return { two };",
        "})();",
        'modules["twice.js"] = (() => {',
        'const { two } = modules["numbers.js"];',
        "const twice = (n) => two * n;",
        "return { twice };",
        "})();",
        'modules["a/page.js"] = (() => {',
        'const { twice } = modules["twice.js"];',
        "function start() { return twice(2); }",
        "return { start };",
        "})();",
        'modules["a/page.js"].start([]);',
    ]


def test_the_panels_of_a_folder_are_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        page="export function start(panels) { for (const panel of panels) panel.show(); }\n",
        panels__b="export function show() {}\n",
        panels__a="export function show() {}\n",
    )
    last = bundle("page.js", tmp_path, "panels").splitlines()[-1]
    assert last == 'modules["page.js"].start([modules["panels/a.js"], modules["panels/b.js"]]);'


def test_a_bundle_behaves_like_its_modules(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    write(
        tmp_path,
        page='import { Base as Parent, name } from "./shapes.js";\n'
        'import {\n  one,\n  two,\n} from "./numbers.js";\n'
        'import "./effect.js";\n\n'
        "const hidden = 5;\n"
        "class Child extends Parent {}\n"
        "export async function start(panels) {\n"
        "  console.log(name, new Child().value, one + two, hidden, globalThis.effect, panels.length);\n"
        "}\n",
        shapes='// Shapes.\n\n/** @type {string} */\nexport const name = "// no comment";\n'
        "const hidden = 4;\nexport class Base { value = hidden; }\n",
        numbers="export const one = 1;\nexport const two = 2;\n",
        effect="globalThis.effect = true;\n",
        panels__empty="export function show() {}\n",
    )
    script = tmp_path / "bundle.mjs"
    script.write_text(bundle("page.js", tmp_path, "panels"))
    printed = subprocess.run([node, script], capture_output=True, text=True, check=True).stdout
    assert printed == "// no comment 4 3 5 true 1\n"


def test_indentation_is_removed() -> None:
    assert read_module("a.js", "export function f() {\n  if (1) {\n\t  g();\n  }\n}\n").code == (
        "function f() {\nif (1) {\ng();\n}\n}\n"
    )


def test_comments_on_their_own_lines_are_removed() -> None:
    cast = "/** @type {HTMLElement} */ (a).hidden = true;\n"
    text = f'// One.\n/**\n * Two.\n */\nconst a = "http://x"; // three\n  // four\n{cast}/** Five. */\nb();\n'
    assert read_module("a.js", text).code == f'const a = "http://x"; // three\n{cast}b();\n'


@pytest.mark.parametrize(
    "text",
    [
        'import { two } from "./numbers.js";\n',
        'import { one } from "./absent.js";\n',
        'import { one } from "./page.js";\n',
        'import * as all from "./numbers.js";\n',
        'import { one } from "package";\n',
        'const late = import("./numbers.js");\n',
        "export default 1;\n",
        "export let changing = 1;\n",
        "export const { a, b } = {};\n",
        "",
    ],
)
def test_code_that_cannot_be_inlined_is_an_error(tmp_path: Path, text: str, check_message: CheckMessage) -> None:
    start = "export function start() {}\n" if text else ""
    write(tmp_path, page=text + start, numbers="export const one = 1;\n")
    with pytest.raises(BundleError) as caught:
        bundle("page.js", tmp_path)
    check_message(caught.value)


def test_a_cycle_of_several_modules_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        page='import { a } from "./a.js";\nexport function start() {}\n',
        a='import { b } from "./b.js";\nexport const a = 1;\n',
        b='import { a } from "./a.js";\nexport const b = 1;\n',
    )
    with pytest.raises(BundleError, match=r"a\.js -> b\.js -> a\.js|b\.js -> a\.js"):
        bundle("page.js", tmp_path)
