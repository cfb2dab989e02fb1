// The view of a graph: search, mouse, keyboard and colour modes around one canvas.

/** @import { GraphState } from "./paint.js" */
/** @import { GraphMode } from "./colours.js" */

import { all, make, shortened } from "../elements.js";
import { count } from "../quantities.js";
import { tooltip } from "../widgets.js";
import { Blocks } from "./blocks.js";
import { GraphPalette } from "./colours.js";
import { GraphData } from "./data.js";
import { GraphMap, GraphPainter } from "./paint.js";

// The search field of a graph: hits stay bright, Enter goes from one to the next.

class GraphSearch {
  /** @param {GraphView} view shows the hits */
  constructor(view) {
    this.view = view;
    /** @type {number[]} */
    this.hits = [];
    this.hit = -1;
    this.field = make("input", {
      type: "search", placeholder: "Find in graph", "aria-label": `Find in graph of ${view.options.label}`, spellcheck: "false",
      oninput: () => this.find(this.field.value), onkeydown: (/** @type {KeyboardEvent} */ event) => this.keyInField(event),
    });
  }

  /** @param {string} text */
  find(text) {
    const { view } = this;
    const { data, options } = view.whole;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.hits = [];
    for (let node = 0; words.length && node < data.length; node++) {
      const hay = (node < data.layers ? options.search(node) : data.terminals[node - data.layers]).toLowerCase();
      if (words.every((word) => hay.includes(word))) this.hits.push(node);
    }
    this.hit = -1;
    view.status.textContent = words.length ? `${count(this.hits.length)} found` : "";
    view.show(words.length ? new Set(this.hits) : null);
  }

  /** @param {number} by */
  nextHit(by) {
    const { view } = this;
    if (!this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    if (this.hit < 0) this.hit = 0;
    view.showLevel(0);
    view.view.scale = Math.max(view.view.scale, 0.7);
    view.moved = true;
    const node = this.hits[this.hit];
    view.centreOn(...view.data.centre(node));
    view.activate(node, false);
    view.status.textContent = `${count(this.hit + 1)} of ${count(this.hits.length)}`;
  }

  /** @param {KeyboardEvent} event */
  keyInField(event) {
    if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) this.find((this.field.value = ""));
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "ArrowDown") this.view.canvas.focus();
    else return;
    event.preventDefault();
  }
}

// Mouse, wheel and touch on a graph: drag to move, hover, click a node, zoom.

class GraphMouse {
  /** @param {GraphView} view is moved */
  constructor(view) {
    const { canvas } = view;
    this.view = view;
    this.canvas = canvas;
    this.dragging = false;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.clickTwice(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    const start = [event.clientX, event.clientY];
    let last = start;
    let dragged = false;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragging = true;
    /** @param {PointerEvent} now */
    const move = (now) => {
      dragged ||= Math.hypot(now.clientX - start[0], now.clientY - start[1]) > 4;
      if (dragged) this.view.panBy(now.clientX - last[0], now.clientY - last[1]);
      last = [now.clientX, now.clientY];
    };
    /** @param {PointerEvent} now */
    const end = (now) => {
      this.canvas.removeEventListener("pointermove", move);
      this.dragging = false;
      if (!dragged && now.type === "pointerup") this.click(now);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  /** @param {MouseEvent} event */
  click(event) {
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    if (node < 0 && this.view.state.active < 0) return;
    this.view.activate(node, true);
  }

  /** @param {MouseEvent} event */
  clickTwice(event) {
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    if (node < 0 || !this.view.options.open(node)) this.view.zoomBy(1.8, event.offsetX, event.offsetY);
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (this.dragging) {
      tooltip.hide();
      return;
    }
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    this.canvas.style.cursor = node >= 0 ? "pointer" : "";
    if (node >= 0) tooltip.show(event.clientX, event.clientY, this.view.about(node));
    else tooltip.hide();
    if (node === this.view.state.hover) return;
    this.view.state.hover = node;
    this.view.repaint();
  }

  leave() {
    this.view.state.hover = -1;
    tooltip.hide();
    this.view.repaint();
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!this.view.options.wheelZooms && !event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    this.view.zoomBy(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * lines)) / 400), event.offsetX, event.offsetY);
  }
}

