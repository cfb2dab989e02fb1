# The commands of daily work. `just` lists the recipes; each is a line of shell that works without just, too.

python := env_var_or_default("PYTHON", ".venv/bin/python")
bin := parent_directory(python)

[private]
default:
    @just --list

# Install the package with all that tests need
setup:
    python3 -m venv .venv
    {{bin}}/pip install -e '.[dev]'

# Lint, format, types, imports: what a change must pass before it is committed
check:
    {{bin}}/ruff check .
    {{bin}}/ruff format --check .
    {{bin}}/lint-imports
    {{bin}}/mypy

# The quick tests, or those of what is named: `just test tests/graph`
test *names:
    {{bin}}/pytest {{names}}

# The expensive tests whose finding a cheaper one repeats
thorough:
    {{bin}}/pytest -m thorough

# The long attacks
slow:
    {{bin}}/pytest -m slow

# Build the documentation into site/, and check its links: needs `pip install -e '.[docs]'`
docs:
    {{bin}}/mkdocs build --strict

# Take the pictures of the documentation again, from real runs: needs Chromium
pictures:
    {{python}} docs/screenshots.py

# Plant faults in the modules that differ from main, or in those that are named
mutate *modules:
    {{python}} -m tests.mutation {{modules}}

# Put imports in order and format
fix:
    {{bin}}/ruff check --fix .
    {{bin}}/ruff format .
