// The panel about a node, a tensor or a scope of a model, with links between them.

/** @import { ModelData, ModelPlaces } from "./data.js" */

import { all, draw, make, shortened } from "../elements.js";
import { count, counted, share, size } from "../quantities.js";

// Links from one part of a model to another: real links, so that they can be copied or opened in another tab.

export class ModelLinks {
  /**
   * @param {ModelData} data
   * @param {ModelPlaces} places
   */
  constructor(data, places) {
    this.data = data;
    this.places = places;
    this.scope = 0; // the one that is shown
  }

  /**
   * @param {{scope: number, node?: number, tensor?: number}} place
   * @param {string} text
   */
  to(place, text, title = "") {
    return make("a", { href: this.places.write(place), title: title || null }, make("bdi", {}, shortened(text, 80)));
  }

  /** @param {number} node */
  node(node) {
    const { data } = this;
    const scope = data.scopeOf[node];
    const link = this.to({ scope, node }, data.nameOf(node), data.nameOf(node));
    const where = scope === this.scope ? [] : [" in ", make("bdi", {}, shortened(data.scopes[scope].address || "the model", 60))];
    return make("span", {}, link, " ", make("span", { class: "quiet" }, make("bdi", {}, data.nodes.operator[node]), ...where));
  }

  /** @param {number} tensor */
  tensor(tensor) {
    const { data } = this;
    const link = this.to({ scope: this.scope, tensor }, data.tensors.name[tensor] || "(no name)", data.tensors.name[tensor]);
    return make("span", {}, link, " ", make("span", { class: "quiet" }, make("bdi", {}, data.tensorText(tensor))));
  }

  /** @param {number} scope */
  scopeLink(scope, text = this.data.scopes[scope].address || "model") {
    return this.to({ scope }, text);
  }

  /**
   * A limited number at first, the rest on demand.
   * @param {number[]} items
   * @param {(entry: number) => Node} item
   */
  list(items, item, most = 12) {
    const list = make("ul", {}, ...items.slice(0, most).map((entry) => make("li", {}, item(entry))));
    if (items.length <= most) return list;
    const more = make("button", { type: "button", onclick: () => {
      more.remove();
      list.append(...items.slice(most, 2000).map((entry) => make("li", {}, item(entry))));
    } }, `${count(items.length - most)} more`);
    return make("div", {}, list, more);
  }
}

/**
 * @param {string} name
 * @param {...(Node | string)} value
 */
const factRow = (name, ...value) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), make("td", {}, ...value));

/** @param {...Node} rows */
const factTable = (...rows) => make("table", { class: "facts" }, make("tbody", {}, ...rows));

/**
 * A long text that is folded at first.
 * @param {string} text
 */
function longText(text, limit = 140) {
  if (text.length <= limit) return make("bdi", {}, text);
  const shown = make("bdi", {}, `${text.slice(0, limit)}…`);
  const more = make("button", { type: "button", onclick: () => {
    shown.textContent = text;
    more.remove();
  } }, "show all");
  return make("span", {}, shown, " ", more);
}

// Facts about one tensor: producer, consumers and values.

/** @param {number | null | undefined} value */
function significant(value) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6)));
}

/** @param {HeldTensor} held */
function histogram(held) {
  const { histogram: counts = [], minimum, maximum } = held.numbers ?? {};
  if (counts.length < 2) return null;
  const [low, high] = [Number(minimum), Number(maximum)];
  const most = Math.max(...counts);
  const wide = 10;
  const bars = counts.map((times, place) => {
    const from = low + ((high - low) * place) / counts.length;
    const to = low + ((high - low) * (place + 1)) / counts.length;
    const height = times ? Math.max(1, (60 * times) / most) : 0;
    return draw("rect", { x: place * wide + 0.5, y: 60 - height, width: wide - 1, height }, draw("title", {}, `${significant(from)} to ${significant(to)}: ${count(times)}`));
  });
  const text = `Histogram from ${significant(low)} to ${significant(high)}, the largest of ${counts.length} bars holds ${counted(most, "element")}`;
  return make("figure", { class: "histogram" },
    draw("svg", { viewBox: `0 0 ${counts.length * wide} 61`, role: "img", "aria-label": text, preserveAspectRatio: "none" },
      ...bars, draw("line", { x1: 0, x2: counts.length * wide, y1: 60.5, y2: 60.5 })),
    make("figcaption", {}, make("span", {}, significant(low)), make("span", {}, significant(high))));
}

