// What is told of one node, and of the graph that is shown.

function attributeRows(data, node) {
  const told = data.attributes(node).filter(({ type }) => type !== "graph" && type !== "graphs"); // these are links to the bodies
  return told.map(({ name, type, text, isDefault, held }) => {
    const value = held >= 0 ? make("details", {}, make("summary", {}, make("bdi", {}, text)), ...heldParts(data.held[held])) : longText(text);
    const title = isDefault ? "not given: the operator's default" : type;
    return make("tr", { class: isDefault ? "default" : null, title }, make("th", { scope: "row" }, make("bdi", {}, name)),
      make("td", {}, value, isDefault ? " (default)" : ""));
  });
}

function portList(data, links, tensors, empty) {
  if (!tensors.length) return make("p", { class: "quiet" }, empty);
  return make("ol", { class: "ports" }, ...tensors.map((tensor) => {
    if (tensor < 0) return make("li", { class: "quiet" }, "not given");
    const held = data.held[data.tensors.held[tensor]];
    const value = held?.elements === 1 && held.first.length ? [make("span", { class: "quiet" }, " = ", make("bdi", {}, held.first[0]))] : [];
    return make("li", {}, make("span", {}, links.tensor(tensor), ...value));
  }));
}

function neighbours(data, node) {
  const before = new Set([...data.nodes.inputs[node], ...data.nodes.outside[node]].filter((tensor) => tensor >= 0).map((tensor) => data.producer[tensor]));
  const after = new Set(data.nodes.outputs[node].flatMap((tensor) => data.consumers[tensor]));
  before.delete(-1);
  return [[...before], [...after]];
}

function nodePanel(data, links, node) {
  const { nodes } = data;
  const [before, after] = neighbours(data, node);
  const attributes = attributeRows(data, node);
  const metadata = data.metadata(node);
  const parts = [
    make("p", { class: "kind" }, make("bdi", {}, nodes.operator[node])),
    make("h1", {}, make("bdi", {}, nodes.name[node] || "(no name)")),
  ];
  const summary = document.querySelector(`[data-operator="${CSS.escape(nodes.operator[node])}"]`)?.title;
  if (summary) parts.push(make("p", { class: "quiet small" }, summary));
  if (nodes.precision[node]) parts.push(factTable(factRow("Asked precision", make("b", {}, nodes.precision[node]))));
  if (nodes.bodies[node].length) parts.push(make("h2", {}, "Inside"), links.list(nodes.bodies[node], (scope) => links.scopeLink(scope, data.bodyName(scope))));
  if (attributes.length) parts.push(make("h2", {}, "Attributes"), factTable(...attributes));
  parts.push(make("h2", {}, "Inputs"), portList(data, links, nodes.inputs[node], "none"));
  if (nodes.outside[node].length) parts.push(make("h2", {}, "Read by its bodies"), portList(data, links, nodes.outside[node], ""));
  parts.push(make("h2", {}, "Outputs"), portList(data, links, nodes.outputs[node], "none"));
  if (before.length) parts.push(make("h2", {}, `Before it: ${count(before.length)}`), links.list(before, (one) => links.node(one)));
  if (after.length) parts.push(make("h2", {}, `After it: ${count(after.length)}`), links.list(after, (one) => links.node(one)));
  if (nodes.doc[node]) parts.push(make("h2", {}, "Doc"), longText(nodes.doc[node], 400));
  if (metadata.length) parts.push(make("h2", {}, "Metadata"), factTable(...metadata.map(([name, value]) => factRow(name, longText(value)))));
  return parts;
}

// A body or a function: what goes in and out, and who calls it.
function scopePanel(data, links, scope) {
  const { terminals, graph, doc, address, length } = data.scopes[scope];
  const parts = [
    make("p", { class: "kind" }, data.scopes[scope].parent < 0 ? "function" : "body"),
    make("h1", {}, make("bdi", {}, address)),
    make("p", { class: "quiet" }, `${count(length)} node${length === 1 ? "" : "s"}`),
    make("h2", {}, "Inputs, and what it reads from outside"), portList(data, links, terminals.slice(0, graph.inputs.length), "none"),
    make("h2", {}, "Outputs"), portList(data, links, terminals.slice(graph.inputs.length), "none"),
    make("h2", {}, `Opened from ${count(data.callers[scope].length)}`), links.list(data.callers[scope], (node) => links.node(node)),
  ];
  if (doc) parts.push(make("h2", {}, "Doc"), longText(doc, 400));
  return parts;
}