// The keyboard on a graph: from node to node along the edges, zoom, move, choose.

class GraphKeys {
  /** @param {GraphView} view its `state.active` is the node that has the keyboard's focus */
  constructor(view) {
    this.view = view;
    view.canvas.addEventListener("keydown", (event) => this.key(event));
    view.canvas.addEventListener("blur", () => tooltip.hide());
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { view } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, [number, number]>} */
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[event.key];
    /** @type {Record<string, () => void>} */
    const acts = {
      "+": () => view.zoomBy(1.4), "=": () => view.zoomBy(1.4), "-": () => view.zoomBy(1 / 1.4), 0: () => view.fit(), f: () => view.fit(),
      Home: () => view.activate(0, false), End: () => view.activate(view.data.layers - 1, false),
      Enter: () => view.options.open(view.state.active) || view.activate(view.state.active, true), " ": () => view.activate(view.state.active, true),
      Escape: () => view.activate(-1, true),
    };
    if (arrow && event.shiftKey) view.panBy(-60 * arrow[0], -60 * arrow[1]);
    else if (arrow) this.step(...arrow);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  /**
   * Up and down follow the edges, the other keys go to the nearest node on that side.
   * @param {number} dx
   * @param {number} dy
   */
  step(dx, dy) {
    const { view } = this;
    const { data, state } = view;
    if (state.active < 0) {
      view.activate(state.marked.size ? Math.min(...state.marked) : 0, false);
      return;
    }
    const edges = dy < 0 ? data.entering[state.active] : dy > 0 ? data.leaving[state.active] : [];
    const next = edges.map((edge) => (dy < 0 ? data.source[edge] : data.target[edge])).find((node) => node !== state.active);
    view.activate(next ?? data.nearest(state.active, dx, dy), false);
  }
}

/**
 * Options of a view. A layer is a position in `Profile.layers`; inputs and outputs of the model follow as terminals.
 * @typedef {object} GraphOptions
 * @property {string} label for the search field and for screen readers
 * @property {(layer: number) => string} name
 * @property {(layer: number) => string} type
 * @property {(layer: number) => string} [about] the lines of the tooltip; default: the name
 * @property {(layer: number) => string} [search] the text that is searched; default: name and type
 * @property {GraphMode[]} modes the first one is shown first
 * @property {(layer: number) => void} [pick] called for a click or Enter on a layer; -1 when nothing is selected
 * @property {(terminal: number) => void} [pickTerminal] the same for an input or an output
 * @property {(node: number) => boolean} [open] called for a double click or Enter; true if it opened something
 * @property {(node: number) => string} [below] a text below a node, when there is room
 * @property {(layer: number) => string} [second] a line between the type and that of the mode
 * @property {boolean} [finds] has a search field
 * @property {boolean} [wheelZooms] the wheel zooms before the first click
 */

/** @typedef {GraphOptions & Required<Pick<GraphOptions, "search" | "about" | "pick" | "pickTerminal" | "open" | "second">>} ShownOptions */
/** @typedef {{data: GraphData, options: ShownOptions, blocks: Blocks | null}} Level without blocks, its nodes are layers */

// The graph of a profile's layers on a canvas: pan, zoom, fit, search, keyboard, colour modes, legend, minimap. A graph
// with blocks shows these first, and at a click what is in a block: smaller blocks, or nodes. A view without width (in a closed tab) is drawn when
// it opens.

const LEVELS = ["nodes", "blocks", "outer"];
const LEVEL_TITLES = [["Nodes"], ["Nodes", "Blocks"], ["Nodes", "Inner blocks", "Blocks"]];
const GRAPH_LARGEST = 4;
const READABLE = 0.5; // the least scale at which nodes have two lines of text

