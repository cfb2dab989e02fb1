// The page of a model: shows one graph at a time and describes the selection, which the address keeps.

/** @import { Hit } from "./search.js" */
/** @import { Place } from "./data.js" */

import { all, around, byId, make, shortened } from "../elements.js";
import { familyMode, kindsMode } from "../graph/colours.js";
import { GraphView } from "../graph/view.js";
import { readPageData } from "../unpack.js";
import { count } from "../quantities.js";
import { listenForFilterKey, tooltip } from "../widgets.js";
import { ModelData, ModelPlaces } from "./data.js";
import { ModelLinks, nodePanel, scopePanel, tensorPanel } from "./panel.js";
import { ModelSearch } from "./search.js";

class ModelView {
  /** @param {DrawnModel} model */
  constructor(model) {
    this.data = new ModelData(model);
    this.places = new ModelPlaces(this.data);
    this.links = new ModelLinks(this.data, this.places);
    this.place = this.places.read(location.hash);
    /** @type {Set<number> | null} */
    this.found = null;
    /** @type {string | undefined} */
    this.theme = undefined;
    this.stage = byId("stage");
    this.search = new ModelSearch(this.data, { go: (hit) => this.goToHit(hit), show: (nodes) => this.showFound(nodes) });
    this.listBodies();
    this.view = this.graphOf(this.place.scope);
    this.showScope(this.place.scope);
    this.listen();
    this.arrive();
  }

