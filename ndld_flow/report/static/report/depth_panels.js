// Data of the errors layer by layer, and the panels that a chart over depth is built from.

import { scale } from "../charts.js";
import { draw, shortened } from "../elements.js";
import { count, plainNumber, share } from "../quantities.js";
import { Fields } from "../unpack.js";

/** @typedef {"error" | "distance"} ErrorKind */

/** @typedef {"error" | "snr" | "distance"} ErrorScale */

/**
 * The visible rows, from `from` to `to`.
 * @typedef {object} DepthSight
 * @property {number} from
 * @property {number} to
 * @property {(row: number) => number} x
 * @property {number} width
 * @property {number} pitch pixels of a row
 * @property {boolean} crowded
 */

// Layers with their errors on each curve, in the order of execution; a row is a position in that order.

export const NOT_FINITE = -1; // an error that is NaN or infinite

/**
 * The measures that a curve can show. `distance` is 1 - cosine.
 * @type {Record<ErrorScale, {title: string, of: ErrorKind, text: (value: number) => string}>}
 */
export const ERROR_SCALES = {
  error: { title: "relative error", of: "error", text: plainNumber },
  snr: { title: "SNR", of: "error", text: (value) => `${(-20 * Math.log10(value)).toFixed(1)} dB` },
  distance: { title: "1 − cosine", of: "distance", text: plainNumber },
};

export class DepthData extends /** @type {new (curves: DepthCurves) => DepthCurves} */ (Fields) {
  /** @param {DepthCurves} curves */
  constructor(curves) {
    super(curves);
    this.length = curves.node.length;
    this.isKept = new Set(curves.kept);
  }

  // The measures that have any values.
  scales() {
    const scales = /** @type {ErrorScale[]} */ (Object.keys(ERROR_SCALES));
    return scales.filter((key) => this[ERROR_SCALES[key].of].some((curve) => curve.some((value) => value !== null)));
  }

  /** @param {number} row */
  called(row) {
    return `${this.op_type[row]} ${this.node[row] || this.tensor[row]}`.trim();
  }

  /**
   * The range of a tensor against the format: `over` its largest number, or `under` where more than 1 % become 0.
   * @param {number} row
   */
  rangeKind(row) {
    const { ranges, limits } = this;
    const largest = ranges?.largest_abs[row] ?? null;
    if (!ranges || largest === null) return "";
    if (ranges.nonfinite[row]) return "over";
    if (!limits) return "within";
    if ((ranges.beyond_share[row] ?? 0) > 0 || largest > limits.largest) return "over";
    return (ranges.vanishing_share[row] ?? 0) >= 0.01 || (largest > 0 && largest < limits.normal) ? "under" : "within";
  }

  /** @param {number} row */
  rangeWords(row) {
    const { ranges } = this;
    const [smallest, largest] = [ranges?.smallest_abs[row] ?? null, ranges?.largest_abs[row] ?? null];
    if (!ranges || smallest === null || largest === null) return "";
    const parts = [`|values| ${plainNumber(smallest)} to ${plainNumber(largest)}`];
    /** @type {[number | null, string][]} */
    const shares = [
      [ranges.beyond_share[row], `beyond ${this.precision}'s largest`], [ranges.vanishing_share[row], "become 0"], [ranges.subnormal_share[row], "subnormal"],
    ];
    for (const [part, words] of shares) {
      if (part !== null && part > 0) parts.push(`${part < 0.001 ? "< 0.1 %" : share(part)} ${words}`);
    }
    if (ranges.nonfinite[row]) parts.push(`${count(ranges.nonfinite[row])} NaN or infinite`);
    return parts.join(", ");
  }

  /**
   * @param {number} curve
   * @param {number} row
   * @param {ErrorScale} [measure]
   */
  errorWords(curve, row, measure = "error") {
    const value = this[ERROR_SCALES[measure].of][curve][row];
    if (value === null) return "not measured";
    if (value !== NOT_FINITE) return value === 0 ? "equal" : ERROR_SCALES[measure].text(value);
    const elements = this.nonfinite[curve][row];
    return elements ? `${count(elements)} NaN or infinite` : "not finite";
  }

  /**
   * @param {number} row
   * @param {ErrorScale} measure
   */
  about(row, measure) {
    const lines = this.curves.map((label, curve) => `${label}: ${this.errorWords(curve, row, measure)}`);
    const marks = [this.isKept.has(row) ? "kept at higher precision" : "", row === this.first ? "divergence starts here" : ""].filter(Boolean);
    return [`#${this.position[row]} ${shortened(this.called(row), 100)}`, this.dims[row], ...lines, this.rangeWords(row), marks.join(", ")].filter(Boolean).join("\n");
  }
}

// The two panels of the chart: errors of each curve, and ranges of values against the limits of the format.

export const DEPTH = { left: 74, right: 14, errors: 270, ranges: 170, gap: 34, axis: 30, top: 38 };

/**
 * Powers of ten for an axis, as many as there is room for.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 */
