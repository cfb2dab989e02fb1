// Charts of one profile's layers: time by type and precision, and the roofline.

/** @import { LayerData } from "./layer_data.js" */

import { drawAtWidth, scale } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { count, counted, milliseconds, share, threeDigits } from "../quantities.js";
import { tooltip } from "../widgets.js";

/** @typedef {ReturnType<LayerData["byType"]>[number]} LayerType */

/** @typedef {{precision: string, count: number, ms: number}} Part */

/** @typedef {{name: string, type: string | null, count: number, ms: number, color: number | null, parts: Part[]}} Group */

/** @typedef {Group & {precision?: string, ring: "type" | "precision", from: number, to: number, shade: number, words: string[]}} Slice with its angles in radians */

/** @typedef {{row: number, label: string, series: number, unit: string, precision: string, name: string, x: number, y: number, ms: number, share: number}} RooflinePoint */

// Time as two rings: types within, the precisions of each type around them.

const PIE_TYPES = 7;
const PIE_COLORS = [0, 4, 2, 3, 6, 1, 9];
/** @type {Record<"type" | "precision", [number, number]>} the inner and the outer radius */
const RINGS = { type: [44, 84], precision: [86, 118] };

/**
 * @param {number} from
 * @param {number} to
 * @param {[number, number]} radii
 */
function ringSlice(from, to, [inner, outer]) {
  // A whole ring cannot be one arc: its ends would meet.
  const end = Math.min(to, from + 2 * Math.PI - 1e-4);
  /**
   * @param {number} angle
   * @param {number} radius
   */
  const at = (angle, radius) => `${(Math.sin(angle) * radius).toFixed(2)} ${(-Math.cos(angle) * radius).toFixed(2)}`;
  const large = end - from > Math.PI ? 1 : 0;
  return `M${at(from, outer)}A${outer} ${outer} 0 ${large} 1 ${at(end, outer)}L${at(end, inner)}A${inner} ${inner} 0 ${large} 0 ${at(from, inner)}Z`;
}

export class NestedPie {
  /**
   * @param {HTMLElement} host
   * @param {LayerType[]} types
   * @param {{label: string, pick?: (chosen: {type: string, precision?: string}) => void}} options `pick` is called for a click
   */
  constructor(host, types, { label, pick = () => {} }) {
    this.pick = pick;
    this.label = label;
    this.now = -1;
    this.total = types.reduce((sum, { ms }) => sum + ms, 0);
    this.groups = this.together(types);
    this.precisions = this.longestPrecisions();
    this.slices = this.layOut();
    this.svg = draw("svg", {
      viewBox: "-124 -124 248 248", role: "application", "aria-roledescription": "pie chart", tabindex: 0,
      "aria-label": `Time of ${shortened(label, 60)} by type and precision. Left and right move through the parts, Enter shows their layers.`,
    });
    this.paths = this.slices.map((slice, place) => this.path(slice, place));
    this.middle = draw("text", { class: "strong", "text-anchor": "middle", y: 5 }, milliseconds(this.total));
    this.svg.append(...this.paths, this.middle);
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("pointerleave", () => this.leave());
    host.replaceChildren(make("figure", { class: "picture pie" }, this.svg, this.legend()));
  }

  /**
   * The longest types, and one slice for the rest, so that no slice is a hair.
   * @param {LayerType[]} types
   * @returns {Group[]}
   */
  together(types) {
    const shown = types.length > PIE_TYPES + 1 ? types.slice(0, PIE_TYPES) : types.slice(0, PIE_TYPES + 1);
    /** @type {Group[]} */
    const groups = shown.map((group, place) => ({
      name: group.type || "(no type)", type: group.type, count: group.count, ms: group.ms, color: PIE_COLORS[place] ?? null,
      parts: [...group.precisions.values()],
    }));
    const rest = types.slice(shown.length);
    if (rest.length === 0) return groups;
    /** @type {Map<string, Part>} */
    const parts = new Map();
    for (const entry of rest.flatMap(({ precisions }) => [...precisions.values()])) {
      const part = parts.get(entry.precision) ?? { precision: entry.precision, count: 0, ms: 0 };
      parts.set(entry.precision, { ...part, count: part.count + entry.count, ms: part.ms + entry.ms });
    }
    /** @param {"count" | "ms"} key */
    const sum = (key) => rest.reduce((all, entry) => all + entry[key], 0);
    return [...groups, { name: `${count(rest.length)} more types`, type: null, count: sum("count"), ms: sum("ms"), color: null, parts: [...parts.values()] }];
  }

