// The data of model_page.py: graphs (scopes), nodes and tensors, each by its position.

/**
 * A place in a model; -1 for no node and no tensor.
 * @typedef {{scope: number, node: number, tensor: number}} Place
 */

export class ModelData {
  /** @param {DrawnModel} model */
  constructor({ shown, scopes, nodes, tensors, held }) {
    this.shown = shown;
    this.scopes = scopes.map((scope) => ({ ...scope, length: scope.graph.family.length }));
    this.held = held;
    this.nodes = nodes;
    this.tensors = tensors;
    this.addresses = new Map(this.scopes.map((scope, place) => [scope.address, place]));
    this.scopeOf = new Int32Array(this.length);
    this.producer = new Int32Array(tensors.name.length).fill(-1);
    /** @type {number[][]} */
    this.consumers = tensors.name.map(() => []);
    /** @type {number[][]} */
    this.callers = this.scopes.map(() => []);
    this.home = new Int32Array(tensors.name.length).fill(-1); // the scope that a tensor belongs to
    this.joinNodes();
    this.findHomes();
  }

  joinNodes() {
    const { nodes } = this;
    this.scopes.forEach((scope, place) => this.scopeOf.fill(place, scope.first, scope.first + scope.length));
    nodes.name.forEach((_, node) => {
      for (const tensor of nodes.outputs[node]) this.producer[tensor] = node;
      for (const tensor of new Set(nodes.inputs[node])) if (tensor >= 0) this.consumers[tensor].push(node);
      for (const body of nodes.bodies[node]) this.callers[body].push(node);
    });
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

  /**
   * The position of a node within the graph of its scope.
   * @param {number} node
   */
  local(node) {
    return node - this.scopes[this.scopeOf[node]].first;
  }

  /** @param {number} node */
  nameOf(node) {
    return this.nodes.name[node] || this.tensors.name[this.nodes.outputs[node][0]] || "(no name)";
  }

  /** @param {number} node */
  operatorName(node) {
    return this.nodes.operator[node].split("::").at(-1) ?? "";
  }

  /** @param {number} scope */
  scopeTitle(scope) {
    const { address, parent } = this.scopes[scope];
    return parent < 0 ? address || "model" : address.slice(this.scopes[parent].address.length).replace(/^\//, "");
  }

  /**
   * `then_branch` for a body, the whole name for a function.
   * @param {number} scope
   */
  bodyName(scope) {
    const { address, parent } = this.scopes[scope];
    return parent < 0 ? address : address.split("/").at(-1) ?? "";
  }

  /**
   * The path from the model, or from a function, to a scope.
   * @param {number} scope
   */
  trail(scope) {
    /** @type {number[]} */
    const path = [];
    for (let at = scope; at >= 0; at = this.scopes[at].parent) path.unshift(at);
    return path[0] === 0 ? path : [0, ...path];
  }

  /**
   * Other bodies of the node that a scope is a body of.
   * @param {number} scope
   */
  siblings(scope) {
    const owner = this.callers[scope].find((node) => this.nodes.bodies[node].length > 1);
    return owner === undefined ? [] : this.nodes.bodies[owner];
  }

  /** @param {number} tensor */
  tensorText(tensor) {
    return [this.tensors.dtype[tensor], this.tensors.dims[tensor]].filter(Boolean).join(" ");
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

  /**
   * `scope name` -> position; -1 for a name that occurs twice.
   * @param {string[]} names
   * @param {(place: number) => number} scopeOf
   */
  static unique(names, scopeOf) {
    /** @type {Map<string, number>} */
    const places = new Map();
    names.forEach((name, place) => {
      const key = `${scopeOf(place)} ${name}`;
      places.set(key, places.has(key) || !name ? -1 : place);
    });
    return places;
  }

  /** @param {{scope: number, node?: number, tensor?: number}} place */
  write({ scope, node = -1, tensor = -1 }) {
    const { data } = this;
    const parts = new URLSearchParams();
    if (data.scopes[scope].address) parts.set("scope", data.scopes[scope].address);
    if (node >= 0) parts.set("node", this.named(this.nodes, data.scopeOf[node], data.nodes.name[node], node));
    if (tensor >= 0) parts.set("tensor", this.named(this.tensors, data.home[tensor], data.tensors.name[tensor], tensor));
    return `#${parts}`;
  }

  /**
   * @param {Map<string, number>} known
   * @param {number} scope
   * @param {string} name
   * @param {number} place
   */
  named(known, scope, name, place) {
    return known.get(`${scope} ${name}`) === place ? name : `@${place}`;
  }

  /**
   * @param {string} hash
   * @returns {Place}
   */
  read(hash) {
    const parts = new URLSearchParams(hash.slice(1));
    const [address, node, tensor] = ["scope", "node", "tensor"].map((key) => parts.get(key));
    const scope = address === null ? undefined : this.data.addresses.get(address);
    const place = { scope: scope ?? (hash.length > 1 ? 0 : this.data.shown), node: -1, tensor: -1 };
    if (node !== null) place.node = this.find(this.nodes, place.scope, node, this.data.length);
    if (tensor !== null) place.tensor = this.findTensor(place.scope, tensor);
    if (place.node >= 0) place.scope = this.data.scopeOf[place.node];
    return place;
  }

  /**
   * @param {Map<string, number>} known
   * @param {number} scope
   * @param {string} name
   * @param {number} most
   */
  find(known, scope, name, most) {
    if (!/^@\d+$/.test(name)) return known.get(`${scope} ${name}`) ?? -1;
    const place = Number(name.slice(1));
    return place < most ? place : -1;
  }

  /**
   * A body may show tensors of the scopes around it.
   * @param {number} scope
   * @param {string} name
   */
  findTensor(scope, name) {
    for (const place of this.data.trail(scope).reverse()) {
      const match = this.find(this.tensors, place, name, this.data.tensors.name.length);
      if (match >= 0) return match;
    }
    return -1;
  }
}
