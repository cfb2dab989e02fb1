"""The results of `ndld-flow inspect` on a terminal, with the tree of subgraphs and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ndld_flow.base.quantities import count, counted, number, size
from ndld_flow.base.text import first_of, short_name
from ndld_flow.cli.tables import TerminalTable, wide_console
from ndld_flow.records.inspection import (
    Dims,
    InspectedNode,
    InspectedTensor,
    Inspection,
    ModelSummary,
    Numbers,
    Port,
    WeightGroup,
)
from ndld_flow.report.tables import Column, Table, Value

_MOST_ROWS = 16


def bodies_table(addresses: Sequence[str], nodes: Mapping[str, int]) -> RenderableType:
    """Return a table of graphs, each below its parent. Graphs that are too deep are counted in their parent's row."""
    owners = _owners(addresses)
    shown = _outermost(addresses, owners)
    hidden_in = {
        address: next(owner for owner in _owners_of(address, owners) if owner in shown)
        for address in addresses
        if address not in shown
    }
    rows = []
    for address in shown[:_MOST_ROWS]:
        above = _owners_of(address, owners)
        name = address.removeprefix(f"{above[0]}/") if above else address
        hidden = [other for other, owner in hidden_in.items() if owner == address]
        held = sum(nodes.get(graph, 0) for graph in (address, *hidden))
        inside = f"with {count(len(hidden))} inside" if hidden else ""
        rows.append((f"{'  ' * len(above)}{short_name(name, _NAME)}", held, inside))
    table = TerminalTable(Table((Column("graph", "name"), Column("nodes", "number", count), Column("")), tuple(rows)))
    if len(shown) <= _MOST_ROWS:
        return table
    return Group(table, Text(f"{count(len(shown) - _MOST_ROWS)} more; --group-by scope counts them all", style="dim"))


def _owners(addresses: Sequence[str]) -> dict[str, str]:
    """Map each address to that of its parent. Names of nodes may contain slashes too."""
    known, owners = set(addresses), {}
    for address in addresses:
        pieces = address.split("/")
        around = ("/".join(pieces[:end]) for end in range(len(pieces) - 1, 0, -1))
        owner = next((outer for outer in around if outer in known), None)
        if owner is not None:
            owners[address] = owner
    return owners


def _owners_of(address: str, owners: Mapping[str, str]) -> list[str]:
    """Return the ancestors of a graph, innermost first."""
    ancestors: list[str] = []
    while address in owners:
        address = owners[address]
        ancestors.append(address)
    return ancestors


def _outermost(addresses: Sequence[str], owners: Mapping[str, str]) -> list[str]:
    """Return the graphs of the outermost levels that fit a short list; at least one level."""
    depths = {address: len(_owners_of(address, owners)) for address in addresses}
    shown = [address for address in addresses if not depths[address]]
    for depth in range(1, max(depths.values(), default=0) + 1):
        deeper = [address for address in addresses if depths[address] <= depth]
        if len(deeper) > _MOST_ROWS:
            break
        shown = deeper
    return shown


_NAME = 60
_TENSOR = 40
"""Maximum length of a tensor's name in the list of nodes."""
_TYPES = 20
_READERS = 8
_BARS = " ▁▂▃▄▅▆▇█"


def print_inspection(inspection: Inspection) -> None:
    """Print the results of a query."""
    wide_console().print(Group(*_parts(inspection)))


def _parts(inspection: Inspection) -> Iterator[RenderableType]:
    if inspection.summary is not None:
        yield Text(short_name(inspection.model, 100), style="bold")
        yield from _summary(inspection.summary)
    if inspection.nodes is not None:
        yield from ([_one_node(inspection.nodes[0])] if len(inspection.nodes) == 1 else [_node_table(inspection.nodes)])
    if inspection.tensors is not None and len(inspection.tensors) == 1:
        yield _one_tensor(inspection.tensors[0])
    elif inspection.tensors is not None:
        yield _tensor_table(inspection.tensors)
        yield Text(f"{count(len(inspection.tensors))} tensors", style="dim")
    if inspection.groups is not None:
        columns = (Column("", "name"), Column("nodes", "number", count), Column("operators"))
        groups = inspection.groups
        yield _table(
            columns, ((_name(each.value or "main graph"), each.count, _counts(each.op_types)) for each in groups)
        )
    if inspection.weights is not None:
        yield _weight_table(inspection.weights)


def _table(columns: Sequence[Column], rows: Iterable[tuple[Value, ...]]) -> TerminalTable:
    return TerminalTable(Table(tuple(columns), tuple(rows)))