  longestPrecisions() {
    /** @type {Map<string, number>} */
    const sums = new Map();
    for (const { precision, ms } of this.groups.flatMap(({ parts }) => parts)) sums.set(precision, (sums.get(precision) ?? 0) + ms);
    return [...sums].sort((a, b) => b[1] - a[1]).map(([precision]) => precision);
  }

  layOut() {
    /** @type {Slice[]} */
    const types = [];
    /** @type {Slice[]} */
    const precisions = [];
    const turn = (2 * Math.PI) / (this.total || 1);
    let angle = 0;
    for (const group of this.groups) {
      types.push({ ...group, ring: "type", from: angle, to: angle + group.ms * turn, shade: 0, words: [group.name] });
      for (const part of group.parts.sort((a, b) => b.ms - a.ms)) {
        const words = [group.name, part.precision || "(no precision)"];
        precisions.push({ ...group, ...part, ring: "precision", from: angle, to: angle + part.ms * turn, shade: this.precisions.indexOf(part.precision), words });
        angle += part.ms * turn;
      }
    }
    return [...types, ...precisions];
  }

  /**
   * @param {Slice} slice
   * @param {number} place
   */
  path(slice, place) {
    const path = draw("path", {
      class: `slice ${slice.color === null ? "rest" : `series-${slice.color}`} shade-${Math.min(slice.shade, 3)}`,
      d: ringSlice(slice.from, slice.to, RINGS[slice.ring]),
    });
    path.addEventListener("pointermove", (event) => {
      this.point(place);
      tooltip.show(event.clientX, event.clientY, this.describe(slice));
    });
    path.addEventListener("click", () => this.choose(slice));
    return path;
  }

  /** @param {Slice} slice */
  describe({ words, count: layers, ms }) {
    return `${words.map((word) => shortened(word, 60)).join(", ")}\n${counted(layers, "layer")}, ${milliseconds(ms)}, ${share(ms / (this.total || 1))}`;
  }

  legend() {
    const types = this.groups.map((group) => make("li", { class: `key ${group.color === null ? "key-rest" : `key-series series-${group.color}`}` },
      make("bdi", {}, shortened(group.name, 30)), make("span", { class: "quiet" }, ` ${share(group.ms / (this.total || 1))}`)));
    const shades = this.precisions.slice(0, 4).map((precision, place) =>
      make("li", { class: `key key-shade shade-${place}` }, make("bdi", {}, shortened(precision, 30) || "(no precision)")));
    return make("div", {}, make("ul", { class: "pie-keys" }, ...types), make("p", { class: "quiet small" }, "Around: precision"), make("ul", { class: "pie-keys" }, ...shades));
  }

  /** @param {number} place */
  point(place) {
    this.paths[this.now]?.classList.remove("now");
    this.now = place;
    this.paths[place].classList.add("now");
    const { words, ms } = this.slices[place];
    this.middle.textContent = share(ms / (this.total || 1));
    this.svg.setAttribute("aria-valuetext", words.join(", "));
  }

  leave() {
    this.paths[this.now]?.classList.remove("now");
    this.middle.textContent = milliseconds(this.total);
    tooltip.hide();
  }

  /** @param {Slice} slice */
  choose({ type, precision }) {
    if (type !== null) this.pick(precision === undefined ? { type } : { type, precision });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const { slices } = this;
    if (by && slices.length) this.pointByKey((this.now + by + slices.length + (this.now < 0 && by < 0 ? 1 : 0)) % slices.length);
    else if ((event.key === "Enter" || event.key === " ") && this.now >= 0) this.choose(slices[this.now]);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }

  /** @param {number} place */
  pointByKey(place) {
    this.point(place);
    const box = this.paths[place].getBoundingClientRect();
    tooltip.show(box.left + box.width / 2, box.top + box.height / 2, this.describe(this.slices[place]));
  }
}

// A roofline: throughput of layers over their arithmetic intensity, below the limits of the device.

const ROOFLINE_HEIGHT = 300;