export class GraphView {
  /**
   * @param {HTMLElement} host
   * @param {GraphShape} graph
   * @param {GraphOptions} options
   */
  constructor(host, graph, options) {
    /** @type {Level} */
    this.whole = {
      data: new GraphData(graph),
      blocks: null,
      options: { search: (layer) => `${options.name(layer)} ${options.type(layer)}`, about: options.name, pick: () => {}, pickTerminal: () => {}, open: () => false, second: () => "", finds: true, ...options },
    };
    this.levels = [this.whole];
    for (let { blocks } = graph; blocks; blocks = blocks.graph.blocks) this.addLevel(blocks);
    const { data: start, options: shown } = this.levels[this.levels.length - 1];
    this.level = this.levels.length - 1;
    this.data = start;
    this.options = shown;
    this.view = { x: 0, y: 0, scale: 1 };
    /** @type {Set<number> | null} layers and terminals of the whole graph that a search found */
    this.found = null;
    /** @type {number[]} */
    this.marked = [];
    /** @type {GraphState} */
    this.state = { mode: options.modes[0], hover: -1, active: -1, marked: new Set(), found: null, words: (node) => this.words(node), below: (node) => this.options.below?.(node) ?? "" };
    this.moved = false;
    this.waiting = 0;
    /** @type {GraphMode[]} */
    this.modes = [];
    this.status = make("output", { "aria-live": "polite" });
    this.choice = make("div", { class: "graph-modes", role: "group", "aria-label": "Colour by" });
    this.choiceOfLevel = make("div", { class: "graph-levels", role: "group", "aria-label": "Show" }, ...this.levels.map((_, level) =>
      make("button", { type: "button", "data-level": LEVELS[level], onclick: () => this.showLevel(level) }, LEVEL_TITLES[this.levels.length - 1][level])).reverse());
    this.canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "graph" });
    this.minimap = make("canvas", { class: "graph-map", "aria-hidden": "true" });
    this.stage = make("div", { class: "graph-stage" }, this.canvas, this.minimap);
    this.legend = make("div", { class: "graph-legend" });
    this.element = make("div", { class: "graph" }, this.tools(), this.stage, this.legend, this.hint());
    host.replaceChildren(this.element);
    this.palette = new GraphPalette(this.element);
    this.painter = new GraphPainter(this.canvas, this.data, this.palette);
    this.map = new GraphMap(this.minimap, this.data, this.palette, (x, y) => this.centreOn(x, y));
    this.listen();
    this.setModes(options.modes);
    this.describeLevel();
    let width = 0;
    new ResizeObserver(() => {
      if (this.stage.clientWidth === 0 || this.stage.clientWidth === width) return;
      width = this.stage.clientWidth;
      this.resize();
    }).observe(this.stage);
  }

  tools() {
    const field = this.options.finds ? new GraphSearch(this).field : "";
    /** @type {(text: string, label: string, act: () => void) => HTMLElement} */
    const button = (text, label, act) => make("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const zoom = make("div", { class: "graph-zoom" },
      button("+", "Zoom in", () => this.zoomBy(1.4)), button("−", "Zoom out", () => this.zoomBy(1 / 1.4)),
      button("Fit", "Fit: show all", () => this.fit()), button("Full screen", "Full screen", () => this.fullScreen()));
    return make("div", { class: "tools graph-tools" }, field, this.status, this.choiceOfLevel, this.choice, zoom);
  }

  hint() {
    const mouse = this.options.wheelZooms ? "" : "Drag to move, Ctrl and wheel to zoom; after a click the wheel alone zooms.";
    const order = this.data.byOrder ? " This profile does not record which tensors its layers read: the edges follow the order of execution." : "";
    return make("p", { class: "graph-hint" }, mouse, order);
  }

  listen() {
    new GraphMouse(this);
    new GraphKeys(this);
    const recolour = () => {
      this.palette.forget();
      this.map.forget();
      this.repaint();
    };
    new MutationObserver(recolour).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    document.addEventListener("fullscreenchange", () => this.changeScreen());
    new ResizeObserver(() => this.repaint()).observe(this.canvas);
  }

  // For callers

  /** @param {number[]} layers */
  mark(layers) {
    this.marked = layers;
    this.state.marked = this.shownNodes(layers);
    const first = [...this.state.marked][0];
    if (layers.length && ![...this.state.marked].some((node) => this.inSight(node))) this.centreOn(...this.data.centre(first));
    this.repaint();
  }

  /**
   * Dim all layers and terminals but these.
   * @param {Set<number> | null} found
   */
  show(found) {
    this.found = found;
    this.state.found = found && this.shownNodes(found);
    this.map.forget();
    this.repaint();
  }

  /** @param {BlockShapes} shapes */
  addLevel(shapes) {
    const level = this.levels.length;
    const blocks = new Blocks(shapes, this.levels[level - 1].blocks);
    if (!blocks.modes(this.whole.options.modes).length) return;
    const folded = blocks.options(this.whole.options, (block) => this.openBlock(level, block));
    this.levels.push({ data: new GraphData(shapes.graph), options: { ...this.whole.options, ...folded }, blocks });
  }

  /**
   * Show the nodes of the graph, 0, or its blocks: the higher the level, the fewer.
   * @param {number} place
   */
  showLevel(place) {
    const level = this.levels[place];
    if (level.data === this.data) return;
    this.level = place;
    this.data = level.data;
    this.options = level.options;
    this.painter = new GraphPainter(this.canvas, this.data, this.palette);
    this.map.show(this.data);
    Object.assign(this.state, { hover: -1, active: -1, marked: this.shownNodes(this.marked), found: this.found && this.shownNodes(this.found) });
    tooltip.hide();
    this.describeLevel();
    this.setModes(this.whole.options.modes);
    this.moved = false;
    this.resize();
  }

  /**
   * @param {number} level
   * @param {number} block
   */
  openBlock(level, block) {
    const members = this.levels[level].blocks?.members[block] ?? [];
    this.showLevel(level - 1);
    this.frame([...this.shownNodes(members)]);
    this.mark(members);
  }

  /** @param {string} key */
  setMode(key) {
    const mode = this.modes.find((known) => known.key === key);
    if (!mode) return;
    this.state.mode = mode;
    for (const button of all("button", this.choice)) button.setAttribute("aria-pressed", String(button.dataset.mode === key));
    this.legend.replaceChildren(...mode.legend());
    this.element.dataset.mode = key;
    this.map.forget();
    this.repaint();
  }

  /**
   * Offer modes. Blocks cannot show one that cannot be added up: then the nodes are shown.
   * @param {GraphMode[]} modes
   */
  setModes(modes) {
    this.whole.options.modes = modes;
    const folded = (this.shownBlocks ?? this.levels[1]?.blocks)?.modes(modes) ?? [];
    this.choiceOfLevel.hidden = !folded.length;
    if (this.shownBlocks && !folded.length) {
      this.showLevel(0);
      return;
    }
    this.modes = this.shownBlocks ? folded : modes;
    this.choice.replaceChildren(...this.modes.map((mode) =>
      make("button", { type: "button", "data-mode": mode.key, onclick: () => this.setMode(mode.key) }, mode.title)));
    this.choice.hidden = modes.length < 2;
    this.setMode(modes.some((mode) => mode.key === this.state.mode.key) ? this.state.mode.key : modes[0].key);
  }

  // The whole graph if it is readable so, else its beginning.
  start() {
    this.fit();
    if (this.view.scale >= READABLE || this.data.length < 2) return;
    this.view.scale = Math.max(READABLE, Math.min(0.8, this.size().width / 400));
    this.view.x = -16 / this.view.scale;
    this.view.y = -16 / this.view.scale;
    this.repaint();
  }

  fit() {
    this.moved = false;
    this.frameBox(0, 0, this.data.width, this.data.height, 1e-4);
  }

  /**
   * Show these nodes, as large as there is room for them.
   * @param {number[]} nodes
   */
  frame(nodes) {
    if (!nodes.length) return;
    const { x, y, nodeWidth, nodeHeight } = this.data;
    const [left, top] = [Math.min(...nodes.map((node) => x[node])), Math.min(...nodes.map((node) => y[node]))];
    const [right, bottom] = [Math.max(...nodes.map((node) => x[node])) + nodeWidth, Math.max(...nodes.map((node) => y[node])) + nodeHeight];
    this.moved = true;
    this.frameBox(left, top, right, bottom, READABLE);
  }

  /**
   * @param {number} left
   * @param {number} top
   * @param {number} right
   * @param {number} bottom
   * @param {number} least scale
   */
  frameBox(left, top, right, bottom, least) {
    const { width, height } = this.size();
    const margin = 16;
    const scale = Math.min((width - 2 * margin) / (right - left), (height - 2 * margin) / (bottom - top), 1.25);
    this.view.scale = Math.max(scale, least);
    this.centreOn((left + right) / 2, (top + bottom) / 2);
  }

  // The view

  // The blocks, while they are shown.
  get shownBlocks() {
    return this.levels[this.level].blocks;
  }

  size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  resize() {
    const wide = this.stage.clientWidth;
    const full = document.fullscreenElement === this.element;
    const high = Math.min(Math.max(220, (wide / this.data.width) * this.data.height + 32), Math.max(320, innerHeight * 0.72), this.data.height * 1.25 + 32);
    this.stage.style.height = full ? "" : `${Math.round(Math.max(high, 160))}px`;
    if (this.moved) this.repaint();
    else this.start();
  }

  describeLevel() {
    const shown = LEVELS[this.level];
    for (const button of all("button", this.choiceOfLevel)) button.setAttribute("aria-pressed", String(button.dataset.level === shown));
    this.element.dataset.level = shown;
    this.canvas.setAttribute("aria-label", `Graph of ${this.options.label}: ${count(this.data.layers)} ${this.level ? "blocks" : "nodes"}. Arrow keys follow the edges, Shift and arrow keys move the picture, plus and minus zoom, 0 shows all, Enter selects.`);
  }

  /**
   * Layers and terminals as nodes of the level that is shown.
   * @param {Iterable<number>} nodes
   */
  shownNodes(nodes) {
    return this.shownBlocks?.around(nodes) ?? new Set(nodes);
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.element.requestFullscreen?.().catch(() => {});
  }

  // Only the inside of a full-screen element is visible, so the tooltip moves there.
  changeScreen() {
    (document.fullscreenElement ?? document.body).append(tooltip.element);
    this.resize();
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  centreOn(x, y) {
    const { width, height } = this.size();
    this.view.x = x - width / 2 / this.view.scale;
    this.view.y = y - height / 2 / this.view.scale;
    this.repaint();
  }

  /**
   * @param {number} dx
   * @param {number} dy
   */
  panBy(dx, dy) {
    this.moved = true;
    this.view.x -= dx / this.view.scale;
    this.view.y -= dy / this.view.scale;
    this.repaint();
  }

  /**
   * Zoom around a point of the canvas, its centre by default.
   * @param {number} factor
   */
  zoomBy(factor, px = this.size().width / 2, py = this.size().height / 2) {
    this.moved = true;
    const [x, y] = this.world(px, py);
    const { width, height } = this.size();
    const least = 0.5 * Math.min(width / this.data.width, height / this.data.height, 1);
    this.view.scale = Math.min(GRAPH_LARGEST, Math.max(least, this.view.scale * factor));
    this.view.x = x - px / this.view.scale;
    this.view.y = y - py / this.view.scale;
    this.repaint();
  }

  /**
   * @param {number} px
   * @param {number} py
   * @returns {[number, number]}
   */
  world(px, py) {
    return [this.view.x + px / this.view.scale, this.view.y + py / this.view.scale];
  }

  /** @param {number} node */
  inSight(node) {
    const { width, height } = this.size();
    const [x, y] = this.data.centre(node);
    const [px, py] = [(x - this.view.x) * this.view.scale, (y - this.view.y) * this.view.scale];
    return px > 0 && py > 0 && px < width && py < height;
  }

  repaint() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (!this.canvas.clientWidth) return;
      this.painter.paint(this.view, this.state);
      this.map.paint(this.view, this.size(), this.state.mode);
    });
  }

  /** @param {number} node */
  words(node) {
    const { data } = this;
    if (node < data.layers) return [this.options.type(node), this.options.second(node), this.state.mode.text(node)];
    return [data.terminals[node - data.layers], node - data.layers < data.inputs ? "input" : "output"];
  }

  /** @param {number} node */
  about(node) {
    return node < this.data.layers ? shortened(this.options.about(node), 600) : this.words(node).map((text) => shortened(text, 200)).join("\n");
  }

  /**
   * @param {number} node
   * @param {boolean} pick
   */
  activate(node, pick) {
    this.state.active = node;
    if (node >= 0 && !this.inSight(node)) this.centreOn(...this.data.centre(node));
    if (node >= 0) this.status.textContent = this.words(node).filter(Boolean).map((text) => shortened(text, 60)).join(", ");
    if (pick && node < this.data.layers) this.options.pick(node);
    else if (pick) this.options.pickTerminal(node - this.data.layers);
    this.repaint();
  }
}
