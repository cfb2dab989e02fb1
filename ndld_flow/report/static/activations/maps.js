// Maps of a tensor: all channels side by side, or one of them enlarged.

/** @import { Look, Side } from "./state.js" */
/** @import { TensorMaps } from "./data.js" */

import { clamp } from "../charts.js";
import { around, make } from "../elements.js";
import { tooltip } from "../widgets.js";
import { paintCanvas } from "./colours.js";
import { MODES } from "./state.js";
import { valueText } from "./values.js";

/**
 * The visible part of a map, in elements, which both sides share.
 * @typedef {object} PlaneView
 * @property {number} x
 * @property {number} y
 * @property {number} across pixels of an element
 * @property {number} down
 * @property {number} width in pixels
 * @property {number} height
 * @property {[number, number] | null} cursor
 * @property {{across: number, down: number}} fit the size at which all of the map is visible
 */

/**
 * @typedef {object} PlaneActions
 * @property {(x: number, y: number) => void} point
 * @property {(x: number, y: number) => void} pan
 * @property {(by: number, x?: number, y?: number) => void} zoom
 * @property {(event: KeyboardEvent) => void} key
 */

/**
 * @typedef {object} Cell
 * @property {HTMLElement} element
 * @property {{side: Side, canvas: HTMLCanvasElement}[]} canvases
 * @property {number} place
 * @property {HTMLElement} cut
 */

// All channels of a tensor side by side. Each is a canvas as large as its map; the page makes it larger.

const CELL = { narrowest: 70, widest: 240, high: 640, below: 22 }; // pixels

export class ChannelGrid {
  /**
   * @param {HTMLElement} host
   * @param {(channel: number) => void} pick is called for the channel that was opened, by its number in the tensor
   */
  constructor(host, pick) {
    this.pick = pick;
    this.room = make("div", { class: "channel-grid", role: "listbox", "aria-label": "Channels", tabindex: 0, onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event), onclick: (/** @type {MouseEvent} */ event) => this.click(event) });
    /** @type {TensorMaps | null} */
    this.maps = null;
    /** @type {number[]} positions in the maps in the order in which they are shown */
    this.order = [];
    /** @type {Side[]} */
    this.sides = [];
    /** @type {Cell[]} */
    this.cells = [];
    host.replaceChildren(this.room);
    new ResizeObserver(() => this.layOut()).observe(this.room);
    this.active = 0; // position on screen
  }

  /**
   * @param {TensorMaps} maps
   * @param {number[]} order positions in the maps in the order in which they are shown
   * @param {Side[]} sides
   * @param {(place: number) => string} describe
   */
  show(maps, order, sides, describe) {
    if (this.maps?.about !== maps.about) this.active = 0;
    this.maps = maps;
    this.order = order;
    this.sides = sides;
    this.cells = order.map((place, position) => this.cell(maps, place, position, describe));
    this.room.replaceChildren(...this.cells.map(({ element }) => element));
    this.active = Math.min(this.active, order.length - 1);
    this.mark();
    this.layOut();
  }

  // Choose a size at which all channels are visible at once, within limits.
  layOut() {
    const wide = this.room.clientWidth;
    if (!wide || !this.maps) return;
    const aspect = (this.maps.width / this.maps.height) * this.sides.length;
    const heightOf = (/** @type {number} */ columns) => Math.ceil(this.order.length / columns) * (Math.min(wide / columns, CELL.widest * this.sides.length) / aspect + CELL.below);
    const least = clamp(CELL.narrowest * Math.sqrt(aspect), CELL.narrowest, wide);
    const most = Math.max(1, Math.floor(wide / least));
    let columns = Math.max(1, Math.ceil(wide / (CELL.widest * this.sides.length)));
    while (columns < most && heightOf(columns) > CELL.high) columns += 1;
    this.room.style.setProperty("--columns", String(columns));
  }

  /**
   * @param {TensorMaps} maps
   * @param {number} place
   * @param {number} position
   * @param {(place: number) => string} describe
   * @returns {Cell}
   */
  cell(maps, place, position, describe) {
    const canvases = this.sides.map((side) => ({ side, canvas: make("canvas", { "aria-hidden": "true", style: `aspect-ratio:${maps.width}/${maps.height}` }) }));
    const number = maps.numbers[place];
    const cut = make("i", { class: "cut", hidden: true });
    const element = make("div", { role: "option", id: `channel-${position}`, "data-position": position, "aria-label": `channel ${number}`, "aria-selected": "false" },
      make("span", { class: "pictures" }, ...canvases.map(({ canvas }) => canvas), cut), make("span", { class: "channel-name" }, String(number)));
    element.addEventListener("pointerenter", (event) => tooltip.show(event.clientX, event.clientY, describe(place)));
    element.addEventListener("pointerleave", () => tooltip.hide());
    return { element, canvases, place, cut };
  }

  /** @param {Look} look */
  paint(look) {
    const { maps } = this;
    if (!maps) return;
    for (const { canvases, place, cut } of this.cells) {
      for (const { canvas, side } of canvases) {
        paintCanvas(canvas, maps, place, look, side);
        canvas.classList.toggle("smooth", maps.width > 200);
      }
      cut.hidden = look.mode !== "split" || !maps.reference || !maps.candidate;
      cut.style.left = `${(Math.round(look.split * maps.width) / maps.width) * 100}%`;
    }
  }

  /** @param {MouseEvent} event */
  click(event) {
    const cell = around(event, "[role=option]");
    if (!cell) return;
    tooltip.hide();
    this.active = Number(cell.dataset.position);
    this.open();
  }

  open() {
    if (this.maps) this.pick(this.maps.numbers[this.order[this.active]]);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = this.order.length - 1;
    const across = this.cells.filter(({ element }) => element.offsetTop === this.cells[0].element.offsetTop).length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -last, End: last }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) this.active = clamp(this.active + by, 0, last);
    else if (event.key === "Enter" || event.key === " ") this.open();
    else return;
    event.preventDefault();
    this.mark();
    this.cells[this.active]?.element.scrollIntoView({ block: "nearest" });
  }

  mark() {
    this.cells.forEach(({ element }, position) => element.setAttribute("aria-selected", String(position === this.active)));
    this.room.setAttribute("aria-activedescendant", `channel-${this.active}`);
  }
}

