// Points of a sweep with their axes, objectives and metrics. Independent of the page.

import { ticks } from "../charts.js";
import { shortened } from "../elements.js";
import { quantityText } from "../quantities.js";

// One column over all points: numbers, or positions among the texts of an axis.
export class DrawnDimension {
  /** @param {Dimension} dimension */
  constructor(dimension) {
    this.key = dimension.key;
    this.label = dimension.label;
    this.kind = dimension.kind;
    this.unit = dimension.unit;
    this.direction = dimension.direction;
    this.log = dimension.log;
    this.isDefault = dimension.is_default;
    this.numbers = dimension.numbers ?? [];
    this.levels = dimension.levels;
    this.texts = dimension.texts;
    this.isText = dimension.numbers === null;
    this.short = this.label;
    /** The second measurement where there is one, which decides the rank; `numbers` are the first. */
    this.finals = this.numbers.map((number, row) => dimension.again[row] ?? number);
    const known = [...this.numbers, ...this.finals].filter((number) => number !== null);
    this.low = known.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = known.reduce((a, b) => Math.max(a, b), -Infinity);
    this.isLog = this.log && !this.isText && this.low > 0;
  }

  /** @param {number} row */
  value(row) {
    return this.isText ? this.levels[row] : this.finals[row];
  }

  /** @param {number} row */
  text(row) {
    return this.kind === "axis" ? this.texts[this.levels[row]] : quantityText(this.finals[row], this.unit);
  }

  /**
   * The position between the lowest value (0) and the highest (1); null for an unknown value, 0.5 if all are equal.
   * @param {number} row
   */
  fraction(row) {
    const value = this.value(row);
    return value === null ? null : this.fractionOf(value);
  }

  /** @param {number} value */
  fractionOf(value) {
    const [low, high] = this.isText ? [0, this.texts.length - 1] : [this.low, this.high];
    if (high === low) return 0.5;
    if (this.isLog) return (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low));
    if (Number.isFinite(high - low)) return (value - low) / (high - low);
    return (value / 2 - low / 2) / (high / 2 - low / 2); // the difference would be infinite
  }

  /**
   * The text of the value at a position between 0 and 1.
   * @param {number} fraction
   */
  at(fraction) {
    if (this.isText) return this.texts[Math.round(fraction * (this.texts.length - 1))];
    const value = this.isLog ? this.low * (this.high / this.low) ** fraction : this.low + fraction * (this.high - this.low);
    return quantityText(this.kind === "axis" ? Number(value.toPrecision(3)) : value, this.unit);
  }

  /**
   * Values of tick marks: all values if they are few, otherwise round ones.
   * @param {number} most
   */
  marks(most) {
    if (this.isText) return this.texts.map((text, place) => ({ value: place, text }));
    if (this.low > this.high) return [];
    const own = [...new Set(this.numbers)].filter((number) => number !== null);
    const values = this.kind === "axis" && own.length <= most ? own : roundMarks(this, most);
    const texts = values.map((value) => quantityText(value, this.unit));
    const distinct = new Set(texts).size === texts.length ? texts : values.map((value) => exactText(value, this.unit));
    return values.map((value, place) => ({ value, text: shortened(distinct[place], 14) }));
  }
}

/** @param {number} value */
export function binaryUnit(value) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(Math.abs(value), 1)) / 10)));
  return { factor: 1024 ** power, name: ["B", "KiB", "MiB", "GiB", "TiB"][power] };
}

/**
 * For neighbours that are equal in three digits.
 * @param {number} value
 * @param {string} unit
 */
function exactText(value, unit) {
  const { factor, name } = unit === "bytes" ? binaryUnit(value) : { factor: 1, name: unit === "1/s" ? "/s" : unit };
  return `${(value / factor).toLocaleString("en-US", { maximumSignificantDigits: 7 })} ${name}`.trim();
}

/**
 * Round numbers for tick marks; bytes are round in their binary unit.
 * @param {DrawnDimension} dimension
 * @param {number} most
 */
function roundMarks({ low, high, isLog, unit }, most) {
  if (low === high) return [low];
  if (!(high - low > 1e-300 && high - low < 1e300)) return [low, high];
  const inside = (/** @type {number} */ value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  if (isLog) {
    /** @type {number[]} */
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      marks.push(...(high / low > 10 ** most ? [1] : high / low > 200 ? [1, 3] : [1, 2, 5]).map((digit) => digit * 10 ** power));
    }
    const kept = marks.filter(inside);
    return kept.length > 1 ? kept.filter((_, place) => place % Math.ceil(kept.length / most) === 0) : [low, high];
  }
  const factor = unit === "bytes" ? binaryUnit(high).factor : 1;
  return ticks(low / factor, high / factor, most).map((value) => value * factor);
}

export class SweepData {
  /** @param {DrawnSweep} sweep */
  constructor({ id, name, points, dimensions, curves }) {
    this.id = id;
    this.name = name;
    this.points = points;
    this.curves = curves;
    this.length = points.length;
    this.ranked = points.filter(({ rank }) => rank !== null).length;
    this.dimensions = dimensions.map((dimension) => new DrawnDimension(dimension));
    this.shorten();
  }

  /** @param {string} kind */
  of(kind) {
    return this.dimensions.filter((dimension) => dimension.kind === kind);
  }

  /** @param {string} key */
  byKey(key) {
    return this.dimensions.find((dimension) => dimension.key === key);
  }

  // Shorten `speed.threads` to `threads` where that is unique.
  shorten() {
    const tail = (/** @type {string} */ label) => label.split(".").slice(1).join(".") || label;
    /** @type {Map<string, number>} */
    const times = new Map();
    for (const dimension of this.dimensions) times.set(tail(dimension.label), (times.get(tail(dimension.label)) ?? 0) + 1);
    for (const dimension of this.dimensions) dimension.short = times.get(tail(dimension.label)) === 1 ? tail(dimension.label) : dimension.label;
  }

  /** @param {number} row */
  passed(row) {
    return this.points[row].outcome === "passed";
  }

  /**
   * `point 17: best`
   * @param {number} row
   */
  title(row) {
    const { number, outcome, mark: own } = this.points[row];
    const mark = own || (this.passed(row) ? "" : outcome);
    return `point ${number}${mark ? `: ${mark === "front" ? "on the front" : mark}` : ""}`;
  }

  /**
   * `first measurement: latency.min 899 µs`, for points that were measured again.
   * @param {number} row
   */
  againWords(row) {
    return this.points[row].again ? [`first measurement: ${this.of("objective").map((dimension) => `${dimension.short} ${quantityText(dimension.numbers[row], dimension.unit)}`).join(", ")}`] : [];
  }

  /** @param {number} row */
  settings(row) {
    return this.of("axis").filter((dimension) => dimension.texts.length > 1).map((dimension) => `${dimension.short} ${shortened(dimension.text(row), 30)}`).join(", ");
  }
}

/**
 * The points that no other point dominates.
 * @template {{x: number, y: number}} T
 * @param {T[]} points
 * @param {[number, number]} signs 1 for an axis that is minimized, -1 for one that is maximized
 */
export function paretoFront(points, [xSign, ySign]) {
  const ordered = [...points].sort((a, b) => xSign * (a.x - b.x) || ySign * (a.y - b.y));
  /** @type {T[]} */
  const front = [];
  for (const point of ordered) {
    const last = front.at(-1);
    const beats = !last || ySign * (last.y - point.y) > 0;
    if (beats || (last.x === point.x && last.y === point.y)) front.push(point);
  }
  return front;
}