export function decades(low, high, most) {
  const step = Math.max(1, Math.ceil((high - low) / most));
  const powers = [];
  for (let power = Math.ceil(low / step) * step; power <= high + 1e-9; power += step) powers.push(power);
  return powers;
}

/** @param {number} power */
export const powerText = (power) => (power >= -3 && power <= 4 ? plainNumber(10 ** power) : `1e${power}`);

// One panel: log10 of values over rows.
class DepthPanel {
  /**
   * @param {DepthData} data
   * @param {DepthSight} sight
   * @param {number} top
   * @param {number} height
   * @param {[number, number]} powers the ends of the scale
   */
  constructor(data, sight, top, height, [low, high]) {
    this.data = data;
    this.sight = sight;
    this.top = top;
    this.height = height;
    this.low = low;
    this.high = high > low ? high : low + 1;
    this.y = scale(this.low, this.high, this.top + this.height, this.top);
  }

  grid(text = powerText) {
    const { left, right } = DEPTH;
    return decades(this.low, this.high, Math.floor(this.height / 32)).flatMap((power) => [
      draw("line", { class: "grid", x1: left, x2: this.sight.width - right, y1: this.y(power), y2: this.y(power) }),
      draw("text", { x: left - 8, y: this.y(power) + 4, "text-anchor": "end" }, text(power)),
    ]);
  }

  /**
   * @param {number} power
   * @param {string} kind
   * @param {string} words
   */
  line(power, kind, words) {
    const y = this.y(power);
    const { width } = this.sight;
    return [draw("line", { class: `bound ${kind}`, x1: DEPTH.left, x2: width - DEPTH.right, y1: y, y2: y }),
      draw("text", { class: "bound-text", x: width - DEPTH.right, y: y - 5, "text-anchor": "end" }, words)];
  }

  /**
   * The least and the largest value in each column of pixels, so that 5,000 layers are drawn quickly.
   * @param {(row: number) => number | [number, number] | null} values
   */
  columns(values) {
    const { sight } = this;
    /** @type {Map<number, [number, number]>} */
    const spans = new Map();
    for (let row = sight.from; row <= sight.to; row++) {
      const value = values(row);
      if (value === null) continue;
      const x = sight.crowded ? Math.round(sight.x(row)) : sight.x(row);
      const [low, high] = Array.isArray(value) ? value : [value, value];
      const before = spans.get(x);
      spans.set(x, before ? [Math.min(before[0], low), Math.max(before[1], high)] : [low, high]);
    }
    return spans;
  }
}

export class ErrorPanel extends DepthPanel {
  /**
   * @param {DepthData} data
   * @param {DepthSight} sight
   * @param {ErrorScale} scaleName
   * @param {number} top
   */
  constructor(data, sight, scaleName, top) {
    const values = data[ERROR_SCALES[scaleName].of];
    const error = data.bound?.error ?? 0;
    const bound = scaleName === "distance" ? 1 - 1 / Math.sqrt(1 + error ** 2) : error;
    const known = [...values.flat(), bound].filter((value) => value !== null && value > 0).map((value) => Math.log10(Number(value)));
    const least = known.reduce((a, b) => Math.min(a, b), Infinity);
    const most = known.reduce((a, b) => Math.max(a, b), -Infinity);
    super(data, sight, top, DEPTH.errors, known.length ? [Math.floor(least - 0.05), Math.ceil(most + 0.05)] : [-6, 0]);
    this.name = scaleName;
    this.values = values;
    this.bound = bound;
  }

  get edge() {
    return this.top - 11;
  }

  parts() {
    /** @type {(power: number) => string} */
    const text = this.name === "snr" ? (power) => `${-20 * power} dB` : powerText;
    const title = this.name === "snr" ? "↓ SNR" : `↑ ${ERROR_SCALES[this.name].title}`;
    return [
      draw("text", { x: 0, y: 12 }, title),
      ...this.grid(text), ...this.keptMarks(),
      ...this.values.map((values, curve) => this.curve(values, curve)),
      ...(this.bound > 0 ? this.line(Math.log10(this.bound), "limit-line", `bound: ${this.data.bound?.words}`) : []),
      ...this.firstMark(),
    ];
  }

  /**
   * Equal values have no logarithm: they are drawn at the bottom.
   * @param {number} value
   */
  power(value) {
    return value === 0 ? this.low : Math.log10(value);
  }

  /**
   * @param {(number | null)[]} values
   * @param {number} curve
   */
  curve(values, curve) {
    const { sight } = this;
    const columns = this.columns((row) => {
      const value = values[row];
      return value === null || value === NOT_FINITE ? null : this.power(value);
    });
    let last = -Infinity;
    const path = [...columns].map(([x, [low, high]]) => {
      const isNext = x - last < 1.5 * Math.max(1, sight.pitch); // a line does not cross a gap
      last = x;
      const at = `${isNext ? "L" : "M"}${x.toFixed(1)} ${this.y(high).toFixed(1)}`;
      return low === high ? `${at}${isNext ? "" : "h.01"}` : `${at}V${this.y(low).toFixed(1)}`;
    }).join("");
    const group = draw("g", { class: `series series-${curve} depth-curve` }, draw("path", { class: "drift", d: path }));
    if (!sight.crowded && sight.to - sight.from < sight.width / 6) {
      group.append(draw("path", { class: "dots", d: [...columns].map(([x, [, high]]) => `M${x.toFixed(1)} ${this.y(high).toFixed(1)}h.01`).join("") }));
    }
    const broken = [...this.columns((row) => (values[row] === NOT_FINITE ? 0 : null)).keys()];
    if (broken.length) group.append(this.brokenMarks(broken, curve));
    return group;
  }

