// Points of a sweep as lines over parallel axes, and the brushes that filter them.

/** @import { DrawnDimension, SweepData } from "./data.js" */

import { colorsAt, drawAtWidth } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { counted } from "../quantities.js";
import { tooltip } from "../widgets.js";

// The brushes on the axes of the parallel coordinates: ranges between 0 and 1 that points must be in.

class Brushes {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    /** @type {Map<DrawnDimension, [number, number]>} */
    this.parts = new Map();
  }

  /**
   * @param {DrawnDimension} dimension
   * @returns {[number, number]}
   */
  of(dimension) {
    return this.parts.get(dimension) ?? [0, 1];
  }

  /**
   * @param {DrawnDimension} dimension
   * @param {number} low
   * @param {number} high
   */
  set(dimension, low, high) {
    const [from, to] = [Math.max(0, Math.min(low, high)), Math.min(1, Math.max(low, high))];
    if (from <= 0 && to >= 1) this.parts.delete(dimension);
    else this.parts.set(dimension, [from, to]);
    this.changed();
  }

  /** @param {DrawnDimension} [dimension] default: all */
  clear(dimension) {
    if (dimension ? !this.parts.delete(dimension) : this.parts.size === 0) return;
    if (!dimension) this.parts.clear();
    this.changed();
  }

  /** @param {number} row */
  keeps(row) {
    for (const [part, [low, high]] of this.parts) {
      const place = part.fraction(row);
      if (place === null || place < low - 1e-9 || place > high + 1e-9) return false;
    }
    return true;
  }

  /**
   * `from 2 to 8`, for screen readers.
   * @param {DrawnDimension} dimension
   */
  words(dimension) {
    const [low, high] = this.of(dimension);
    if (!this.parts.has(dimension)) return "every value";
    const [from, to] = [dimension.at(low), dimension.at(high)];
    return from === to ? from : `${from} to ${to}`;
  }

  /**
   * Up and down move the upper end, with Shift the lower one: by a value of the axis, or a twentieth of it.
   * @param {DrawnDimension} dimension
   * @param {KeyboardEvent} event
   */
  key(dimension, event) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (["Escape", "Delete", "Backspace"].includes(event.key)) this.clear(dimension);
    else if (by) {
      const step = dimension.isText ? 1 / Math.max(1, dimension.texts.length - 1) : 0.05;
      const [low, high] = this.of(dimension);
      const move = (/** @type {number} */ end) => Math.round((end + by * step) * 1e6) / 1e6;
      if (event.shiftKey) this.set(dimension, Math.min(move(low), high), high);
      else this.set(dimension, low, Math.max(move(high), low));
    } else return;
    event.preventDefault();
  }
}

// Parallel coordinates: a line for each point through all its values; brushes on the axes filter the table.

const PARALLEL = { height: 380, top: 54, bottom: 34, side: 70, least: 104 };

export class Parallel {
  /**
   * @param {HTMLElement} host
   * @param {SweepData} data
   * @param {{pick: (row: number, more: boolean) => void, changed: () => void}} options `pick` is called for a line that
   *   was clicked, `changed` when the brushes change
   */
  constructor(host, data, { pick, changed }) {
    this.data = data;
    this.pick = pick;
    /** @type {number[]} */
    this.selected = [];
    /** @type {(row: number) => boolean} */
    this.alive = () => true;
    this.near = -1;
    this.width = 0;
    /** @type {number[]} */
    this.x = [];
    /** @type {number[][]} the heights of each row's line at the axes */
    this.rows = [];
    /** @type {Map<DrawnDimension, {mark: SVGElement, group: SVGElement}>} */
    this.brushMarks = new Map();
    this.canvas = make("canvas");
    this.svg = draw("svg");
    this.shown = new Set(data.dimensions.filter((dimension) => dimension.isDefault).slice(0, 12));
    this.brushes = new Brushes(() => {
      this.paint();
      this.showStatus();
      changed();
    });
    this.about = make("output", { "aria-live": "polite" });
    this.clear = make("button", { type: "button", hidden: true, onclick: () => this.brushes.clear() }, "Clear brushes");
    this.room = make("div", { class: "parallel-room" });
    host.replaceChildren(make("div", { class: "tools" }, this.about, this.clear, this.chooser()),
      make("figure", { class: "picture parallel" }, this.room),
      make("p", { class: "quiet small with-script" }, "Drag along an axis to keep the points in that part. By keyboard: Tab to an axis, ↑ ↓ move the upper end, with Shift the lower one, Esc clears."));
    this.picture = drawAtWidth(this.room, (width) => this.draw(width));
  }

