// Search through all graphs of a model: nodes, tensors and operators. `type:Conv` finds the nodes of one operator.

/** @import { ModelData } from "./data.js" */

import { all, byId, make, shortened } from "../elements.js";
import { count } from "../quantities.js";

/**
 * Either a node or a tensor; the other is -1.
 * @typedef {{node: number, tensor: number}} Hit
 */

const MOST_HITS_SHOWN = 200;

export class ModelSearch {
  /**
   * @param {ModelData} data
   * @param {{go: (hit: Hit) => void, show: (nodes: Set<number> | null) => void}} options `go` shows one hit; `show` gets the
   *   nodes that are found, null without a search
   */
  constructor(data, { go, show }) {
    this.data = data;
    this.go = go;
    this.show = show;
    /** @type {Hit[]} */
    this.hits = [];
    this.hit = -1;
    this.field = /** @type {HTMLInputElement} */ (byId("find"));
    /** @type {{nodes: string[], tensors: string[]} | null} texts in lower case, filled by the first search */
    this.lowered = null;
    this.status = byId("found");
    this.list = byId("hits");
    this.field.addEventListener("input", () => this.find(this.field.value));
    this.field.addEventListener("keydown", (event) => this.key(event));
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
  }

  get hay() {
    const { nodes, tensors } = this.data;
    this.lowered ??= {
      nodes: nodes.name.map((name, node) => `${name} ${nodes.operator[node]} ${nodes.precision[node]}`.toLowerCase()),
      tensors: tensors.name.map((name) => name.toLowerCase()),
    };
    return this.lowered;
  }

  /** @param {string} text */
  find(text) {
    this.field.value = text;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.hits = words.length ? this.search(text.trim(), words) : [];
    this.hit = -1;
    this.status.textContent = words.length ? `${count(this.hits.length)} found` : "";
    this.show(words.length ? new Set(this.hits.filter((hit) => hit.node >= 0).map((hit) => hit.node)) : null);
    this.paint();
  }

  /**
   * @param {string} text
   * @param {string[]} words
   * @returns {Hit[]}
   */
  search(text, words) {
    const { nodes } = this.data;
    if (text.startsWith("type:")) {
      const wanted = text.slice(5);
      return nodes.operator.flatMap((operator, node) => (operator === wanted ? [{ node, tensor: -1 }] : []));
    }
    const fits = (/** @type {string} */ hay) => words.every((word) => hay.includes(word));
    /** @type {Hit[]} */
    const ofNodes = this.hay.nodes.flatMap((hay, node) => (fits(hay) ? [{ node, tensor: -1 }] : []));
    return ofNodes.concat(this.hay.tensors.flatMap((hay, tensor) => (hay && fits(hay) ? [{ node: -1, tensor }] : [])));
  }

  /** @param {number} by */
  step(by) {
    if (!this.hits.length) return;
    this.hit = this.hit < 0 ? (by > 0 ? 0 : this.hits.length - 1) : (this.hit + by + this.hits.length) % this.hits.length;
    this.status.textContent = `${count(this.hit + 1)} of ${count(this.hits.length)}`;
    this.paint();
    this.go(this.hits[this.hit]);
  }

  /** @param {number} place */
  choose(place) {
    this.hit = place - 1;
    this.step(1);
  }

  paint() {
    this.list.hidden = !this.field.value.trim();
    const first = Math.max(0, Math.min(this.hit - 20, this.hits.length - MOST_HITS_SHOWN));
    const shown = this.hits.slice(first, first + MOST_HITS_SHOWN);
    this.list.replaceChildren(
      make("ul", {}, ...shown.map((hit, place) => this.item(hit, first + place))),
      shown.length < this.hits.length ? make("p", { class: "quiet" }, `${count(first + 1)} to ${count(first + shown.length)} of ${count(this.hits.length)}`) : "",
      this.hits.length ? "" : make("p", { class: "quiet" }, "No node, tensor or operator matches."));
    const [current] = all('[aria-current="true"]', this.list);
    if (current) this.list.scrollTop = Math.max(0, current.offsetTop - this.list.clientHeight / 2);
  }

  /**
   * @param {Hit} hit
   * @param {number} place
   */
  item({ node, tensor }, place) {
    const { data } = this;
    const [name, what] = node >= 0 ? [data.nameOf(node), data.nodes.operator[node]] : [data.tensors.name[tensor], "tensor"];
    const scope = node >= 0 ? data.scopeOf[node] : data.home[tensor];
    const where = scope > 0 ? ` in ${shortened(data.scopes[scope].address, 50)}` : "";
    return make("li", {}, make("button", { type: "button", "aria-current": place === this.hit ? "true" : null, onclick: () => this.choose(place) },
      make("bdi", {}, shortened(name, 70)), " ", make("span", { class: "quiet" }, make("bdi", {}, what + where))));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) this.find("");
    else if (event.key === "Escape") this.field.blur();
    else return;
    event.preventDefault();
  }
}