def _texts(rows: Iterable[tuple[str, ...]], *titles: str) -> TerminalTable:
    return _table([Column(title) for title in titles], rows)


def _section(title: str, content: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold cyan"), Padding(content, (0, 0, 0, 2), expand=False))


def _name(text: str) -> str:
    return short_name(text, _NAME) or "-"


def _shape(shape: Dims | None) -> str:
    if shape is None:
        return "?"
    between = " x " if any(isinstance(dim, str) and len(dim) > 1 for dim in shape) else "x"
    return between.join("?" if dim is None else short_name(str(dim), 24) for dim in shape) or "scalar"


def _type(port: Port) -> str:
    return f"{port.dtype or '?'} {_shape(port.shape)}"


def _summary(summary: ModelSummary) -> Iterator[RenderableType]:
    opsets = ", ".join(f"{short_name(domain, 40)} {version}" for domain, version in summary.opsets.items())
    by = f"; made by {short_name(summary.producer, 60)}" if summary.producer else ""
    yield Text(f"opset {opsets}; IR version {summary.ir_version}{by}", style="dim")
    for title, ports in (("inputs", summary.inputs), ("outputs", summary.outputs)):
        yield _section(title, _texts(((_name(port.name), _type(port)) for port in ports), "", ""))
    yield _section(counted(summary.node_count, "node"), Text(_counts(summary.nodes_by_type)))
    if summary.precisions:
        yield _section("precision constraints", Text(_counts(summary.precisions)))
    if summary.weights_by_dtype:
        yield _section("weights", _weight_table(summary.weights_by_dtype))
        yield _section("largest", _tensor_table(summary.largest))
    for title, names in (("subgraph", summary.subgraphs), ("function", summary.functions)):
        if names:
            yield _section(counted(len(names), title), bodies_table(names, summary.nodes_by_graph))
    yield from _data_sections(summary)
    if summary.metadata:
        yield _section(
            "metadata", Text("\n".join(f"{short_name(k)}: {short_name(v)}" for k, v in summary.metadata.items()))
        )


def _data_sections(summary: ModelSummary) -> Iterator[RenderableType]:
    """Yield the files of external data, and the weights without data."""
    if summary.files:
        rows = (
            (
                _name(file.location),
                "no data" if file.size_bytes is None else size(file.size_bytes),
                f"{count(file.tensors)} tensors",
            )
            for file in summary.files
        )
        yield _section("external data", _texts(rows, "", "", ""))
    if summary.without_data:
        yield _section("without data (sizes by their shapes)", _weight_table(summary.without_data, "reason"))


def _counts(counted: Mapping[str, int]) -> str:
    return first_of([f"{short_name(name, 40)} {count(number_of)}" for name, number_of in counted.items()], _TYPES)


def _some(names: Sequence[str], most: int) -> str:
    return first_of([short_name(name, _NAME) for name in names], most)


def _node_table(nodes: Sequence[InspectedNode]) -> Group:
    columns = tuple(Column(title) for title in ("node", "operator", "attributes", "inputs", "outputs"))
    rows = tuple(
        (
            _name(_placed(node.scope, node.name)),
            short_name(node.op_type, 30),
            " ".join(f"{short_name(name, 30)}={short_name(text, 24)}" for name, text in node.attributes.items()),
            "\n".join(f"{short_name(port.name, _TENSOR)}: {_shape(port.shape)}" for port in node.inputs if port.name),
            "\n".join(f"{short_name(port.name, _TENSOR)}: {_type(port)}" for port in node.outputs if port.name),
        )
        for node in nodes
    )
    table = TerminalTable(Table(columns, rows), optional=("inputs", "attributes"))
    return Group(table, Text(f"{count(len(nodes))} nodes", style="dim"))


def _placed(scope: str, name: str) -> str:
    return f"{scope}: {name}" if scope else name


def _one_node(node: InspectedNode) -> Group:
    about = f" in {short_name(node.scope)}" if node.scope else ""
    asked = f"; precision constraint {short_name(node.precision, 20)}" if node.precision else ""
    parts: list[RenderableType] = [
        Text(f"{short_name(node.name)}: {short_name(node.op_type)}{about}{asked}", style="bold")
    ]
    if node.attributes:
        attributes = ((_name(name), short_name(text, 400)) for name, text in node.attributes.items())
        parts.append(_section("attributes", _texts(attributes, "", "")))
    inputs = (
        (str(index), _name(port.name), _type(port) if port.name else "", _name(port.made_by))
        for index, port in enumerate(node.inputs)
    )
    outputs = (
        (str(index), _name(port.name), _type(port), _some(port.read_by, _READERS) or "nothing")
        for index, port in enumerate(node.outputs)
    )
    parts.append(_section("inputs", _texts(inputs, "", "tensor", "type", "made by")))
    parts.append(_section("outputs", _texts(outputs, "", "tensor", "type", "read by")))
    if node.subgraphs:
        parts.append(_section("bodies", Text(_some(node.subgraphs, 12))))
    return Group(*parts)


def _tensor_table(tensors: Sequence[InspectedTensor]) -> TerminalTable:
    with_sizes = any(tensor.size_bytes is not None for tensor in tensors)
    with_numbers = any(tensor.numbers is not None or tensor.unread for tensor in tensors)
    sizes = (Column("size", "number", size), Column("stored")) if with_sizes else ()
    numbers = tuple(Column(title, "number") for title in _NUMBERS) if with_numbers else ()
    columns = (Column("tensor", "name"), Column("kind", "label"), Column("type"), *sizes, *numbers)
    rows = tuple(
        (
            short_name(_placed(tensor.scope, tensor.name), _NAME),
            tensor.role,
            _type(tensor),
            *((tensor.size_bytes, _stored(tensor)) if with_sizes else ()),
            *(_number_cells(tensor.numbers) if with_numbers else ()),
        )
        for tensor in tensors
    )
    where = () if any(tensor.no_data for tensor in tensors) else ("stored",)
    return TerminalTable(Table(columns, rows), optional=(*where, "kind", "std", "mean", "not finite", "zeros"))


def _stored(tensor: InspectedTensor) -> str:
    """Return the place of a weight's data, or that there are none."""
    where = short_name(tensor.file or tensor.stored or "", _NAME)
    return f"no data: {tensor.no_data}" if tensor.no_data else where


_NUMBERS = ("min", "max", "mean", "std", "zeros", "not finite")


def _number_cells(numbers: Numbers | None) -> list[str]:
    if numbers is None:
        return ["-"] * len(_NUMBERS)
    values = (numbers.minimum, numbers.maximum, numbers.mean, numbers.std)
    cells = ["-" if value is None else number(value) for value in values]
    return [*cells, count(numbers.zeros), count(numbers.nans + numbers.infinities)]


def _one_tensor(tensor: InspectedTensor) -> Group:
    about = f" in {short_name(tensor.scope)}" if tensor.scope else ""
    lines = [f"made by  {short_name(tensor.made_by)}", f"read by  {_some(tensor.read_by, _READERS) or 'nothing'}"]
    if tensor.size_bytes is not None:
        where = f"{tensor.file} at {count(tensor.offset or 0)}" if tensor.file else tensor.stored or ""
        lines.append(f"size     {size(tensor.size_bytes)}, {count(tensor.elements or 0)} elements, {short_name(where)}")
    if tensor.no_data:
        lines.append(f"data     none: {tensor.no_data}")
    title = Text(f"{short_name(tensor.name)}: {tensor.role}, {_type(tensor)}{about}", style="bold")
    return Group(title, Text("\n".join([*lines, *_number_lines(tensor)])))


def _number_lines(tensor: InspectedTensor) -> Iterator[str]:
    numbers = tensor.numbers
    if numbers is not None:
        low, high, mean, std = _number_cells(numbers)[:4]
        odd = f", {count(numbers.nans)} NaN, {count(numbers.infinities)} infinite"
        yield f"values   {low} to {high}, mean {mean}, std {std}, {count(numbers.zeros)} zeros{odd}"
        if len(numbers.histogram) > 1:
            most = max(numbers.histogram)
            bars = (_BARS[-(-value * (len(_BARS) - 1) // most)] for value in numbers.histogram)
            yield f"spread   {''.join(bars)}"
    elif tensor.unread:
        yield f"values   {tensor.unread}"
    if tensor.first:
        shown = ", ".join(
            number(value) if isinstance(value, float) else short_name(str(value), 40) for value in tensor.first
        )
        more = ", ..." if (tensor.elements or 0) > len(tensor.first) else ""
        yield f"first    {shown}{more}"


def _weight_table(weights: Mapping[str, WeightGroup], title: str = "dtype") -> TerminalTable:
    numbers = (Column("tensors", "number", count), Column("elements", "number", count), Column("size", "number", size))
    rows = tuple((dtype, group.count, group.elements, group.size_bytes) for dtype, group in weights.items())
    return TerminalTable(Table((Column(title, "label"), *numbers), rows))
