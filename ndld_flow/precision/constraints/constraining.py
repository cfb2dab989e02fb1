"""Write precision constraints into a model, which changes nothing else of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.models.files import check_model, load_model, save_model, summarize_model
from ndld_flow.models.node_precision import constraints_of, precision_of
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.precision.constraints.constraints import check_precision
from ndld_flow.precision.constraints.found_nodes import match_found
from ndld_flow.precision.constraints.selection import Rule, select_all
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.precision import PRECISION_KEY
from ndld_flow.records.precision_search import PrecisionSearch

_SHOWN = 20
"""So many problems are told; more would bury them."""
_NAMED = 3
"""So many nodes are named for each precision, and twice as many operators."""


@dataclass(frozen=True)
class Constrained:
    """A model's constraints after they were written."""

    change: GraphChange
    constraints: Mapping[str, str]
    """Node -> precision."""

    @property
    def counts(self) -> dict[str, int]:
        """Precision -> how many nodes, most first."""
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

    What a search found gets its precision after all rules.

    `keep` leaves constraints that are there already; `allow_empty` makes a note of rules that select nothing.
    Raises `RequestError` with all such rules otherwise, and `ModelError` for a model that cannot be read.
    """
    model = load_model(source)
    try:
        before = summarize_model(model)
        notes = _name_nodes(model)
        chosen, problems = select_all(model, rules)
        if found is not None:
            chosen |= dict.fromkeys(match_found(model, found), found.kept_precision)
    except (LookupError, TypeError, ValueError, AttributeError):
        check_model(source, full_check=True)
        raise
    if problems and not allow_empty:
        raise RequestError(_listed(problems))
    constraints = _write(model, chosen, keep)
    save_model(model, target)
    change = GraphChange(before=before, after=summarize_model(model), notes=(*notes, *_tell(model), *problems))
    return Constrained(change, constraints)


def _name_nodes(model: ir.Model) -> list[str]:
    """Every node gets a name of its own: a constraint is known by it."""
    named = UniqueNames(model).name_all(model)
    return [f"gave {named} nodes a name of their own"] if named else []


def _write(model: ir.Model, chosen: Mapping[ir.Node, str], keep: bool) -> dict[str, str]:
    """Put constraints into metadata and return all that are there then."""
    for node in model.graph.all_nodes():
        precision = chosen.get(node, precision_of(node) if keep else "none") or "none"
        if precision == "none":
            node.metadata_props.pop(PRECISION_KEY, None)
        else:
            check_precision(precision, node.name or "")
            node.metadata_props[PRECISION_KEY] = precision
    return constraints_of(model)


def _tell(model: ir.Model) -> Iterator[str]:
    """`fp32: 3 Softmax, 1 Exp (a, b, c and 1 more)`, a sentence for each precision."""
    asked: dict[str, list[ir.Node]] = defaultdict(list)
    for node in model.graph.all_nodes():
        if precision_of(node):
            asked[precision_of(node)].append(node)
    for precision, nodes in asked.items():
        operators = [f"{count(times)} {name}" for name, times in Counter(map(op_name, nodes)).most_common()]
        names = [short_name(node.name or "", 60) for node in nodes]
        yield f"{precision}: {_first(operators, 2 * _NAMED)} ({_first(names, _NAMED)})"


def _first(texts: Sequence[str], most: int) -> str:
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {count(rest)} more" if rest > 0 else "")


def _listed(problems: Sequence[str]) -> str:
    rest = len(problems) - _SHOWN
    return "\n".join([*problems[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])
