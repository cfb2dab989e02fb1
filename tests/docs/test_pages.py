"""Claims of the README and of the pages in `docs/`: commands, recipes, settings in tables, links."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from docs import reference
from ndld_flow import api
from ndld_flow.base.settings import fields_of
from ndld_flow.cli.app import program
from ndld_flow.cli.verbs import list_verbs
from ndld_flow.graph.edit.catalogue import find_operation
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.runs.cache_settings import PROJECT_FILE, read_settings, user_settings_file
from tests.support import pages
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.samples import fetch_sample, lend_samples

BLOCKS = pages.blocks()
STEP_NAMES = StepTypes().names()
CHEAP = ("init", "steps", "schema", "inspect", "draw", "ops")
"""Verbs that are quick enough to run for the quick tests."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's recipes and presets, with the models and the files that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("pipelines", "configs"):
        shutil.copytree(pages.ROOT / name, folder / name)
    lend_samples(folder / "outputs/store")
    for name in ("model.onnx", "detector.onnx"):
        make_cnn(folder / name)
    shutil.copy(fetch_sample("det"), folder / "det.onnx")
    for block in BLOCKS:
        if block.title.endswith(".py"):
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
    return folder


def parse(command: str) -> None:
    """Let click read a command, without running it."""
    words = shlex.split(pages.without_comment(command))
    assert words[0] == "ndld-flow", command
    if words[1].startswith("-") or words[1].isupper():  # `ndld-flow --help`, `ndld-flow VERB --help`
        return
    context = click.Context(program, info_name="ndld-flow")
    verb = program.get_command(context, words[1])
    assert verb is not None, f"there is no verb {words[1]}: {command}"
    try:
        verb.make_context(words[1], words[2:], parent=context)
    except (click.exceptions.Exit, click.MissingParameter):  # `--help`, or the bare name of a verb in a sentence
        return
    except click.BadParameter as error:
        assert "does not exist" in error.message, f"{command}: {error.message}"


def test_every_command_can_be_parsed() -> None:
    commands = [line for block in BLOCKS for line in block.commands() if line.startswith("ndld-flow")]
    assert len(commands) > 60
    texts = [path.read_text() for path in pages.page_paths() if path.name != "CONTRIBUTING.md"]  # it adds a verb
    inline = [code for text in texts for code in pages.codes(pages.without_code(text))]
    for command in [*commands, *(code for code in inline if code.startswith("ndld-flow "))]:
        parse(command)


def test_commands_that_are_not_run_have_a_reason_and_exist() -> None:
    extras = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = [block for block in BLOCKS if block.language == "sh"]
    assert len(shown) >= 4 and all(block.not_run for block in shown)
    for block in shown:
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        for line in map(pages.without_comment, block.text.splitlines()):
            if command := re.search(r"\bndld-flow [a-z].*", line):  # not the name of a package or an image
                parse(command[0])
            for path in re.findall(r"\btests/[\w/.]+", line):
                assert (pages.ROOT / path).exists(), line
            for module in re.findall(r"python -m (tests[\w.]+)", line):
                place = module.replace(".", "/")
                assert any((pages.ROOT / file).is_file() for file in (f"{place}.py", f"{place}/__main__.py")), line
            for named in re.findall(r"'(?:\.|ndld-flow)\[([\w,]+)\]'", line):
                assert set(named.split(",")) <= set(extras), line


def test_commands_are_in_blocks_of_commands() -> None:
    """In a block of another language they would be neither run nor checked; two pages have tests of their own."""
    for block in BLOCKS:
        is_other = block.language in ("text", "console", "shell", "")
        if is_other and block.page not in ("README.md", "CONTRIBUTING.md"):
            command = re.search(r"^\s*(?:\$ )?(?:ndld-flow|pip|python3?|pytest) ", block.text, re.MULTILINE)
            assert command is None, f"{block.page}: {block.text}"