export class Roofline {
  /**
   * The roofs are those of the first report that has any.
   * @param {HTMLElement} host
   * @param {{label: string, series?: number, layers: LayerData}[]} reports
   * @param {{pick?: (row: number) => void}} [options] `pick` is called for a click
   */
  constructor(host, reports, { pick = () => {} } = {}) {
    this.pick = pick;
    this.now = -1;
    this.points = reports.flatMap((report) => rooflinePoints(report));
    this.roofs = reports.map(({ layers }) => layers.roofs).find(Boolean) ?? null;
    this.host = make("div");
    host.replaceChildren(make("figure", { class: "picture" }, this.host));
    /** @type {(value: number) => number} */
    this.x = Number;
    /** @type {(value: number) => number} */
    this.y = Number;
    this.svg = draw("svg");
    this.ring = draw("circle", { class: "ring", r: 6, visibility: "hidden" });
    this.ringGroup = draw("g", { class: "series" }, this.ring);
    drawAtWidth(this.host, (width) => this.draw(width));
  }

  // Whole decades, so that the grid is round.
  ranges() {
    const xs = this.points.map(({ x }) => x);
    const ys = this.points.map(({ y }) => y);
    if (this.roofs) {
      const peak = Math.max(...Object.values(this.roofs.macs_per_s));
      xs.push(peak / this.roofs.bytes_per_s);
      ys.push(peak / 1e12);
    }
    /**
     * @param {number[]} values
     * @returns {[number, number]}
     */
    const decades = (values) => [
      10 ** Math.floor(Math.log10(values.reduce((a, b) => Math.min(a, b))) - 0.05),
      10 ** Math.ceil(Math.log10(values.reduce((a, b) => Math.max(a, b))) + 0.05)];
    return { x: decades(xs), y: decades(ys) };
  }

  /** @param {number} width */
  draw(width) {
    const { x: [x0, x1], y: [y0, y1] } = this.ranges();
    /** @type {(low: number, high: number, from: number, to: number) => (value: number) => number} */
    const log = (low, high, from, to) => {
      const at = scale(Math.log10(low), Math.log10(high), from, to);
      return (value) => at(Math.log10(value));
    };
    this.x = log(x0, x1, 62, width - 8);
    this.y = log(y0, y1, ROOFLINE_HEIGHT - 42, 10);
    this.svg = draw("svg", {
      height: ROOFLINE_HEIGHT, viewBox: `0 0 ${width} ${ROOFLINE_HEIGHT}`, role: "application", "aria-roledescription": "roofline", tabindex: 0,
      "aria-label": `${counted(this.points.length, "layer")}: throughput over arithmetic intensity. Left and right move through them, the longest first, Enter selects.`,
    });
    this.grid([x0, x1], [y0, y1], width);
    this.svg.append(...this.dots());
    if (this.roofs) this.svg.append(...this.roofPaths(this.roofs, x0, x1, y0));
    this.svg.append(this.ringGroup);
    this.listen();
    this.host.replaceChildren(this.svg);
  }

  /**
   * @param {[number, number]} x
   * @param {[number, number]} y
   * @param {number} width
   */
  grid([x0, x1], [y0, y1], width) {
    const bottom = ROOFLINE_HEIGHT - 42;
    // A label for each decade, or for some where there is no room.
    const apart = Math.ceil(48 / Math.max(1, this.x(x0 * 10) - this.x(x0)));
    let decade = 0;
    for (let mark = x0; mark <= x1 * 1.001; mark *= 10) {
      this.svg.append(draw("line", { class: "grid", x1: this.x(mark), x2: this.x(mark), y1: 10, y2: bottom }),
        draw("text", { x: this.x(mark), y: bottom + 16, "text-anchor": mark * 1.1 > x1 ? "end" : "middle" }, decade++ % apart ? "" : decadeText(mark)));
    }
    for (let mark = y0; mark <= y1 * 1.001; mark *= 10) {
      this.svg.append(draw("line", { class: "grid", x1: 62, x2: width - 8, y1: this.y(mark), y2: this.y(mark) }),
        draw("text", { x: 54, y: this.y(mark) + 4, "text-anchor": "end" }, decadeText(mark)));
    }
    this.svg.append(draw("text", { x: width - 8, y: ROOFLINE_HEIGHT - 6, "text-anchor": "end" }, "FLOP per byte read or written"),
      draw("text", { x: 0, y: ROOFLINE_HEIGHT - 6 }, "↑ TFLOP/s"));
  }

  /**
   * One roof for each multiply unit or precision.
   * @param {Ceilings} roofs
   * @param {number} x0
   * @param {number} x1
   * @param {number} y0
   */
  roofPaths({ macs_per_s, bytes_per_s }, x0, x1, y0) {
    return Object.entries(macs_per_s).map(([unit, peak]) => this.roofPath(unit, (2 * peak) / 1e12, bytes_per_s / 1e12, x0, x1, y0));
  }

