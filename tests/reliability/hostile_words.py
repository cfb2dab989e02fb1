"""Hostile words, values and structures, and recipes with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

PIPELINES = Path(__file__).parents[2] / "pipelines"

WORDS = (
    "", " ", "\n", "\0", "\x1b[2J\x1b]0;title\x07", "a\nerror: forged", "\u202egnp.exe", "<script>alert(1)</script>",
    "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "~", "~root", "-", "--help", ".",
    "..", "/", "//", "C:\\", "file:///etc/passwd", "http://", "https://[", "s3://", "pypi:", "pypi:a==1/../../x",
    "package:os/../../x", "package:/x", "new:", "new:99999", "new:-1", "${oc.env:HOME}", "${oc.env:SECRET}",
    "${oc.env:}", "${", "${}", "${a}", "${name}", "${steps}", "${.}", "${..}", "${...steps}", "${${name}}",
    "${oc.decode:${name}}", "${oc.create:{a: 1}}", "${oc.select:steps}", "${oc.dict.values:steps}", "${hydra:x}",
    "${now:%s}", "${python_version:}", "???", "_target_", "__class__", "__import__('os').system('id')", "a" * 300,
    "a" * 20_000, "1e999 min", "-5 s", "5 %%", "nan", ".inf", "-.inf", "1e999", "9**9**9", "9" * 400, "0x" + "f" * 90,
    "/(a|aa)+$/", "/((a{1000}){1000}){1000}/", "/(/", "/a{99999999999999999999}/", "**/**/**", "/**", "[", "*" * 50,
    "(" * 300, "a.b.c.d", "speed.latency.median <= 1", "1 <= 1", "x.y <= " + "(" * 200, "a.b < 9**9**9", "\\",
    "range(0,1e18)", "range(0,10,0)", "range(9,1)", "choice(", "choice()", "interval(1,0)", "interval(nan,1)",
    "glob(*)",
    "1,2,3", "shuffle(1,2)", "sort(3,1)", "tag(log,interval(0,1))", "a=b", "~a", "+a", "@x", "a@b:c", "\ud800",
    "\ufeff",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 2**64, 10**90, -(10**90), 0.0, -0.0, 1e308, 1e-320, float("nan"), float("inf"),
    float("-inf"), [], {}, [[]], [None], {"": None}, {"a": {"a": {"a": 1}}}, {"source": "m.onnx", "sha256": "0" * 64},
    {"from": 0, "to": 10**18}, {"from": 1, "to": 0}, {"from": 0, "to": 1, "log": True}, {"from": 0, "to": 1, "step": 0},
    {"from": 0, "to": float("inf")}, {"from": 0, "to": 1, "step": 1e-300}, [0] * 500, {"_target_": "os.system"},
    {"step": "lint", "from": "source"}, {"step": "run_tool"}, {"x": {"shape": [2**40, 2**40]}},
)  # fmt: skip

KEYS = (
    "",
    "a",
    "1",
    "steps",
    "from",
    "step",
    "_target_",
    "__class__",
    "a.b",
    "a b",
    "\n",
    "../x",
    "<<",
    "hydra",
    "x" * 300,
)

words = st.sampled_from(WORDS) | st.text(max_size=20)
values = st.recursive(
    st.sampled_from(VALUES) | words | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | words, inner, max_size=3),
    max_leaves=5,
)


def read_pipelines() -> list[dict[str, Any]]:
    """The project's own recipes as plain data."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(PIPELINES.glob("*.yaml"))]


def _places(data: object, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value inside plain data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in inner for place in [(*above, key), *_places(value, (*above, key))]]


def _delete(holder: Any, key: Any, _: object) -> None:
    del holder[key]


def _replace(holder: Any, key: Any, value: object) -> None:
    holder[key] = value


def _rename(holder: Any, key: Any, value: object) -> None:
    holder[value if isinstance(holder, dict) and isinstance(value, str) else key] = holder.pop(key)


def _repeat(holder: Any, key: Any, _: object) -> None:
    if isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[f"{key}_"] = holder[key]


def _nest(holder: Any, key: Any, _: object) -> None:
    holder[key] = [holder[key]] if isinstance(holder, list) else {"a": holder[key]}


_CHANGES: tuple[Callable[[Any, Any, object], None], ...] = (_delete, _replace, _replace, _rename, _repeat, _nest)


@st.composite
def changed_recipes(draw: st.DrawFn, recipes: list[dict[str, Any]]) -> dict[str, Any]:
    """One of some recipes after one to three changes."""
    recipe: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(recipes)))
    for _ in range(draw(st.integers(1, 3))):
        places = _places(recipe)
        if places:
            *way, key = draw(st.sampled_from(places))
            holder: Any = recipe
            for word in way:
                holder = holder[word]
            change = draw(st.sampled_from(_CHANGES))
            if not (change is _rename and isinstance(holder, list)):
                change(holder, key, draw(values))
    return recipe


def as_yaml(recipe: object) -> str:
    """Any plain data as YAML text."""
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