def test_cheap_commands_work(checkout: Path) -> None:
    lines = {line for block in BLOCKS for line in map(pages.without_comment, block.commands())}
    for line in sorted(lines):
        _, verb, *arguments = shlex.split(line)
        if verb in CHEAP and "det.onnx" not in line:
            done = ndld_flow(
                verb, *arguments, *(["--overwrite"] if verb == "init" and "--example" not in line else []), cwd=checkout
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def is_recipe(block: pages.Block) -> bool:
    is_for_others = block.is_for_ci or block.text.startswith("apiVersion: ")
    is_for_others |= block.title in (PROJECT_FILE, user_settings_file().name) or block.title.startswith("configs/")
    return block.language == "yaml" and not is_for_others


def test_every_recipe_can_be_planned(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    recipes = [block for block in BLOCKS if is_recipe(block) and block.title and not block.not_run]
    assert len(recipes) > 10
    for block in recipes:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.text)
        done = ndld_flow("plan", block.title, "--trust", cwd=checkout)
        assert done.returncode == 0, f"{block.page}: {block.title}\n{done.stdout}\n{done.stderr}"


def test_every_settings_file_is_valid(tmp_path: Path) -> None:
    names = (PROJECT_FILE, user_settings_file().name)
    for block in (block for block in BLOCKS if block.title in names):
        (tmp_path / block.title).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / block.title).write_text(block.text)
        read_settings(tmp_path / block.title)


@pytest.fixture(scope="module")
def recipe_schema() -> dict[str, Any]:
    """The schema of recipes, of which a part may leave out anything."""
    return api.schema() | {"required": []}


def test_every_part_of_a_recipe_is_valid(recipe_schema: dict[str, Any]) -> None:
    parts = [block for block in BLOCKS if is_recipe(block) and not block.title]
    assert len(parts) > 10
    for block in parts:
        validate(yaml.safe_load(block.text), recipe_schema, f"{block.page}: {block.text}")


def validate(value: object, schema: dict[str, Any], where: str) -> None:
    __tracebackhide__ = True
    problem = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    assert problem is None, f"{where}\n{problem.message}"


def test_settings_in_tables_exist(recipe_schema: dict[str, Any]) -> None:
    """A column headed "step `NAME`" has settings of this step, one headed "operation" has operations of `edit`."""
    checked = 0
    for path in pages.page_paths():
        for header, rows in pages.tables(path.read_text()):
            for row in rows:
                for code in pages.codes(row[1]) if len(row) > 1 else []:
                    checked += check_setting(header[1], code, recipe_schema, f"{path}: {code}")
    assert checked > 100


def check_setting(heading: str, code: str, recipe_schema: dict[str, Any], where: str) -> bool:
    """Check a setting in a table; return whether it is one."""
    if not re.match(r"\w+: \S", code):
        return False
    value = yaml.safe_load(code)
    step = re.fullmatch(r"step `(\w+)`", heading)
    [(name, inner)] = value.items()
    operation = find_operation(name) if heading == "operation" else None
    if operation is not None:
        validate(inner, operation.model_json_schema(), where)
    elif step is not None:
        validate(value, part_of(step_schema(step[1])), where)
    else:
        candidates = map(part_of, all_schemas(recipe_schema))
        assert any(jsonschema.Draft202012Validator(schema).is_valid(value) for schema in candidates), where
    return True


def part_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which nothing is required."""
    return schema | {"required": []}


@cache
def step_schema(name: str) -> dict[str, Any]:
    found = StepTypes().find(name)
    assert found is not None
    schema = found.cls.model_json_schema()
    return schema | {"properties": schema.get("properties", {}) | {found.cls.read_key: {"type": "string"}}}


def all_schemas(recipe_schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of a recipe, of its `sweep:` and inputs, and of all steps: a row names its step in words."""
    definitions = recipe_schema["$defs"]
    parts = [definitions["SweepSection"], definitions["InputSpec"]]
    return [recipe_schema, *(part | {"$defs": definitions} for part in parts), *(map(step_schema, STEP_NAMES))]


def test_pages_use_the_action_and_the_component_with_inputs_that_exist() -> None:
    action = yaml.safe_load((pages.ROOT / "action.yml").read_text())["inputs"]
    component = yaml.safe_load((pages.ROOT / "templates/run.yml").read_text().split("\n---\n")[0])["spec"]["inputs"]
    used = 0
    for block in filter(lambda block: block.is_for_ci, BLOCKS):
        document = yaml.safe_load(block.text)
        steps = [step for job in document.get("jobs", {}).values() for step in job["steps"]]
        given = [step["with"] for step in steps if step.get("uses", "").startswith("ndld-flow/ndld-flow@")]
        assert all(set(inputs) <= set(action) and "recipe" in inputs for inputs in given)
        included = [include["inputs"] for include in document.get("include", ())]
        assert all(set(inputs) <= set(component) and "recipe" in inputs for inputs in included)
        used += len(given) + len(included)
        for command in "\n".join(step.get("run", "") for step in steps).splitlines():
            if command.strip().startswith("ndld-flow "):
                parse(command.strip())
    assert used == 2