  /**
   * @param {string} unit
   * @param {number} peak
   * @param {number} slope
   * @param {number} x0
   * @param {number} x1
   * @param {number} y0
   */
  roofPath(unit, peak, slope, x0, x1, y0) {
    const ridge = peak / slope;
    const left = Math.max(x0, y0 / slope);
    const from = left < ridge ? `M${this.x(left)} ${this.y(slope * left)}L${this.x(ridge)} ${this.y(peak)}` : `M${this.x(x0)} ${this.y(peak)}`;
    const group = draw("g", {}, draw("path", { class: "roof", d: `${from}H${this.x(x1)}` }));
    group.append(draw("text", { x: this.x(x1), y: this.y(peak) - 6, "text-anchor": "end" }, `${unit}: ${threeDigits(peak)} TFLOP/s · ${threeDigits(1000 * slope)} GB/s`));
    return group;
  }

  // Dots in three sizes by share of time, one path for each size.
  dots() {
    /** @type {Map<string, string>} */
    const paths = new Map();
    for (const { x, y, share: part, series } of this.points) {
      const key = `series-${series} dot-${part >= 0.05 ? 3 : part >= 0.01 ? 2 : 1}`;
      paths.set(key, `${paths.get(key) ?? ""}M${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}h.01`);
    }
    return [...paths].map(([key, d]) => draw("g", { class: `series ${key}` }, draw("path", { class: "dots", d })));
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let best = -1;
      let far = 24;
      this.points.forEach((point, place) => {
        const away = Math.hypot(this.x(point.x) - x, this.y(point.y) - y);
        if (away < far) [best, far] = [place, away];
      });
      if (best >= 0) this.point(best);
      else this.leave();
    });
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("click", () => this.now >= 0 && this.pick(this.points[this.now].row));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && this.points.length) this.point(Math.min(this.points.length - 1, Math.max(0, this.now + by)));
    else if (event.key === "Enter" && this.now >= 0) this.pick(this.points[this.now].row);
    else return;
    event.preventDefault();
  }

  /** @param {number} place */
  point(place) {
    this.now = place;
    const { x, y, name, ms, share: part, series } = this.points[place];
    const box = this.svg.getBoundingClientRect();
    this.ringGroup.setAttribute("class", `series series-${series}`);
    for (const [key, value] of [["cx", this.x(x)], ["cy", this.y(y)], ["visibility", "visible"]]) this.ring.setAttribute(String(key), String(value));
    tooltip.show(box.left + this.x(x), box.top + this.y(y), [shortened(name, 120), `${threeDigits(y)} TFLOP/s at ${threeDigits(x)} FLOP per byte${this.best(this.points[place])}`, `${milliseconds(ms)}, ${share(part)} of the layer sum`].join("\n"));
  }

  /** @param {RooflinePoint} point */
  best({ x, y, unit, precision }) {
    const peak = this.roofs?.macs_per_s[unit] ?? this.roofs?.macs_per_s[precision];
    if (!this.roofs || !peak) return "";
    const roof = Math.min(2 * peak, this.roofs.bytes_per_s * x) / 1e12;
    return `, ${share(y / roof)} of the roof`;
  }

  leave() {
    this.now = -1;
    this.ring.setAttribute("visibility", "hidden");
    tooltip.hide();
  }
}

/**
 * The layers whose operations and bytes are known, the longest first.
 * @param {{label: string, series?: number, layers: LayerData}} report
 */
function rooflinePoints({ label, series = 0, layers }) {
  /** @type {RooflinePoint[]} */
  const points = [];
  for (let row = 0; row < layers.length; row++) {
    const speed = layers.tflops(row);
    const bytes = layers.bytes(row);
    const work = (2 * (layers.macs[row] ?? 0)) / bytes;
    if (speed === null || !(speed > 1e-12 && speed < 1e6 && work > 1e-9 && work < 1e9)) continue;
    points.push({ row, label, series, unit: layers.unit[row] ?? "", precision: layers.precision[row], name: layers.name[row], x: work, y: speed, ms: layers.median[row], share: layers.share(row) });
  }
  return points.sort((a, b) => b.ms - a.ms);
}

/** @param {number} value */
const decadeText = (value) => (value >= 1e4 ? `10^${Math.round(Math.log10(value))}` : value >= 1 ? count(Math.round(value)) : String(Number(value.toPrecision(1))));