  listen() {
    addEventListener("hashchange", () => this.arrive());
    for (const button of all("[data-operator]")) {
      button.addEventListener("click", () => this.search.find(`type:${button.dataset.operator}`));
    }
    for (const name of all("#summary [data-tensor]")) this.makeLink(name);
    document.addEventListener("keydown", (event) => {
      if (around(event, "input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Backspace" || event.key === "u") this.leave();
    });
    const root = document.documentElement;
    addEventListener("beforeprint", () => {
      this.theme = root.dataset.theme;
      root.dataset.theme = "light";
      this.view.palette.forget();
      this.view.fit();
      this.view.painter.paint(this.view.view, this.view.state);
    });
    addEventListener("afterprint", () => {
      if (this.theme) root.dataset.theme = this.theme;
      else delete root.dataset.theme;
    });
  }

  /** @param {HTMLElement} name */
  makeLink(name) {
    const tensor = this.data.scopes[0].terminals.find((terminal) => this.data.tensors.name[terminal] === name.dataset.tensor);
    if (tensor !== undefined) name.replaceWith(this.links.to({ scope: 0, tensor }, name.textContent, name.textContent));
  }

  listBodies() {
    const functions = this.data.scopes.flatMap((scope, place) => (place && scope.parent < 0 ? [place] : []));
    const bodies = this.data.scopes.flatMap((scope, place) => (scope.parent >= 0 ? [place] : []));
    const host = byId("bodies");
    if (functions.length) host.append(make("h2", {}, `Functions ${count(functions.length)}`), this.links.list(functions, (scope) => this.links.scopeLink(scope)));
    if (bodies.length) host.append(make("h2", {}, `Bodies ${count(bodies.length)}`), this.links.list(bodies, (scope) => this.bodyLink(scope)));
  }

  /**
   * Nested bodies are indented.
   * @param {number} scope
   */
  bodyLink(scope) {
    const depth = this.data.trail(scope).length - 2;
    return make("span", { style: `display:block;padding-left:${Math.min(depth, 8) + 1}em;text-indent:-1em` }, this.links.scopeLink(scope, this.data.scopeTitle(scope)));
  }

  // Go to the place in the address.
  arrive() {
    const place = this.places.read(location.hash);
    const before = this.place;
    this.place = place;
    if (place.scope !== before.scope) {
      this.view = this.graphOf(place.scope);
      this.showScope(place.scope);
    }
    const local = this.localOf(place);
    if (local >= 0 || this.place.tensor >= 0) this.view.showLevel(0);
    if (local !== this.view.state.active) {
      if (local >= 0) this.moveTo(local);
      this.view.activate(local, false);
    }
    if (local < 0) this.view.status.textContent = "";
    this.markReaders(place);
    this.showPanel(place);
  }

  /** @param {{scope: number, node?: number, tensor?: number}} place */
  go(place) {
    const hash = this.places.write(place);
    if (location.hash === hash || (hash === "#" && !location.hash)) this.arrive();
    else if (hash === "#") location.hash = "#scope="; // an empty hash would scroll to the top and add no history entry
    else location.hash = hash;
  }

  /** @param {Hit} hit */
  goToHit({ node, tensor }) {
    if (node >= 0) this.go({ scope: this.data.scopeOf[node], node });
    else this.go({ scope: Math.max(0, this.data.home[tensor]), tensor });
  }

  /**
   * The node or terminal of the shown graph for a place; -1 for none.
   * @param {Place} place
   */
  localOf({ scope, node, tensor }) {
    if (node >= 0) return this.data.local(node);
    const terminal = tensor < 0 ? -1 : this.data.scopes[scope].terminals.indexOf(tensor);
    return terminal < 0 ? -1 : this.data.scopes[scope].length + terminal;
  }

  /** @param {number} local */
  moveTo(local) {
    const { view } = this;
    if (view.inSight(local) && view.view.scale > 0.45) return;
    view.view.scale = Math.max(view.view.scale, 0.8);
    view.moved = true;
    view.centreOn(...view.data.centre(local));
  }

  /**
   * Mark the producer and the consumers of a tensor.
   * @param {Place} place
   */
  markReaders({ scope, tensor }) {
    const ends = tensor < 0 ? [] : [this.data.producer[tensor], ...this.data.consumers[tensor]];
    const near = ends.filter((node) => node >= 0 && this.data.scopeOf[node] === scope);
    this.view.mark(near.map((node) => this.data.local(node)));
  }

  /** @param {number} scope */
  graphOf(scope) {
    const { data } = this;
    const { first, length, graph, address, terminals } = data.scopes[scope];
    const output = (/** @type {number} */ local) => (local < length ? data.nodes.outputs[first + local][0] : terminals[local - length]);
    const dtype = (/** @type {number} */ local) => data.tensors.dtype[output(local)] ?? "";
    const modes = [
      familyMode(graph, (local) => data.nodes.details[first + local] || data.nameOf(first + local)),
      kindsMode({ key: "dtype", title: "Dtype", of: dtype, layers: length }),
    ];
    if (data.nodes.precision.some(Boolean)) modes.push(kindsMode({ key: "precision", title: "Requested precision", of: (local) => data.nodes.precision[first + local], layers: length }));
    this.links.scope = scope;
    tooltip.hide();
    return new GraphView(this.stage, graph, {
      label: address || "the model", modes, finds: false, wheelZooms: true,
      name: (local) => data.nameOf(first + local),
      type: (local) => data.operatorName(first + local),
      about: (local) => this.about(first + local),
      below: (local) => data.tensors.label[output(local)] ?? "",
      pick: (local) => this.go(local < 0 ? { scope } : { scope, node: first + local }),
      pickTerminal: (terminal) => this.go({ scope, tensor: terminals[terminal] }),
      open: (local) => this.enter(local < length ? first + local : -1),
    });
  }

  /** @param {number} scope */
  showScope(scope) {
    this.view.start(); // before anything is scrolled into view
    this.showTrail(scope);
    this.showFound(this.found);
  }

  /** @param {number} node */
  about(node) {
    const { data } = this;
    const outputs = data.nodes.outputs[node].map((tensor) => data.tensorText(tensor)).filter(Boolean);
    return [data.nameOf(node), data.nodes.operator[node], data.nodes.details[node], ...outputs].filter(Boolean).join("\n");
  }

  /** @param {number} node */
  enter(node) {
    const body = node >= 0 ? this.data.nodes.bodies[node][0] : undefined;
    if (body === undefined) return false;
    this.go({ scope: body });
    return true;
  }

  // Go to the enclosing graph, at the node that was opened.
  leave() {
    const scope = this.place.scope;
    const caller = this.data.callers[scope][0];
    if (scope > 0) this.go(caller === undefined ? { scope: 0 } : { scope: this.data.scopeOf[caller], node: caller });
  }

  /** @param {number} scope */
  showTrail(scope) {
    const trail = this.data.trail(scope);
    const parts = trail.map((step) => (step === scope ? make("b", { "aria-current": "page" }, make("bdi", {}, shortened(this.data.scopeTitle(step), 48))) : this.links.scopeLink(step, this.data.scopeTitle(step))));
    const others = this.data.siblings(scope).filter((sibling) => sibling !== scope);
    const siblings = others.map((other) => this.links.scopeLink(other, this.data.bodyName(other)));
    /** @type {(items: HTMLElement[], sign: string) => HTMLElement[]} */
    const apart = (items, sign) => items.flatMap((item, place) => (place ? [make("span", { class: "quiet", "aria-hidden": "true" }, sign), item] : [item]));
    document.querySelector(".trail")?.replaceChildren(...(trail.length > 1 ? apart(parts, " › ") : []), ...(siblings.length ? [make("span", { class: "quiet" }, " also "), ...apart(siblings, ", ")] : []));
  }

  /** @param {Place} place */
  showPanel({ scope, node, tensor }) {
    const chosen = byId("chosen");
    const summary = byId("summary");
    const parts = node >= 0 ? nodePanel(this.data, this.links, node)
      : tensor >= 0 ? tensorPanel(this.data, this.links, tensor)
        : scope > 0 ? scopePanel(this.data, this.links, scope) : [];
    const link = this.links.scopeLink(scope, scope > 0 && (node >= 0 || tensor >= 0) ? "‹ this graph" : "‹ the model");
    const back = make("p", { class: "back" }, link);
    if (scope > 0 && node < 0 && tensor < 0) link.setAttribute("href", this.places.write({ scope: 0 }));
    chosen.replaceChildren(...(parts.length ? [back, ...parts] : []));
    chosen.hidden = !parts.length;
    summary.hidden = parts.length > 0;
    byId("panel").scrollTop = 0;
  }

  /** @param {Set<number> | null} nodes */
  showFound(nodes) {
    this.found = nodes;
    const { first, length } = this.data.scopes[this.place.scope];
    const here = nodes && [...nodes].filter((node) => node >= first && node < first + length).map((node) => node - first);
    this.view.show(here && new Set(here));
  }
}

export async function start() {
  listenForFilterKey();
  Object.assign(globalThis, { model: new ModelView(await readPageData()) }); // for the browser's console
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
