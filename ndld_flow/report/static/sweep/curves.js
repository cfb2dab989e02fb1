// Objectives and throughput along a numeric axis, a line for each combination of the others; a ring marks saturation.

/** @import { SweepData } from "./data.js" */

import { drawAtWidth, scale, SERIES, ticks } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { count, plainNumber, quantityText } from "../quantities.js";
import { Spots } from "../scatter_points.js";
import { binaryUnit } from "./data.js";

/** @typedef {{row: number, x: number, y: number}} CurvePoint */

/**
 * Scales from values to pixels; `low` and `high` are the ends of the vertical one.
 * @typedef {{x: (value: number) => number, y: (value: number) => number, low: number, high: number}} Scales
 */

const CURVE = { height: 260, left: 66, right: 18, top: 26, bottom: 40 };

export class CurvePlot {
  /**
   * @param {HTMLElement} host
   * @param {SweepData} data
   * @param {DrawnCurve} curve
   * @param {(row: number, more: boolean) => void} pick is called for a point that was selected
   */
  constructor(host, data, curve, pick) {
    this.data = data;
    this.curve = curve;
    this.pick = pick;
    this.dimension = data.dimensions[curve.dimension];
    /** @type {{x: number, y: number}[]} */
    this.labels = [];
    this.room = make("div");
    host.append(make("div", {}, make("h3", {}, make("bdi", {}, this.dimension.label), make("span", { class: "quiet" }, " by "), make("bdi", {}, curve.axis)),
      make("figure", { class: "picture curve" }, this.room), this.legend()));
    drawAtWidth(this.room, (width) => this.draw(width));
  }

  legend() {
    const keys = this.curve.lines.filter(({ label }) => label).map(({ label }, place) =>
      make("span", { class: `key key-series series-${place}` }, make("bdi", {}, shortened(label, 70))));
    const more = this.curve.left_out ? [make("span", { class: "quiet small" }, `${count(this.curve.left_out)} more combinations are not shown`)] : [];
    return make("p", { class: "keys" }, ...keys, ...more);
  }

  /** @param {number} width */
  draw(width) {
    const { lines, log } = this.curve;
    this.labels = [];
    /** @type {CurvePoint[][]} */
    const points = lines.map(({ rows, x }) => rows.flatMap((row, place) => {
      const y = this.dimension.numbers[row];
      return y === null ? [] : [{ row, x: x[place], y }];
    }));
    const at = this.scales(points.flat(), width, log);
    const svg = draw("svg", {
      height: CURVE.height, viewBox: `0 0 ${width} ${CURVE.height}`, role: "application", "aria-roledescription": "line chart", tabindex: 0,
      "aria-label": `${this.dimension.label} by ${this.curve.axis}. ${lines.map((line) => this.words(line)).join(" ")} Arrow keys move through points, Enter selects.`,
    });
    svg.append(...this.grid(points.flat(), at, width), ...lines.map((line, place) => this.line(points[place], line, place, at)));
    const spots = points.flat().map((point) => ({
      x: at.x(point.x), y: at.y(point.y), row: point.row,
      text: [this.data.title(point.row), this.data.settings(point.row), `${this.dimension.short} ${quantityText(point.y, this.dimension.unit)}`].join("\n"),
    }));
    new Spots(svg, spots, { pick: this.pick });
    this.room.replaceChildren(svg);
  }

  /** @param {CurveLine} line */
  words({ label, rows, x, saturated }) {
    const end = saturated === null ? "not saturated" : `saturated at ${x[saturated]}`;
    return `${label ? `${label}: ` : ""}${[rows[0], rows[rows.length - 1]].map((row) => quantityText(this.dimension.numbers[row], this.dimension.unit)).join(" to ")}, ${end}.`;
  }

  /**
   * The axis starts at zero unless all values would be at the top.
   * @param {CurvePoint[]} points
   * @param {number} width
   * @param {boolean} log
   * @returns {Scales}
   */
  scales(points, width, log) {
    const xs = points.map(({ x }) => x);
    const ys = points.map(({ y }) => y);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const [low, high] = [Math.min(...ys), Math.max(...ys)];
    const margin = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
    const from = low >= 0 && low < 0.6 * high ? 0 : low - margin;
    const along = log ? Math.log : Number;
    const across = scale(along(x0), along(x1) === along(x0) ? along(x0) + 1 : along(x1), CURVE.left + 14, width - CURVE.right - 14);
    return {
      x: (value) => across(along(value)), y: scale(from, high + margin, CURVE.height - CURVE.bottom, CURVE.top),
      low: from, high: high + margin,
    };
  }

  /**
   * @param {CurvePoint[]} points
   * @param {Scales} at
   * @param {number} width
   */
  grid(points, at, width) {
    const bottom = CURVE.height - CURVE.bottom;
    const own = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
    const every = Math.ceil(own.length / Math.max(2, Math.floor(width / 70)));
    const factor = this.dimension.unit === "bytes" ? binaryUnit(at.high).factor : 1;
    return [
      ...ticks(at.low / factor, at.high / factor, 5).map((tick) => tick * factor).flatMap((tick) => [
        draw("line", { class: "grid", x1: CURVE.left, x2: width - CURVE.right, y1: at.y(tick), y2: at.y(tick) }),
        draw("text", { x: CURVE.left - 8, y: at.y(tick) + 4, "text-anchor": "end" }, tick === 0 ? "0" : quantityText(tick, this.dimension.unit))]),
      ...own.filter((_, place) => place % every === 0).map((value) =>
        draw("text", { x: at.x(value), y: bottom + 18, "text-anchor": "middle" }, plainNumber(value))),
      draw("text", { x: width - CURVE.right, y: CURVE.height - 4, "text-anchor": "end" }, shortened(this.curve.axis, 50)),
    ];
  }

  /**
   * Rings may be close to each other: a label is placed where it covers no other.
   * @param {number} x
   * @param {number} y
   */
  hasRoom(x, y) {
    if (this.labels.some((label) => Math.abs(label.y - y) < 14 && Math.abs(label.x - x) < 100)) return false;
    this.labels.push({ x, y });
    return true;
  }

  /**
   * @param {CurvePoint[]} points
   * @param {CurveLine} line
   * @param {number} place
   * @param {Scales} at
   */
  line(points, { rows, saturated }, place, at) {
    const path = points.map(({ x, y }, number) => `${number ? "L" : "M"}${at.x(x).toFixed(1)} ${at.y(y).toFixed(1)}`).join("");
    const dots = points.map(({ x, y }) => `M${at.x(x).toFixed(1)} ${at.y(y).toFixed(1)}h.01`).join("");
    const group = draw("g", { class: `series series-${place % SERIES}` }, draw("path", { class: "drift", d: path }), draw("path", { class: "dots", d: dots }));
    const end = saturated === null ? undefined : points.find(({ row }) => row === rows[saturated]);
    if (end) {
      group.append(draw("circle", { class: "saturated", cx: at.x(end.x), cy: at.y(end.y), r: 8 }));
      if (this.hasRoom(at.x(end.x), at.y(end.y) - 13)) {
        group.append(draw("text", { class: "saturated-text", x: at.x(end.x), y: at.y(end.y) - 13, "text-anchor": "middle" }, `saturated at ${plainNumber(end.x)}`));
      }
    }
    return group;
  }
}