  get axes() {
    return this.data.dimensions.filter((dimension) => this.shown.has(dimension) && (dimension.isText || dimension.low <= dimension.high));
  }

  chooser() {
    const choices = this.data.dimensions.map((dimension) => {
      const box = make("input", { type: "checkbox", checked: this.shown.has(dimension) });
      box.addEventListener("change", () => {
        if (box.checked) this.shown.add(dimension);
        else this.shown.delete(dimension);
        this.brushes.clear(dimension);
        this.picture.again();
      });
      return make("label", {}, box, shortened(dimension.label, 60));
    });
    return make("details", { class: "chooser" }, make("summary", {}, "Axes"), make("div", {}, ...choices));
  }

  /**
   * @param {(row: number) => boolean} alive
   * @param {number[]} selected
   */
  follow(alive, selected) {
    this.alive = alive;
    this.selected = selected;
    this.showStatus();
    this.paint();
  }

  showStatus() {
    const { parts } = this.brushes;
    this.clear.hidden = parts.size === 0;
    this.about.textContent = parts.size === 0 ? counted(this.data.length, "point")
      : [...parts.keys()].map((part) => `${part.short}: ${this.brushes.words(part)}`).join("; ");
  }

  /** @param {number} width */
  draw(width) {
    const { axes } = this;
    this.width = Math.max(width, 2 * PARALLEL.side + (axes.length - 1) * PARALLEL.least);
    const gap = axes.length > 1 ? (this.width - 2 * PARALLEL.side) / (axes.length - 1) : 0;
    this.x = axes.map((_, place) => PARALLEL.side + place * gap);
    this.canvas = make("canvas", { role: "img", "aria-label": `Parallel coordinates of ${counted(this.data.length, "point")}` });
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${PARALLEL.height}px`;
    this.svg = draw("svg", { width: this.width, height: PARALLEL.height, viewBox: `0 0 ${this.width} ${PARALLEL.height}` });
    this.svg.style.width = `${this.width}px`;
    this.brushMarks.clear();
    this.svg.append(...axes.map((axis, place) => this.axis(axis, this.x[place], gap || 200)));
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.hoverAt(-1));
    this.svg.addEventListener("click", (event) => this.near >= 0 && this.pick(this.near, event.shiftKey || event.ctrlKey || event.metaKey));
    this.room.replaceChildren(this.canvas, this.svg);
    this.layRows();
    this.showStatus();
    this.paint();
  }

  /** @param {number} fraction */
  y(fraction) {
    const low = PARALLEL.height - PARALLEL.bottom;
    return low - fraction * (low - PARALLEL.top);
  }

  // A line passes below an axis on which its value is not known.
  layRows() {
    const none = PARALLEL.height - 12;
    this.rows = Array.from({ length: this.data.length }, (_, row) =>
      this.axes.map((axis) => {
        const place = axis.fraction(row);
        return place === null ? none : this.y(place);
      }));
    const lacking = this.axes.findIndex((axis) => !axis.isText && axis.numbers.includes(null));
    if (lacking >= 0) this.svg.append(draw("text", { x: this.x[lacking], y: none + 11, "text-anchor": "middle" }, "not reached"));
  }

  /**
   * @param {DrawnDimension} dimension
   * @param {number} x
   * @param {number} gap
   */
  axis(dimension, x, gap) {
    const [top, bottom] = [PARALLEL.top, PARALLEL.height - PARALLEL.bottom];
    const letters = Math.max(8, Math.floor(gap / 7.4));
    const better = dimension.kind === "objective" ? { minimize: " ↓", maximize: " ↑" }[dimension.direction] ?? "" : "";
    const mark = draw("rect", { class: "brush", x: x - 9, width: 18, rx: 3 });
    const hit = draw("rect", { class: "brush-hit", x: x - 20, width: 40, y: top - 8, height: bottom - top + 16 });
    const group = draw("g", {
      class: `axis${dimension.kind === "objective" ? " goal" : ""}`, tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-label": dimension.label,
      "aria-valuemin": 0, "aria-valuemax": 100,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.brushes.key(dimension, event),
    },
    draw("title", {}, dimension.label),
    draw("line", { class: "axis-line", x1: x, x2: x, y1: top, y2: bottom }),
    ...axisName(dimension.short + better, x, Math.max(8, Math.floor(gap / 8.4)), this.width),
    mark, ...this.marks(dimension, x, letters), hit);
    this.brushMarks.set(dimension, { mark, group });
    hit.addEventListener("pointerdown", (event) => this.drag(dimension, event, hit));
    hit.addEventListener("dblclick", () => this.brushes.clear(dimension));
    return group;
  }

  /**
   * @param {DrawnDimension} dimension
   * @param {number} x
   * @param {number} letters
   */
  marks(dimension, x, letters) {
    const all = dimension.marks(6);
    const every = Math.ceil(all.length / 14);
    return all.filter((_, place) => place % every === 0).flatMap(({ value, text }) => {
      const y = this.y(dimension.fractionOf(value));
      return [draw("line", { class: "axis-line", x1: x - 3, x2: x + 3, y1: y, y2: y }),
        draw("text", { x: x + 7, y: y + 4 }, shortened(text, Math.min(16, letters - 1)))];
    });
  }

  /**
   * @param {DrawnDimension} dimension
   * @param {PointerEvent} event
   * @param {SVGElement} hit
   */
  drag(dimension, event, hit) {
    const box = this.svg.getBoundingClientRect();
    const place = (/** @type {PointerEvent} */ moved) => (this.y(0) - (moved.clientY - box.top)) / (this.y(0) - this.y(1));
    const start = place(event);
    hit.setPointerCapture(event.pointerId);
    this.brushMarks.get(dimension)?.group.focus({ preventScroll: true });
    const move = (/** @type {PointerEvent} */ moved) => Math.abs(place(moved) - start) > 0.01 && this.brushes.set(dimension, start, place(moved));
    hit.addEventListener("pointermove", move);
    hit.addEventListener("pointerup", () => hit.removeEventListener("pointermove", move), { once: true });
  }

  /**
   * The line that passes nearest to the pointer.
   * @param {PointerEvent} event
   */
  hover(event) {
    if (event.buttons) return;
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const right = this.x.findIndex((place) => place >= x);
    if (right < 1) return void this.hoverAt(-1);
    const part = (x - this.x[right - 1]) / (this.x[right] - this.x[right - 1]);
    let [best, far] = [-1, 8];
    this.rows.forEach((line, row) => {
      const away = Math.abs(line[right - 1] + part * (line[right] - line[right - 1]) - y);
      if (away < far && this.alive(row)) [best, far] = [row, away];
    });
    if (best < 0) this.hoverAt(-1);
    else this.hoverAt(best, event);
  }

  /**
   * @param {number} row
   * @param {PointerEvent} [event]
   */
  hoverAt(row, event) {
    if (event) tooltip.show(event.clientX, event.clientY, [this.data.title(row), ...this.axes.map((axis) => `${axis.short} ${shortened(axis.text(row), 40)}`), ...this.data.againWords(row)].join("\n"));
    else tooltip.hide();
    if (row === this.near) return;
    this.near = row;
    this.paint();
  }

  paint() {
    if (!this.width) return;
    for (const [dimension, { mark, group }] of this.brushMarks) {
      const [low, high] = this.brushes.of(dimension);
      const on = this.brushes.parts.has(dimension);
      mark.setAttribute("y", String(this.y(high) - 2));
      mark.setAttribute("height", String(on ? this.y(low) - this.y(high) + 4 : 0));
      group.setAttribute("aria-valuetext", this.brushes.words(dimension));
      group.setAttribute("aria-valuenow", String(Math.round(high * 100)));
    }
    paintLines(this);
  }
}

/**
 * A long name on two lines, split at a dot; near the edges it moves inwards.
 * @param {string} text
 * @param {number} x
 * @param {number} letters
 * @param {number} width
 */
function axisName(text, x, letters, width) {
  const dot = text.lastIndexOf(".", text.length - 2);
  const parts = text.length <= letters ? [text] : dot > 0 ? [text.slice(0, dot + 1), text.slice(dot + 1)] : [text.slice(0, letters), text.slice(letters)];
  return parts.map((part, place) => {
    const line = shortened(part, letters);
    const half = 4.3 * line.length;
    return draw("text", { class: "strong", x: Math.min(Math.max(x, half), width - half), y: PARALLEL.top - 16 - 15 * (parts.length - 1 - place), "text-anchor": "middle" }, line);
  });
}

/**
 * The better the rank of a point, the stronger its line; filtered points stay as a shadow.
 * @param {Parallel} view
 */
function paintLines(view) {
  const { canvas, data, rows, x } = view;
  const dots = Math.max(1, devicePixelRatio || 1);
  canvas.width = view.width * dots;
  canvas.height = PARALLEL.height * dots;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(dots, dots);
  const colors = colorsAt(view.room, ["series-0", "series-1", "series-7", "strong-line", "ink"]);
  /** @type {(row: number, color: string, alpha: number, width: number, dash?: number[]) => void} */
  const line = (row, color, alpha, width, dash = []) => {
    Object.assign(pen, { strokeStyle: color, globalAlpha: alpha, lineWidth: width, lineJoin: "round" });
    pen.setLineDash(dash);
    pen.beginPath();
    rows[row].forEach((y, place) => pen.lineTo(x[place], y));
    pen.stroke();
  };
  const all = rows.map((_, row) => row);
  const alive = all.filter((row) => view.alive(row));
  const shadow = Math.min(0.3, 40 / Math.max(1, data.length));
  if (alive.length < all.length) for (const row of all) if (!view.alive(row)) line(row, colors["strong-line"], Math.max(0.05, shadow), 1);
  const { ranked } = data;
  const dense = Math.min(1, (80 / Math.max(1, alive.length)) ** 0.7);
  const least = alive.length <= 40 ? 0.35 : 0.14;
  const strength = (/** @type {number} */ row) => (ranked ? least + (0.8 - least) * (1 - (data.points[row].rank ?? ranked) / ranked) ** 2 : 0.5);
  for (const row of alive.sort((a, b) => (data.points[b].rank ?? Infinity) - (data.points[a].rank ?? Infinity))) {
    if (data.passed(row)) line(row, colors["series-0"], Math.max(0.03, strength(row) * dense), 1.3);
    else line(row, colors["series-7"], Math.max(0.1, 0.6 * dense), 1.2, [2, 4]);
  }
  for (const row of alive) {
    const mark = data.points[row].mark;
    if (mark === "tie") line(row, colors["series-1"], 0.75, 1.6, [7, 4]);
    if (mark === "best") line(row, colors["series-1"], 1, 3);
  }
  for (const row of [...view.selected.slice(0, 50), ...(view.near >= 0 ? [view.near] : [])]) line(row, colors.ink, 0.9, 2);
}