/**
 * Rows about a tensor that the model holds: size and statistics.
 * @param {HeldTensor} held
 */
function heldRows(held) {
  const rows = [
    factRow("Elements", count(held.elements)),
    factRow("Bytes", held.size_bytes < 1024 ? count(held.size_bytes) : `${count(held.size_bytes)} (${size(held.size_bytes)})`),
  ];
  if (held.where) rows.push(factRow("Stored in", make("bdi", {}, held.where)));
  if (held.unread && !held.numbers) rows.push(factRow("Statistics", `none: ${held.unread}`));
  if (!held.numbers || !held.elements) return rows;
  const { minimum, maximum, mean, std, nans, infinities, zeros } = held.numbers;
  if (held.elements > 1) {
    rows.push(factRow("Range", `${significant(minimum)} to ${significant(maximum)}`), factRow("Mean, deviation", `${significant(mean)}, ${significant(std)}`));
    rows.push(factRow("Zeros", zeros ? `${count(zeros)} (${share(zeros / held.elements)})` : "0"));
  }
  if (nans) rows.push(factRow("NaN", make("b", { class: "bad" }, count(nans))));
  if (infinities) rows.push(factRow("Infinite", make("b", { class: "bad" }, count(infinities))));
  return rows;
}

/**
 * @param {HeldTensor} held
 * @param {...Node} rows
 */
function heldParts(held, ...rows) {
  /** @type {Element[]} */
  const parts = [factTable(...rows, ...heldRows(held))];
  const bars = histogram(held);
  if (bars) parts.push(bars);
  if (held.first.length) {
    const isWhole = held.first.length === held.elements;
    parts.push(make("h3", {}, isWhole ? "Values" : `The first ${counted(held.first.length, "value")}`));
    parts.push(make("pre", { class: "values" }, held.first.join(" ") + (isWhole ? "" : " …")));
  }
  return parts;
}

/**
 * @param {ModelData} data
 * @param {ModelLinks} links
 * @param {number} tensor
 */
export function tensorPanel(data, links, tensor) {
  const { tensors } = data;
  const held = data.held[tensors.held[tensor]];
  const producer = data.producer[tensor];
  const kind = tensors.kind[tensor];
  /** @type {Element[]} */
  const parts = [
    make("p", { class: "kind" }, kind === "computed" ? "tensor" : kind),
    make("h1", {}, make("bdi", {}, tensors.name[tensor] || "(no name)")),
  ];
  const rows = [
    factRow("Dtype", make("bdi", {}, tensors.dtype[tensor] || "not known")),
    factRow("Shape", make("bdi", {}, tensors.dims[tensor] || "not known")),
  ];
  parts.push(...(held ? heldParts(held, ...rows) : [factTable(...rows)]));
  if (producer >= 0) parts.push(make("h2", {}, "Produced by"), links.list([producer], (node) => links.node(node)));
  const readers = data.consumers[tensor];
  parts.push(make("h2", {}, `Read by ${count(readers.length)}`), links.list(readers, (node) => links.node(node)));
  const results = data.scopes.flatMap((scope, place) => scope.terminals.slice(scope.graph.inputs.length).includes(tensor) ? [place] : []);
  if (results.length) parts.push(make("h2", {}, "Output of"), links.list(results, (scope) => links.scopeLink(scope)));
  return parts;
}

// Facts about one node, and about the graph that is shown.

/**
 * @param {ModelData} data
 * @param {number} node
 */
function attributeRows(data, node) {
  const shown = data.nodes.attributes[node].filter(({ type }) => type !== "graph" && type !== "graphs"); // these are links to the bodies
  return shown.map(({ name, type, text, is_default: isDefault, held }) => {
    const value = held >= 0 ? make("details", {}, make("summary", {}, make("bdi", {}, text)), ...heldParts(data.held[held])) : longText(text);
    const title = isDefault ? "not given: the operator's default" : type;
    return make("tr", { class: isDefault ? "default" : null, title }, make("th", { scope: "row" }, make("bdi", {}, name)),
      make("td", {}, value, isDefault ? " (default)" : ""));
  });
}

