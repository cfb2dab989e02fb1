// The data of model_page.py: graphs (scopes), nodes and tensors, each by its position.

import { summed } from "../graph/data.js";

export class ModelData {
  /** @param {ModelPayload} payload */
  constructor(payload) {
    const { texts, nodes, tensors } = payload;
    /** @param {TextPlace[]} column */
    const words = (column) => column.map((place) => texts[place]);
    this.shown = payload.shown;
    this.scopes = payload.scopes.map((scope) => ({ ...scope, length: scope.graph.family.length }));
    this.held = payload.held;
    this.texts = texts;
    this.nodes = {
      ...nodes,
      name: words(nodes.name),
      operator: words(nodes.operator),
      details: words(nodes.details),
      precision: words(nodes.precision),
      doc: words(nodes.doc),
    };
    this.tensors = {
      name: words(tensors.name),
      dtype: words(tensors.dtype),
      dims: words(tensors.dims),
      label: words(tensors.label),
      kind: tensors.kind,
      held: summed(tensors.held),
    };
    this.addresses = new Map(this.scopes.map((scope, place) => [scope.address, place]));
    this.joinNodes();
  }

  joinNodes() {
    const { nodes, tensors, scopes } = this;
    this.scopeOf = new Int32Array(nodes.name.length);
    scopes.forEach((scope, place) => this.scopeOf.fill(place, scope.first, scope.first + scope.length));
    this.producer = new Int32Array(tensors.name.length).fill(-1);
    this.consumers = tensors.name.map(() => []);
    this.callers = scopes.map(() => []);
    this.home = new Int32Array(tensors.name.length).fill(-1); // the scope that a tensor belongs to
    nodes.name.forEach((_, node) => {
      for (const tensor of nodes.outputs[node]) this.producer[tensor] = node;
      for (const tensor of new Set(nodes.inputs[node])) if (tensor >= 0) this.consumers[tensor].push(node);
      for (const body of nodes.bodies[node]) this.callers[body].push(node);
    });
    this.findHomes();
  }

  findHomes() {
    this.scopes.forEach((scope, place) => {
      for (const tensor of scope.terminals) if (this.home[tensor] < 0) this.home[tensor] = place;
    });
    this.producer.forEach((node, tensor) => {
      if (node >= 0) this.home[tensor] = this.scopeOf[node];
      else if (this.home[tensor] < 0 && this.consumers[tensor].length) this.home[tensor] = Math.min(...this.consumers[tensor].map((consumer) => this.scopeOf[consumer]));
    });
  }

  get length() {
    return this.nodes.name.length;
  }

  // The position of a node within the graph of its scope.
  local(node) {
    return node - this.scopes[this.scopeOf[node]].first;
  }

  nameOf(node) {
    return this.nodes.name[node] || this.tensors.name[this.nodes.outputs[node][0]] || "(no name)";
  }

  operatorName(node) {
    return this.nodes.operator[node].split("::").at(-1);
  }

  scopeTitle(scope) {
    const { address, parent } = this.scopes[scope];
    return parent < 0 ? address || "model" : address.slice(this.scopes[parent].address.length).replace(/^\//, "");
  }

  // `then_branch` for a body, the whole name for a function.
  bodyName(scope) {
    const { address, parent } = this.scopes[scope];
    return parent < 0 ? address : address.split("/").at(-1);
  }

  // The path from the model, or from a function, to a scope.
  trail(scope) {
    const way = [];
    for (let at = scope; at >= 0; at = this.scopes[at].parent) way.unshift(at);
    return way[0] === 0 ? way : [0, ...way];
  }

  // Other bodies of the node that a scope is a body of.
  siblings(scope) {
    const owner = this.callers[scope].find((node) => this.nodes.bodies[node].length > 1);
    return owner === undefined ? [] : this.nodes.bodies[owner];
  }

  tensorText(tensor) {
    return [this.tensors.dtype[tensor], this.tensors.dims[tensor]].filter(Boolean).join(" ");
  }

  attributes(node) {
    const flat = this.nodes.attributes[node];
    return Array.from({ length: flat.length / 5 }, (_, row) => {
      const [name, type, text, isDefault, held] = flat.slice(5 * row, 5 * row + 5);
      return { name: this.texts[name], type: this.texts[type], text: this.texts[text], isDefault: isDefault === 1, held };
    });
  }

  metadata(node) {
    const flat = this.nodes.metadata[node].map((place) => this.texts[place]);
    return flat.filter((_, place) => place % 2 === 0).map((name, row) => [name, flat[2 * row + 1]]);
  }
}

// A place in a model as part of the page's address: scope by its address, node and tensor by name, or by number where a
// name is missing or occurs twice.
export class ModelPlaces {
  /** @param {ModelData} data */
  constructor(data) {
    this.data = data;
    this.nodes = ModelPlaces.unique(data.nodes.name, (node) => data.scopeOf[node]);
    this.tensors = ModelPlaces.unique(data.tensors.name, (tensor) => data.home[tensor]);
  }

  // `scope name` -> position; -1 for a name that occurs twice.
  static unique(names, scopeOf) {
    const places = new Map();
    names.forEach((name, place) => {
      const key = `${scopeOf(place)} ${name}`;
      places.set(key, places.has(key) || !name ? -1 : place);
    });
    return places;
  }

  write({ scope, node = -1, tensor = -1 }) {
    const { data } = this;
    const parts = new URLSearchParams();
    if (data.scopes[scope].address) parts.set("scope", data.scopes[scope].address);
    if (node >= 0) parts.set("node", this.named(this.nodes, data.scopeOf[node], data.nodes.name[node], node));
    if (tensor >= 0) parts.set("tensor", this.named(this.tensors, data.home[tensor], data.tensors.name[tensor], tensor));
    return `#${parts}`;
  }

  named(known, scope, name, place) {
    return known.get(`${scope} ${name}`) === place ? name : `@${place}`;
  }

  read(hash) {
    const parts = new URLSearchParams(hash.slice(1));
    const scope = parts.has("scope") ? this.data.addresses.get(parts.get("scope")) : undefined;
    const place = { scope: scope ?? (hash.length > 1 ? 0 : this.data.shown), node: -1, tensor: -1 };
    if (parts.has("node")) place.node = this.find(this.nodes, place.scope, parts.get("node"), this.data.length);
    if (parts.has("tensor")) place.tensor = this.findTensor(place.scope, parts.get("tensor"));
    if (place.node >= 0) place.scope = this.data.scopeOf[place.node];
    return place;
  }

  find(known, scope, name, most) {
    if (!/^@\d+$/.test(name)) return known.get(`${scope} ${name}`) ?? -1;
    const place = Number(name.slice(1));
    return place < most ? place : -1;
  }

  // A body may show tensors of the scopes around it.
  findTensor(scope, name) {
    for (const place of this.data.trail(scope).reverse()) {
      const match = this.find(this.tensors, place, name, this.data.tensors.name.length);
      if (match >= 0) return match;
    }
    return -1;
  }
}