def test_a_step_of_your_own_takes_ten_lines() -> None:
    [code] = [block.text for block in BLOCKS if block.title == "steps/stamp.py"]
    body = [line for line in code.splitlines() if line.strip() and not line.startswith(("from", "import"))]
    assert len(body) <= 10


def test_every_verb_is_shown() -> None:
    """In a block that is run, or in one that needs another machine."""
    commands = "\n".join(block.text for block in BLOCKS if block.language in ("bash", "sh"))
    assert [verb for verb in list_verbs() if not re.search(rf"^ndld-flow {verb}\b", commands, re.MULTILINE)] == []


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """All pages of the site by their paths below `docs/`, generated ones too."""
    written = {str(path.relative_to(pages.DOCS)): path.read_text() for path in pages.DOCS.rglob("*.md")}
    return written | reference.pages()


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as Python-Markdown makes them."""
    headings = re.findall(r"^#+ (.+)$", pages.without_code(text), re.MULTILINE)
    given = {match[1] for heading in headings if (match := re.search(r"\{ #([\w-]+) \}", heading))}
    return given | {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_links_have_targets(site: dict[str, str]) -> None:
    """Without network: files and anchors of relative links, those of generated pages too."""
    broken = []
    for name, text in site.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", pages.without_code(text)):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            full = (pages.DOCS / name).parent / path if path else pages.DOCS / name
            full = Path(os.path.normpath(full))
            of_site = site.get(str(full.relative_to(pages.DOCS))) if full.is_relative_to(pages.DOCS) else None
            exists = of_site is not None or full.is_file()
            if not exists or (anchor and anchor not in anchors(of_site or full.read_text())):
                broken.append(f"{name}: {target}")
    assert broken == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_into_the_repository_have_targets(name: str) -> None:
    text = pages.without_code((pages.ROOT / name).read_text())
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = pages.ROOT / (path or name)
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target.read_text()))):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (pages.ROOT / "mkdocs.yml").read_text()
    written = {str(path.relative_to(pages.DOCS)) for path in pages.DOCS.rglob("*.md")}
    assert {path for path in written if path not in navigation} == set()


def test_the_readme_names_every_step_and_the_number_of_operations() -> None:
    readme, comparison = ((pages.ROOT / name).read_text() for name in ("README.md", "docs/about/comparison.md"))
    assert [name for name in STEP_NAMES if f"`{name}`" not in readme] == []
    edit = StepTypes().find("edit")
    assert edit is not None
    for text in (readme, comparison):
        [least] = re.findall(r"more than (\d+)\s+operations", text)
        assert int(least) < len(edit.cls.parts()) <= int(least) + 10


def test_the_tables_of_recipes_name_each_recipe() -> None:
    tables = [pages.tables((pages.DOCS / "how-to" / name).read_text()) for name in ("recipes.md", "sweep.md")]
    named = {code for table in tables for _, rows in table for row in rows for code in pages.codes(row[0])}
    assert {path.stem for path in (pages.ROOT / "pipelines").glob("*.yaml")} <= named


def test_pages_that_reports_name_are_in_the_navigation() -> None:
    navigation = (pages.ROOT / "mkdocs.yml").read_text()
    templates = "".join(path.read_text() for path in (pages.ROOT / "ndld_flow/report").rglob("*.j2"))
    named = re.findall("The page “([^”]+)” of the documentation", templates)
    assert named and [name for name in named if f"- {name}: " not in navigation] == []


def test_the_reference_is_complete(site: dict[str, str]) -> None:
    for step in api.steps():
        page = site[f"reference/steps/{step.name}.md"]
        assert [name for name in fields_of(step.cls) if f"`{name}`" not in page] == []
    operations = "".join(text for path, text in site.items() if path.startswith("reference/operations/"))
    edit = StepTypes().find("edit")
    assert edit is not None
    assert [name for name in edit.cls.parts() if f"`{name}`" not in operations and name != "select"] == []
    assert [verb for verb in list_verbs() if f"## {verb} " not in site["reference/verbs.md"]] == []
    assert "## run " in site["reference/api.md"]


def test_the_tests_of_each_feature_exist() -> None:
    table = re.findall(r"^\| [A-Z]\d.*\| (.*) \|$", (pages.DOCS / "about/features.md").read_text(), re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(.+?)`", cell)}
    assert named
    assert {name for name in named if not (pages.ROOT / "tests" / f"{name}.py").is_file()} == set()


def test_pictures_are_small() -> None:
    pictures = list((pages.DOCS / "images").iterdir())
    assert pictures and all(picture.stat().st_size < 200_000 for picture in pictures)