/**
 * @param {ModelData} data
 * @param {ModelLinks} links
 * @param {number[]} tensors
 * @param {string} empty
 */
function portList(data, links, tensors, empty) {
  if (!tensors.length) return make("p", { class: "quiet" }, empty);
  return make("ol", { class: "ports" }, ...tensors.map((tensor) => {
    if (tensor < 0) return make("li", { class: "quiet" }, "not given");
    const held = data.held[data.tensors.held[tensor]];
    const value = held?.elements === 1 && held.first.length ? [make("span", { class: "quiet" }, " = ", make("bdi", {}, held.first[0]))] : [];
    return make("li", {}, make("span", {}, links.tensor(tensor), ...value));
  }));
}

/**
 * @param {ModelData} data
 * @param {number} node
 */
function neighbours(data, node) {
  const before = new Set([...data.nodes.inputs[node], ...data.nodes.outside[node]].filter((tensor) => tensor >= 0).map((tensor) => data.producer[tensor]));
  const after = new Set(data.nodes.outputs[node].flatMap((tensor) => data.consumers[tensor]));
  before.delete(-1);
  return [[...before], [...after]];
}

/**
 * @param {ModelData} data
 * @param {ModelLinks} links
 * @param {number} node
 */
export function nodePanel(data, links, node) {
  const { nodes } = data;
  const [before, after] = neighbours(data, node);
  const attributes = attributeRows(data, node);
  const metadata = data.nodes.metadata[node];
  /** @type {Element[]} */
  const parts = [
    make("p", { class: "kind" }, make("bdi", {}, nodes.operator[node])),
    make("h1", {}, make("bdi", {}, nodes.name[node] || "(no name)")),
  ];
  const [button] = all(`[data-operator="${CSS.escape(nodes.operator[node])}"]`);
  const summary = button?.title;
  if (summary) parts.push(make("p", { class: "quiet small" }, summary));
  if (nodes.precision[node]) parts.push(factTable(factRow("Requested precision", make("b", {}, nodes.precision[node]))));
  if (nodes.bodies[node].length) parts.push(make("h2", {}, "Inside"), links.list(nodes.bodies[node], (scope) => links.scopeLink(scope, data.bodyName(scope))));
  if (attributes.length) parts.push(make("h2", {}, "Attributes"), factTable(...attributes));
  parts.push(make("h2", {}, "Inputs"), portList(data, links, nodes.inputs[node], "none"));
  if (nodes.outside[node].length) parts.push(make("h2", {}, "Read by its bodies"), portList(data, links, nodes.outside[node], ""));
  parts.push(make("h2", {}, "Outputs"), portList(data, links, nodes.outputs[node], "none"));
  if (before.length) parts.push(make("h2", {}, `Before it: ${count(before.length)}`), links.list(before, (reader) => links.node(reader)));
  if (after.length) parts.push(make("h2", {}, `After it: ${count(after.length)}`), links.list(after, (reader) => links.node(reader)));
  if (nodes.doc[node]) parts.push(make("h2", {}, "Doc"), longText(nodes.doc[node], 400));
  if (metadata.length) parts.push(make("h2", {}, "Metadata"), factTable(...metadata.map(([name, value]) => factRow(name, longText(value)))));
  return parts;
}

/**
 * A body or a function: its inputs, outputs and callers.
 * @param {ModelData} data
 * @param {ModelLinks} links
 * @param {number} scope
 */
export function scopePanel(data, links, scope) {
  const { terminals, graph, doc, address, length } = data.scopes[scope];
  /** @type {Element[]} */
  const parts = [
    make("p", { class: "kind" }, data.scopes[scope].parent < 0 ? "function" : "body"),
    make("h1", {}, make("bdi", {}, address)),
    make("p", { class: "quiet" }, counted(length, "node")),
    make("h2", {}, "Inputs, and tensors that it reads from outside"), portList(data, links, terminals.slice(0, graph.inputs.length), "none"),
    make("h2", {}, "Outputs"), portList(data, links, terminals.slice(graph.inputs.length), "none"),
    make("h2", {}, `Used by ${count(data.callers[scope].length)}`), links.list(data.callers[scope], (node) => links.node(node)),
  ];
  if (doc) parts.push(make("h2", {}, "Doc"), longText(doc, 400));
  return parts;
}