  /**
   * Values that are not finite are crosses at the top edge.
   * @param {number[]} places
   * @param {number} curve
   */
  brokenMarks(places, curve) {
    const y = this.edge + 6 * curve;
    const path = places.map((x) => `M${(x - 2.5).toFixed(1)} ${y - 2.5}l5 5m0 -5l-5 5`).join("");
    return draw("g", { class: "broken" }, draw("path", { d: path }), draw("text", { x: DEPTH.left - 8, y: this.edge + 4, "text-anchor": "end" }, "NaN, inf"));
  }

  keptMarks() {
    const { data, sight } = this;
    const bottom = this.top + this.height;
    const rows = data.kept.filter((row) => row >= sight.from && row <= sight.to);
    if (!rows.length) return [];
    const isSparse = rows.length < sight.width / 14; // more lines would hide the curves
    const lines = isSparse ? rows.map((row) => `M${sight.x(row).toFixed(1)} ${this.top}V${bottom}`).join("") : "";
    const marks = rows.map((row) => `M${sight.x(row).toFixed(1)} ${bottom - 5}l5 5l-5 5l-5 -5z`).join("");
    return [draw("path", { class: "kept-line", d: lines }), draw("path", { class: "kept-mark", d: marks })];
  }

  firstMark() {
    const { data, sight } = this;
    const row = data.first;
    if (row === null || row < sight.from || row > sight.to) return [];
    const x = sight.x(row);
    const right = x < sight.width * 0.6;
    const room = Math.floor((right ? sight.width - x : x - DEPTH.left) / 7.2) - 14;
    return [draw("line", { class: "first-line", x1: x, x2: x, y1: this.top - 4, y2: this.top + this.height }),
      draw("text", { class: "first-text", x: x + (right ? 7 : -7), y: this.top + 12, "text-anchor": right ? "start" : "end" },
        `starts here: ${shortened(data.called(row), Math.max(12, room))}`)];
  }
}

export class RangePanel extends DepthPanel {
  /**
   * @param {DepthData} data
   * @param {DepthRanges} ranges those of the data
   * @param {DepthSight} sight
   * @param {number} top
   */
  constructor(data, ranges, sight, top) {
    const known = [...ranges.largest_abs, ...ranges.smallest_abs, ...Object.values(data.limits ?? {})].filter((value) => value !== null && value > 0);
    const powers = known.map((value) => Math.log10(Number(value)));
    const most = powers.reduce((a, b) => Math.max(a, b), -Infinity);
    // A single value near 0 must not flatten all others: values far below the format, or the largest, are cut off.
    const floor = data.limits ? Math.log10(data.limits.subnormal) - 3 : most - 16;
    const least = powers.reduce((a, b) => Math.min(a, Math.max(b, floor)), Infinity);
    super(data, sight, top, DEPTH.ranges, powers.length ? [Math.floor(least - 0.3), Math.ceil(most + 0.3)] : [-1, 1]);
    this.ranges = ranges;
  }

  parts() {
    const { data } = this;
    const bars = ["within", "under", "over"].map((kind) => this.bars(kind));
    const names = [["smallest", `${data.precision} subnormal from`], ["normal", "normal from"], ["largest", "largest"]];
    const lines = Object.values(data.limits ?? {}).flatMap((limit, place) => this.line(Math.log10(limit), `format-${names[place][0]}`, `${names[place][1]} ${plainNumber(limit)}`));
    return [draw("text", { x: 0, y: this.top - 9 }, "↑ |values|, smallest to largest"), ...this.grid(), ...bars, ...lines];
  }

  /** @param {string} kind */
  bars(kind) {
    const power = (/** @type {number} */ value) => Math.max(this.low, Math.log10(value));
    const columns = this.columns((row) => {
      const largest = this.ranges.largest_abs[row] ?? 0;
      if (this.data.rangeKind(row) !== kind || !(largest > 0)) return null;
      const smallest = this.ranges.smallest_abs[row] ?? 0;
      return [power(smallest > 0 ? smallest : largest), power(largest)];
    });
    const path = [...columns].map(([x, [low, high]]) => `M${x.toFixed(1)} ${(this.y(low) + 0.5).toFixed(1)}V${(this.y(high) - 0.5).toFixed(1)}`).join("");
    const wide = Math.max(1, Math.min(7, this.sight.pitch * 0.6));
    return draw("path", { class: `range-bar range-${kind}`, d: path, "stroke-width": wide });
  }
}
