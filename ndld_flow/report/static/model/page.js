// The page of a model: shows one graph at a time and describes the selection, which the address keeps.

import { all, around, make, shortened } from "../elements.js";
import { familyMode, kindsMode } from "../graph/colours.js";
import { GraphView } from "../graph/view.js";
import { readPayload } from "../payload.js";
import { count } from "../quantities.js";
import { listenForFilterKey, tooltip } from "../widgets.js";
import { ModelData, ModelPlaces } from "./data.js";
import { ModelLinks, nodePanel, scopePanel, tensorPanel } from "./panel.js";
import { ModelSearch } from "./search.js";

class ModelView {
  constructor(payload) {
    this.data = new ModelData(payload);
    this.places = new ModelPlaces(this.data);
    this.links = new ModelLinks(this.data, this.places);
    this.place = { scope: -1, node: -1, tensor: -1 };
    this.found = null;
    this.stage = document.getElementById("stage");
    this.search = new ModelSearch(this.data, { go: (hit) => this.goToHit(hit), show: (nodes) => this.showFound(nodes) });
    this.listBodies();
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

  makeLink(name) {
    const tensor = this.data.scopes[0].terminals.find((terminal) => this.data.tensors.name[terminal] === name.dataset.tensor);
    if (tensor !== undefined) name.replaceWith(this.links.to({ scope: 0, tensor }, name.textContent, name.textContent));
  }

  listBodies() {
    const functions = this.data.scopes.flatMap((scope, place) => (place && scope.parent < 0 ? [place] : []));
    const bodies = this.data.scopes.flatMap((scope, place) => (scope.parent >= 0 ? [place] : []));
    const host = document.getElementById("bodies");
    if (functions.length) host.append(make("h2", {}, `Functions ${count(functions.length)}`), this.links.list(functions, (scope) => this.links.scopeLink(scope)));
    if (bodies.length) host.append(make("h2", {}, `Bodies ${count(bodies.length)}`), this.links.list(bodies, (scope) => this.bodyLink(scope)));
  }

  // Nested bodies are indented.
  bodyLink(scope) {
    const depth = this.data.trail(scope).length - 2;
    return make("span", { style: `display:block;padding-left:${Math.min(depth, 8) + 1}em;text-indent:-1em` }, this.links.scopeLink(scope, this.data.scopeTitle(scope)));
  }

  // Go to the place in the address.
  arrive() {
    const place = this.places.read(location.hash);
    const before = this.place;
    this.place = place;
    if (place.scope !== before.scope) this.openScope(place.scope);
    const local = this.localOf(place);
    if (local !== this.view.state.active) {
      if (local >= 0) this.moveTo(local);
      this.view.activate(local, false);
    }
    if (local < 0) this.view.status.textContent = "";
    this.markReaders(place);
    this.showPanel(place);
  }

  go(place) {
    const hash = this.places.write(place);
    if (location.hash === hash || (hash === "#" && !location.hash)) this.arrive();
    else if (hash === "#") location.hash = "#scope="; // an empty hash would scroll to the top and add no history entry
    else location.hash = hash;
  }

  goToHit({ node, tensor }) {
    if (node >= 0) this.go({ scope: this.data.scopeOf[node], node });
    else this.go({ scope: Math.max(0, this.data.home[tensor]), tensor });
  }

  // The node or terminal of the shown graph for a place; -1 for none.
  localOf({ scope, node, tensor }) {
    if (node >= 0) return this.data.local(node);
    const terminal = tensor < 0 ? -1 : this.data.scopes[scope].terminals.indexOf(tensor);
    return terminal < 0 ? -1 : this.data.scopes[scope].length + terminal;
  }

  moveTo(local) {
    const { view } = this;
    if (view.inSight(local) && view.view.scale > 0.45) return;
    view.view.scale = Math.max(view.view.scale, 0.8);
    view.moved = true;
    view.centreOn(...view.data.centre(local));
  }

  // Mark the producer and the consumers of a tensor.
  markReaders({ scope, tensor }) {
    if (tensor < 0) return this.view.mark([]);
    const near = [this.data.producer[tensor], ...this.data.consumers[tensor]].filter((node) => node >= 0 && this.data.scopeOf[node] === scope);
    this.view.mark(near.map((node) => this.data.local(node)));
  }

  openScope(scope) {
    const { data } = this;
    const { first, length, graph, address, terminals } = data.scopes[scope];
    const of = (column) => (local) => column[first + local];
    const output = (local) => (local < length ? data.nodes.outputs[first + local][0] : terminals[local - length]);
    const dtype = (local) => data.tensors.dtype[output(local)] ?? "";
    const modes = [
      familyMode(graph, (local) => data.nodes.details[first + local] || data.nameOf(first + local)),
      kindsMode({ key: "dtype", title: "Dtype", of: dtype, layers: length }),
    ];
    if (data.nodes.precision.some(Boolean)) modes.push(kindsMode({ key: "precision", title: "Asked precision", of: of(data.nodes.precision), layers: length }));
    this.links.scope = scope;
    tooltip.hide();
    this.view = new GraphView(this.stage, graph, {
      label: address || "the model", modes, finds: false, wheelZooms: true,
      name: (local) => data.nameOf(first + local),
      type: (local) => data.operatorName(first + local),
      about: (local) => this.about(first + local),
      below: (local) => data.tensors.label[output(local)] ?? "",
      pick: (local) => this.go(local < 0 ? { scope } : { scope, node: first + local }),
      pickTerminal: (terminal) => this.go({ scope, tensor: terminals[terminal] }),
      open: (local) => this.enter(local < length ? first + local : -1),
    });
    this.view.fit(); // before anything is scrolled into view
    this.tellTrail(scope);
    this.showFound(this.found);
  }

  about(node) {
    const { data } = this;
    const outputs = data.nodes.outputs[node].map((tensor) => data.tensorText(tensor)).filter(Boolean);
    return [data.nameOf(node), data.nodes.operator[node], data.nodes.details[node], ...outputs].filter(Boolean).join("\n");
  }

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

  tellTrail(scope) {
    const trail = this.data.trail(scope);
    const parts = trail.map((step) => (step === scope ? make("b", { "aria-current": "page" }, make("bdi", {}, shortened(this.data.scopeTitle(step), 48))) : this.links.scopeLink(step, this.data.scopeTitle(step))));
    const others = this.data.siblings(scope).filter((sibling) => sibling !== scope);
    const siblings = others.map((other) => this.links.scopeLink(other, this.data.bodyName(other)));
    const apart = (items, sign) => items.flatMap((item, place) => (place ? [make("span", { class: "quiet", "aria-hidden": "true" }, sign), item] : [item]));
    document.querySelector(".trail").replaceChildren(...(trail.length > 1 ? apart(parts, " › ") : []), ...(siblings.length ? [make("span", { class: "quiet" }, " also "), ...apart(siblings, ", ")] : []));
  }

  showPanel({ scope, node, tensor }) {
    const chosen = document.getElementById("chosen");
    const summary = document.getElementById("summary");
    const parts = node >= 0 ? nodePanel(this.data, this.links, node)
      : tensor >= 0 ? tensorPanel(this.data, this.links, tensor)
        : scope > 0 ? scopePanel(this.data, this.links, scope) : [];
    const way = this.links.scopeLink(scope, scope > 0 && (node >= 0 || tensor >= 0) ? "‹ this graph" : "‹ the model");
    const back = make("p", { class: "back" }, way);
    if (scope > 0 && node < 0 && tensor < 0) way.setAttribute("href", this.places.write({ scope: 0 }));
    chosen.replaceChildren(...(parts.length ? [back, ...parts] : []));
    chosen.hidden = !parts.length;
    summary.hidden = parts.length > 0;
    document.getElementById("panel").scrollTop = 0;
  }

  showFound(nodes) {
    this.found = nodes;
    const { first, length } = this.data.scopes[this.place.scope];
    const here = nodes && [...nodes].filter((node) => node >= first && node < first + length).map((node) => node - first);
    this.view.state.found = here && new Set(here);
    this.view.map.forget();
    this.view.repaint();
  }
}

export async function start() {
  listenForFilterKey();
  Object.assign(globalThis, { model: new ModelView(await readPayload()) }); // for the browser's console
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
