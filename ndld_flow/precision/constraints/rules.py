"""Precision rules and results of a precision search: the nodes that they select, and constraints written into a model.

A name selects its node regardless of its operator, an operator all its nodes that support the precision, and a pattern
those that `convert_fp16` would convert as well: no node that is known to need more than fp16. Rules may come from a
list of `name:precision`, in the format of TAO and trtexec.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import count, counted
from ndld_flow.base.text import first_of, short_name, suggest
from ndld_flow.models.element_types import element_of, infer_types, is_known_op, is_op, known_op_types
from ndld_flow.models.files import blaming_model, load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.nodes import FLOATING, INTEGERS, UniqueNames, constraints_of, op_name, precision_of
from ndld_flow.precision.constraints.constraints import check_precision
from ndld_flow.precision.constraints.typed_model import CALLS_FUNCTION
from ndld_flow.precision.fp16.choice import keep_shape_arithmetic, why_sensitive
from ndld_flow.precision.type_groups import ALL_FLOATS, group_places
from ndld_flow.records.document import read_document
from ndld_flow.records.layer_arithmetic import PRECISION_KEY, PRECISIONS
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch


def first_output(node: ir.Node) -> str:
    """Return the name of the first output that has one."""
    return next((value.name for value in node.outputs if value.name), "")


def read_search_result(path: Path) -> PrecisionSearch:
    """Read the result of a search. Raises `RequestError` for any other file."""
    try:
        return read_document(PrecisionSearch, path)
    except ValidationError as error:
        raise RequestError(f"{path} is not the result of a precision search: {error.errors()[0]['msg']}.") from None


def refuse_other_precision(search: PrecisionSearch, wanted: str, step: str) -> None:
    """Raise a `RequestError` if a search was for another precision than the step converts to."""
    if search.precision != wanted:
        raise RequestError(
            f"`found_by`: the search was for {search.precision}, but {step} converts to {wanted}, and each precision "
            f"breaks other nodes. Search with `precision: {wanted}`."
        )


def settings_notes(search: PrecisionSearch, model: str, settings: Mapping[str, object]) -> list[str]:
    """Return notes on settings that differ from the search's, whose set may then be wrong."""
    notes = [
        f"found_by: the search had `{name}: {_yaml(theirs)}`, but this step has {_yaml(settings[name])}: the nodes "
        "found may not be enough"
        for name, theirs in search.settings.items()
        if name in settings and settings[name] != theirs
    ]
    if search.model != model:
        notes.append(f"found_by: the search ran on the model of {search.model}, but this is the model of {model}")
    if not search.passed:
        notes.append("found_by: the search found no set that meets its bound; this is the best one it tried")
    return notes


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def reasons_of_found(model: ir.Model, search: PrecisionSearch) -> dict[ir.Node, str]:
    """Return the nodes of `model` that a search keeps -> why. Raises `RequestError` if one is missing."""
    return {
        node: f"found by search: {kept.cause}, {kept.evidence[0].sentence}"
        for kept in search.kept
        for node in _matching(model, search, kept)
    }


def find_kept_nodes(model: ir.Model, search: PrecisionSearch) -> list[ir.Node]:
    """Return the nodes of `model` that a search keeps, bodies included: by operator and first output, then by name.

    Raises `RequestError` if one is missing.
    """
    return list(reasons_of_found(model, search))


def _matching(model: ir.Model, search: PrecisionSearch, kept: KeptNode) -> list[ir.Node]:
    same_type = [node for node in model.graph.all_nodes() if op_name(node) == kept.op_type]
    output = next((name for name in kept.outputs if name), "")
    by_output = [node for node in same_type if output and first_output(node) == output]
    matching = by_output or [node for node in same_type if kept.node and node.name == kept.node]
    if not matching:
        near = suggest(kept.node, [node.name for node in same_type if node.name])
        here = near.replace("known:", "this one has", 1) if same_type else f"this one has no {kept.op_type}"
        raise RequestError(
            f"`found_by`: the search ran on the model of {search.model}, and its {kept.op_type} "
            f'"{short_name(kept.node or output)}" is not in the model of this step; {here or "none has a name"}. '
            "Give both steps the same `from`."
        )
    return matching


_NARROW = ("fp16", "bf16")
_SETS_TYPE = "its type is set explicitly"
_NO_FLOATS = "it has no floating-point tensors"