// One channel or matrix as a picture that can be moved and zoomed, with numbers where there is room.

const NUMBERS_FROM = 46; // pixels of an element

class Plane {
  /**
   * @param {Side} side
   * @param {PlaneView} view
   * @param {PlaneActions} actions of the reader
   */
  constructor(side, view, actions) {
    this.side = side;
    this.view = view;
    this.actions = actions;
    /** @type {{maps: TensorMaps, channel: number, look: Look} | null} */
    this.shown = null;
    this.canvas = make("canvas", { class: "plane", role: "img", tabindex: 0 });
    this.source = document.createElement("canvas");
    this.listen();
  }

  listen() {
    const { canvas, actions } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => event.buttons === 0 && actions.point(...this.element(event)));
    canvas.addEventListener("dblclick", (event) => actions.zoom(2, event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      actions.zoom(Math.exp(-clamp(event.deltaY * (event.deltaMode === 1 ? 16 : 1), -240, 240) / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => actions.key(event));
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    let last = [event.clientX, event.clientY];
    this.canvas.setPointerCapture(event.pointerId);
    this.actions.point(...this.element(event));
    const move = (/** @type {PointerEvent} */ now) => {
      this.actions.pan(now.clientX - last[0], now.clientY - last[1]);
      last = [now.clientX, now.clientY];
    };
    const end = () => this.canvas.removeEventListener("pointermove", move);
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  /**
   * The element of the map under the pointer.
   * @param {MouseEvent} event
   * @returns {[number, number]}
   */
  element(event) {
    return [Math.floor(this.view.x + event.offsetX / this.view.across), Math.floor(this.view.y + event.offsetY / this.view.down)];
  }

  /**
   * @param {TensorMaps} maps
   * @param {number} channel
   * @param {Look} look
   */
  paint(maps, channel, look) {
    paintCanvas(this.source, maps, channel, look, this.side);
    this.shown = { maps, channel, look };
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { maps, channel, look } = this.shown;
    const { canvas, source, view } = this;
    const dots = devicePixelRatio;
    canvas.width = Math.round(view.width * dots);
    canvas.height = Math.round(view.height * dots);
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(dots, dots);
    context.imageSmoothingEnabled = Math.min(view.across, view.down) * dots < 1;
    context.drawImage(source, -view.x * view.across, -view.y * view.down, source.width * view.across, source.height * view.down);
    if (view.across >= NUMBERS_FROM && view.down >= 16 && look.mode !== "mix") this.drawNumbers(context, maps, channel, look);
    this.drawCursor(context, maps);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {TensorMaps} maps
   * @param {number} channel
   * @param {Look} look
   */
  drawNumbers(context, maps, channel, look) {
    const { view } = this;
    context.font = "11px ui-monospace, monospace";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = "#0009";
    context.fillStyle = "#fff";
    for (let y = Math.max(0, Math.floor(view.y)); y < Math.min(maps.height, view.y + view.height / view.down); y++) {
      for (let x = Math.max(0, Math.floor(view.x)); x < Math.min(maps.width, view.x + view.width / view.across); x++) {
        const text = valueText(shownValue(maps, channel, x, y, look, this.side), 3);
        /** @type {[number, number]} */
        const at = [(x + 0.5 - view.x) * view.across, (y + 0.5 - view.y) * view.down];
        context.strokeText(text, ...at);
        context.fillText(text, ...at);
      }
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {TensorMaps} maps
   */
  drawCursor(context, maps) {
    const { view } = this;
    if (view.cursor === null) return;
    const [x, y] = view.cursor;
    if (x >= maps.width || y >= maps.height) return;
    const box = [(x - view.x) * view.across, (y - view.y) * view.down, view.across, view.down];
    for (const [colour, room] of /** @type {[string, number][]} */ ([["#000", 1.5], ["#fff", 0.5]])) {
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.strokeRect(box[0] - room, box[1] - room, box[2] + 2 * room, box[3] + 2 * room);
    }
  }
}

/**
 * The value of an element that a mode shows.
 * @param {TensorMaps} maps
 * @param {number} channel
 * @param {number} x
 * @param {number} y
 * @param {Look} look
 * @param {Side} side
 */
function shownValue(maps, channel, x, y, look, side) {
  const place = channel * maps.size + y * maps.width + x;
  const value = (/** @type {Side} */ shown) => maps[shown]?.value(place) ?? NaN;
  if (look.mode === "difference") return value("candidate") - value("reference");
  if (look.mode === "split") return value(x < Math.round(look.split * maps.width) ? "reference" : "candidate");
  return value(side);
}

// The enlarged view of one channel or matrix: one picture, or those of both models, which move together.

const PLANE = { most: 560, least: 64, zoomMost: 96 };

export class LargeView {
  /**
   * @param {HTMLElement} host
   * @param {{leave: () => void, step: (by: number) => void, split: (fraction: number) => void, splitBy: (fraction: number) => void}} actions
   */
  constructor(host, actions) {
    this.actions = actions;
    /** @type {{maps: TensorMaps, channel: number} | null} */
    this.shown = null;
    /** @type {Record<Side, string>} */
    this.names = { reference: "", candidate: "" };
    /** @type {Side[]} */
    this.sides = [];
    /** @type {Plane[]} */
    this.planes = [];
    /** @type {Look | null} */
    this.look = null;
    this.layWidth = 0;
    /** @type {PlaneView} */
    this.view = { x: 0, y: 0, across: 1, down: 1, width: 1, height: 1, cursor: null, fit: { across: 1, down: 1 } };
    this.title = make("h3", { class: "minor" });
    this.readout = make("output", { class: "readout mono", "aria-live": "polite" });
    this.divider = make("div", { class: "divider", role: "slider", tabindex: 0, "aria-label": "Split between reference and candidate", "aria-valuemin": 0, "aria-valuemax": 100 });
    this.stage = make("div", { class: "planes" });
    /** @type {(text: string, label: string, onclick: () => void) => HTMLElement} */
    const button = (text, label, onclick) => make("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    this.back = make("span", { class: "buttons" }, button("‹ All channels", "All channels (Esc)", () => actions.leave()),
      button("↑", "Previous channel (PageUp)", () => actions.step(-1)), button("↓", "Next channel (PageDown)", () => actions.step(1)));
    const zooms = make("span", { class: "buttons" }, button("−", "Smaller (-)", () => this.zoom(0.5)), button("+", "Larger (+)", () => this.zoom(2)), button("Whole", "All of it (0)", () => this.whole()));
    this.element = make("div", { class: "large-view" }, make("div", { class: "tools" }, this.back, this.title, zooms), this.stage, this.readout);
    host.replaceChildren(this.element);
    this.listenDivider();
    new ResizeObserver(() => this.layOut()).observe(this.stage);
  }

  /**
   * @param {TensorMaps} maps
   * @param {number} channel
   * @param {{sides: Side[], title: string, alone: boolean, names: Record<Side, string>}} options `alone` when there is no other channel
   */
  show(maps, channel, { sides, title, alone, names }) {
    const same = this.shown?.maps === maps;
    this.shown = { maps, channel };
    this.names = names;
    this.title.textContent = title;
    this.back.hidden = alone;
    if (!same) this.view.cursor = null;
    if (!same || this.sides.join() !== sides.join()) {
      this.sides = sides;
      this.planes = sides.map((side) => new Plane(side, this.view, {
        point: (x, y) => this.point(x, y), pan: (x, y) => this.pan(x, y), zoom: (by, x, y) => this.zoom(by, x, y), key: (event) => this.key(event),
      }));
      this.stage.replaceChildren(...this.planes.map(({ canvas, side }) => make("figure", {}, canvas, sides.length > 1 ? make("figcaption", {}, names[side]) : "")), this.divider);
      this.layWidth = 0;
      this.layOut();
    }
  }

  /** @param {Look} look */
  paint(look) {
    this.look = look;
    if (!this.shown) return;
    for (const plane of this.planes) {
      plane.paint(this.shown.maps, this.shown.channel, look);
      plane.canvas.setAttribute("aria-label", `${this.title.textContent}, ${MODES[look.mode]}. Arrow keys read elements, + and - zoom.`);
    }
    this.placeDivider();
    this.showReadout();
  }

  // As large as there is room; very thin maps are stretched.
  layOut() {
    if (!this.shown) return;
    const { view, stage, shown: { maps } } = this;
    const room = Math.floor((stage.clientWidth - 10 * (this.planes.length - 1)) / this.planes.length);
    if (room < 1 || room === this.layWidth) return;
    this.layWidth = room;
    const zoom = Math.min(room / maps.width, PLANE.most / maps.height);
    view.fit = { across: Math.max(zoom, Math.min(PLANE.least / maps.width, room / maps.width)), down: Math.max(zoom, PLANE.least / maps.height) };
    Object.assign(view, { width: Math.round(view.fit.across * maps.width), height: Math.round(view.fit.down * maps.height) });
    this.whole();
  }

  whole() {
    Object.assign(this.view, { x: 0, y: 0, ...this.view.fit });
    this.redraw();
  }

  redraw() {
    for (const plane of this.planes) plane.draw();
    this.placeDivider();
  }

  /**
   * @param {number} by
   * @param {number} [x] the point that stays, in pixels
   * @param {number} [y]
   */
  zoom(by, x = this.view.width / 2, y = this.view.height / 2) {
    const { view } = this;
    const most = Math.max(1, PLANE.zoomMost / view.fit.across);
    const factor = clamp((view.across / view.fit.across) * by, 1, most) / (view.across / view.fit.across);
    view.x += x / view.across - x / (view.across * factor);
    view.y += y / view.down - y / (view.down * factor);
    view.across *= factor;
    view.down *= factor;
    this.keepInside();
    this.redraw();
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  pan(x, y) {
    this.view.x -= x / this.view.across;
    this.view.y -= y / this.view.down;
    this.keepInside();
    this.redraw();
  }

  keepInside() {
    if (!this.shown) return;
    const { view, shown: { maps } } = this;
    view.x = clamp(view.x, 0, Math.max(0, maps.width - view.width / view.across));
    view.y = clamp(view.y, 0, Math.max(0, maps.height - view.height / view.down));
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  point(x, y) {
    if (!this.shown) return;
    const { maps } = this.shown;
    this.view.cursor = [clamp(x, 0, maps.width - 1), clamp(y, 0, maps.height - 1)];
    this.redraw();
    this.showReadout();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const many = event.shiftKey ? 10 : 1;
    if (by) this.move(by[0] * many, by[1] * many);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5, ...this.cursorPlace());
    else if (event.key === "-") this.zoom(1 / 1.5, ...this.cursorPlace());
    else if (event.key === "0") this.whole();
    else if (event.key === "PageUp" || event.key === "PageDown") this.actions.step(event.key === "PageUp" ? -1 : 1);
    else return;
    event.preventDefault();
  }

  /**
   * Move the cursor by an element and scroll it into view.
   * @param {number} across
   * @param {number} down
   */
  move(across, down) {
    if (!this.shown) return;
    const { view, shown: { maps } } = this;
    const [x, y] = view.cursor ?? [-across, -down];
    view.cursor = [clamp(x + across, 0, maps.width - 1), clamp(y + down, 0, maps.height - 1)];
    const [atX, atY] = view.cursor;
    view.x = clamp(view.x, atX + 1 - view.width / view.across, atX);
    view.y = clamp(view.y, atY + 1 - view.height / view.down, atY);
    this.redraw();
    this.showReadout();
  }

  /** @returns {[number, number] | []} */
  cursorPlace() {
    const { view } = this;
    return view.cursor ? [(view.cursor[0] + 0.5 - view.x) * view.across, (view.cursor[1] + 0.5 - view.y) * view.down] : [];
  }

  showReadout() {
    const { view } = this;
    if (view.cursor === null || !this.shown) {
      this.readout.textContent = "Point at an element, or press an arrow key in the picture, to read it.";
      return;
    }
    const { maps, channel } = this.shown;
    const [x, y] = view.cursor;
    const place = channel * maps.size + y * maps.width + x;
    const [reference, candidate] = [maps.reference?.value(place), maps.candidate?.value(place)];
    const words = [maps.isStrip ? `channel ${maps.numbers[x]}` : elementText(maps.about, x, y)];
    if (reference !== undefined) words.push(`${this.names.reference} ${valueText(reference)}`);
    if (candidate !== undefined) words.push(`${this.names.candidate} ${valueText(candidate)}`);
    if (reference !== undefined && candidate !== undefined) words.push(`difference ${valueText(candidate - reference, 4)}`);
    this.readout.textContent = words.join("   ");
  }

  // The divider of the split mode: dragged, or moved with the arrow keys.
  listenDivider() {
    const { divider } = this;
    divider.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      divider.focus();
      divider.setPointerCapture(event.pointerId);
      const move = (/** @type {PointerEvent} */ now) => {
        if (!this.shown) return;
        const left = now.clientX - this.planes[0].canvas.getBoundingClientRect().left;
        this.actions.split(clamp((this.view.x + left / this.view.across) / this.shown.maps.width, 0, 1));
      };
      const end = () => divider.removeEventListener("pointermove", move);
      divider.addEventListener("pointermove", move);
      divider.addEventListener("pointerup", end, { once: true });
      divider.addEventListener("pointercancel", end, { once: true });
    });
    divider.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -100, End: 100 }[event.key];
      if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.actions.splitBy(by / 100); // the painting may be older than the last key
    });
  }

  placeDivider() {
    const { view, look, divider } = this;
    if (!this.shown || !look) return;
    const { maps } = this.shown;
    divider.hidden = look.mode !== "split" || !maps.reference || !maps.candidate;
    if (divider.hidden) return;
    const at = (Math.round(look.split * maps.width) - view.x) * view.across;
    divider.style.left = `${this.planes[0].canvas.offsetLeft + clamp(at, 0, view.width)}px`;
    divider.style.height = `${view.height}px`;
    divider.setAttribute("aria-valuenow", String(Math.round(look.split * 100)));
    divider.setAttribute("aria-valuetext", `reference left of ${Math.round(look.split * 100)} %`);
  }
}

/**
 * The position of an element in the tensor; for a reduced map, the elements that it covers.
 * @param {MapData} map
 * @param {number} x
 * @param {number} y
 */
function elementText({ scale: step, full }, x, y) {
  if (step === 1) return `x ${x}, y ${y}`;
  /**
   * @param {number} place
   * @param {number} most
   */
  const end = (place, most) => (most > 0 ? Math.min((place + 1) * step, most) : (place + 1) * step) - 1;
  return `largest of x ${x * step} to ${end(x, full[1])}, y ${y * step} to ${end(y, full[0])}`;
}