@dataclass(frozen=True)
class Rule:
    """A precision for the nodes of a name, a pattern or an operator."""

    where: str
    """Its origin: `layers`, `op_types`, `list.txt:3`."""
    by: Literal["name", "operator"]
    pattern: str
    precision: str
    """One of `records.precision.PRECISIONS`, or `none`, which removes a constraint."""


@dataclass(frozen=True)
class Selected:
    """The nodes that a rule selects."""

    nodes: tuple[ir.Node, ...]
    problem: str = ""
    """Reason why there are none, with the nearest valid name; empty if there are some."""


class NodeSelector:
    """Selects nodes of one model, subgraphs included."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._nodes = list(model.graph.all_nodes())
        self._types = infer_types(model)
        self._obstacles: dict[str, dict[ir.Node, str]] = {}

    def select(self, rule: Rule) -> Selected:
        """Return the nodes that a rule selects, and the reason if there are none."""
        matching = self._matching(rule)
        if not matching:
            return Selected((), f"{rule.where}: {self._no_match_problem(rule)}")
        named = tuple(node for node in matching if rule.by == "name" and node.name == rule.pattern)
        if named or rule.precision == "none":
            return Selected(named or tuple(matching))
        if rule.precision not in self._obstacles:
            by_type = self._not_integer if rule.precision in INTEGERS else self._not_floating
            self._obstacles[rule.precision] = by_type(rule.precision)
        obstacles = self._obstacles[rule.precision]
        if rule.by == "name" and rule.precision in _NARROW:
            obstacles = {node: why for node in matching if (why := why_sensitive(node))} | obstacles
        able = [node for node in matching if node not in obstacles]
        if able:
            return Selected(tuple(able))
        example = next((node for node in matching if obstacles[node] not in (_SETS_TYPE, _NO_FLOATS)), matching[0])
        fits = f"{rule.pattern!r} matches {counted(len(matching), 'node')}, but none that supports {rule.precision}"
        return Selected((), f"{rule.where}: {fits}; {example.name!r}: {obstacles[example]}")

    def _matching(self, rule: Rule) -> list[ir.Node]:
        if rule.by == "operator":
            return [node for node in self._nodes if op_name(node) == rule.pattern]
        fits = name_matcher(rule.pattern)
        return [node for node in self._nodes if fits(node.name or "")]

    def _no_match_problem(self, rule: Rule) -> str:
        if rule.by == "name":
            near = suggest(rule.pattern, (node.name or "" for node in self._nodes))
            return f"no node of this model has a name like {rule.pattern!r}: {near}"
        domain, _, name = rule.pattern.rpartition("::")
        if is_known_op(name, domain):
            return f"this model has no {rule.pattern}"
        near = suggest(rule.pattern, [*map(op_name, self._nodes), *known_op_types()])
        return f"there is no operator {rule.pattern!r}: {near}"

    def _not_integer(self, precision: str) -> dict[ir.Node, str]:
        element = INTEGERS[precision].name.lower()
        producers = {n for n in self._nodes if any(element_of(self._types.get(v, "")) == element for v in n.outputs)}
        return {node: f"it has no {precision} output" for node in self._nodes if node not in producers}

    def _not_floating(self, precision: str) -> dict[ir.Node, str]:
        """Return the nodes that a conversion would not change; int8, fp8 and int4 are possible for any node with
        floats."""
        dtype = FLOATING.get(precision)
        groups = group_places(self._model, self._types, True, lambda node: dtype, ALL_FLOATS)
        if precision in _NARROW:
            keep_shape_arithmetic(self._model, groups)
        of_node = groups.of_node()
        obstacles: dict[ir.Node, str] = {}
        for node in self._nodes:
            members = of_node.get(node, [])
            if is_op(node, "Cast", "CastLike", "Constant"):
                obstacles[node] = _SETS_TYPE
            elif node.op_identifier() in self._model.functions:
                obstacles[node] = CALLS_FUNCTION
            elif not members:
                obstacles[node] = _NO_FLOATS
            elif all(group.kept for group in members):
                obstacles[node] = members[0].kept
        return obstacles


def apply_rules(model: ir.Model, rules: Sequence[Rule]) -> tuple[dict[ir.Node, str], list[str]]:
    """Return node -> the precision of the last rule that selects it; and the problems of rules without nodes."""
    selection = NodeSelector(model)
    chosen: dict[ir.Node, str] = {}
    problems = []
    for rule in rules:
        selected = selection.select(rule)
        chosen |= dict.fromkeys(selected.nodes, rule.precision)
        if selected.problem:
            problems.append(selected.problem)
    return chosen, problems


_SHOWN = 20
"""Maximum number of problems that are listed."""
_NAMED = 3
"""Maximum number of nodes named per precision, and of half the operators."""


@dataclass(frozen=True)
class Constrained:
    """The result of writing constraints into a model."""

    change: GraphChange
    constraints: Mapping[str, str]
    """Node -> precision."""

    @property
    def counts(self) -> dict[str, int]:
        """Precision -> number of nodes, the most frequent first."""
        return dict(Counter(self.constraints.values()).most_common())


def constrain_file(
    source: Path,
    target: Path,
    rules: Sequence[Rule],
    keep: bool,
    allow_empty: bool,
    found: PrecisionSearch | None = None,
) -> Constrained:
    """Write `source` with the rules' constraints to `target`; later rules win. Weights on disk are not read.

    The nodes that a search `found` get its precision after all rules. `keep` preserves existing constraints;
    `allow_empty` turns rules that select nothing into notes. Raises `RequestError` with all such rules otherwise, and
    `ModelError` for a model that cannot be read.
    """
    model = load_model(source)
    with blaming_model(source):
        before = summarize_model(model)
        named = UniqueNames(model).name_all(model)  # a name identifies the constraint of its node
        notes = repairs_of(model) + ([f"{counted(named, 'node')} got unique names"] if named else [])
        chosen, problems = apply_rules(model, rules)
        if found is not None:
            chosen |= dict.fromkeys(find_kept_nodes(model, found), found.kept_precision)
    if problems and not allow_empty:
        rest = len(problems) - _SHOWN
        raise RequestError("\n".join([*problems[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]))
    for node in model.graph.all_nodes():
        precision = chosen.get(node, precision_of(node) if keep else "none") or "none"
        if precision == "none":
            node.metadata_props.pop(PRECISION_KEY, None)
        else:
            check_precision(precision, node.name or "")
            node.metadata_props[PRECISION_KEY] = precision
    constraints = constraints_of(model)
    save_model(model, target)
    change = GraphChange(
        before=before, after=summarize_model(model), notes=(*notes, *_constraint_notes(model), *problems)
    )
    return Constrained(change, constraints)


def _constraint_notes(model: ir.Model) -> Iterator[str]:
    """Yield a note for each precision: `fp32: 3 Softmax, 1 Exp (a, b, c and 1 more)`."""
    nodes_by_precision: dict[str, list[ir.Node]] = defaultdict(list)
    for node in model.graph.all_nodes():
        if precision_of(node):
            nodes_by_precision[precision_of(node)].append(node)
    for precision, nodes in nodes_by_precision.items():
        operators = [f"{count(times)} {name}" for name, times in Counter(map(op_name, nodes)).most_common()]
        names = [short_name(node.name or "", 60) for node in nodes]
        yield f"{precision}: {first_of(operators, 2 * _NAMED)} ({first_of(names, _NAMED)})"


_COMMENT = re.compile(r"(^|\s)#.*")
_KNOWN = (*PRECISIONS, "none")


def read_precision_list(path: Path) -> tuple[Rule, ...]:
    """Return the entries in the file's order: one per line, or several separated by commas; `#` starts a comment.

    A name or glob may contain colons: the last one ends it.

    Raises `RequestError` for a file that cannot be read, and one for all invalid entries together.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path}: the list of precisions cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: this is not a list of precisions: it is not UTF-8 text.") from None
    entries = [
        Rule(f"{path}:{number}", "name", name.strip(), precision.strip().lower())
        for number, line in enumerate(text.splitlines(), 1)
        for entry in (part.strip() for part in _COMMENT.sub("", line).split(",") if part.strip())
        for name, _, precision in (entry.rpartition(":"),)
    ]
    problems: list[str] = []
    for entry in entries:
        if not entry.pattern:
            problems.append(f"{entry.where}: {entry.precision!r} is not `name:precision`")
        elif entry.precision not in _KNOWN:
            near = suggest(entry.precision, _KNOWN)
            problems.append(f"{entry.where}: {entry.pattern!r} has no precision {entry.precision!r}; {near}")
    if problems:
        raise RequestError("\n".join(problems))
    return tuple(entries)
