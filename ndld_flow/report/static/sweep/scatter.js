// A scatter plot of any two quantities, with the Pareto front.

/** @import { DrawnDimension, SweepData } from "./data.js" */

import { drawAtWidth } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { count, counted } from "../quantities.js";
import { Spots } from "../scatter_points.js";
import { paretoFront } from "./data.js";

/**
 * A point with its values and its position in pixels.
 * @typedef {{row: number, x: number, y: number, left: number, top: number}} Placed
 */

/**
 * The sign is 1 where less is better.
 * @typedef {{dimension: DrawnDimension, sign: number}} ScatterAxis
 */

/** @typedef {{x: (value: number) => number, y: (value: number) => number}} Scales */

const SCATTER = { height: 400, left: 74, right: 26, top: 18, bottom: 46 };

/**
 * The first two objectives; for a single one, the first metric that it usually trades off against. An axis of the sweep
 * may be the horizontal one, but two axes of the sweep have no front.
 * @param {SweepData} data
 */
function scatterChoice(data) {
  const numeric = data.dimensions.filter((dimension) => !dimension.isText && dimension.low < dimension.high);
  const objectives = numeric.filter((dimension) => dimension.kind === "objective");
  const metrics = numeric.filter((dimension) => dimension.kind === "metric");
  const paid = [/(^|\.)(cosine|top1|accuracy|snr_db)$/, /engine_bytes$/, /build_s$/, /initializer_bytes$/, /peak_bytes$/];
  const cost = paid.map((end) => metrics.find((metric) => end.test(metric.label))).find(Boolean) ?? metrics.find((metric) => metric.isDefault) ?? metrics[0];
  const [y, x] = objectives.length > 1 ? objectives : [objectives[0] ?? metrics.find((metric) => metric !== cost) ?? cost, cost];
  const across = x && x !== y ? x : numeric.find((dimension) => dimension.kind === "axis");
  return y && across ? { x: across, y } : null;
}

/**
 * @param {DrawnDimension} dimension
 * @returns {ScatterAxis}
 */
const axisOf = (dimension) => ({ dimension, sign: dimension.direction === "maximize" ? -1 : 1 });

/**
 * The scatter plot; null where no measured quantity differs.
 * @param {HTMLElement} host
 * @param {SweepData} data
 * @param {(row: number, more: boolean) => void} pick is called for a point that was selected
 */
export function drawScatter(host, data, pick) {
  const choice = scatterChoice(data);
  if (choice) return new Scatter(host, data, choice, pick);
  host.replaceChildren(make("p", { class: "quiet" }, "No measured quantity differs."));
  return null;
}

class Scatter {
  /**
   * @param {HTMLElement} host
   * @param {SweepData} data
   * @param {{x: DrawnDimension, y: DrawnDimension}} choice shown first
   * @param {(row: number, more: boolean) => void} pick is called for a point that was selected
   */
  constructor(host, data, choice, pick) {
    this.data = data;
    this.pick = pick;
    /** @type {Set<number>} */
    this.selected = new Set();
    /** @type {(row: number) => boolean} */
    this.alive = () => true;
    this.axes = { x: axisOf(choice.x), y: axisOf(choice.y) };
    this.marks = draw("g");
    /** @type {Placed[]} */
    this.placed = [];
    /** @type {Placed[]} */
    this.front = [];
    this.width = 0;
    this.room = make("div");
    this.about = make("p", { class: "quiet small", "aria-live": "polite" });
    host.replaceChildren(
      make("div", { class: "tools scatter-tools" }, this.choice("y", "Up"), this.choice("x", "Across")),
      make("figure", { class: "picture scatter" }, this.room), scatterLegend(data), this.about);
    this.picture = drawAtWidth(this.room, (width) => this.draw(width));
  }

  /**
   * @param {"x" | "y"} side
   * @param {string} label
   */
  choice(side, label) {
    const options = this.data.dimensions.filter((dimension) => !dimension.isText && dimension.low <= dimension.high);
    const select = make("select", {
      "aria-label": `${label}: quantity`,
      onchange: () => {
        const dimension = this.data.byKey(select.value);
        if (dimension) this.axes[side] = axisOf(dimension);
        sign.value = String(this.axes[side].sign);
        this.picture.again();
      },
    }, ...options.map((option) => make("option", { value: option.key, selected: option === this.axes[side].dimension }, shortened(option.label, 48))));
    const sign = make("select", {
      "aria-label": `${label}: which way is better`,
      onchange: () => {
        this.axes[side].sign = Number(sign.value);
        this.picture.again();
      },
    }, make("option", { value: "1" }, "less is better"), make("option", { value: "-1" }, "more is better"));
    sign.value = String(this.axes[side].sign);
    return make("span", { class: "scatter-choice" }, make("span", { class: "quiet" }, label), select, sign);
  }

  /**
   * Dim and mark points as the table does.
   * @param {(row: number) => boolean} alive
   * @param {number[]} selected
   */
  follow(alive, selected) {
    this.alive = alive;
    this.selected = new Set(selected);
    this.paint();
  }

  points() {
    const { x, y } = this.axes;
    /** @type {{row: number, x: number, y: number}[]} */
    const points = [];
    for (let row = 0; row < this.data.length; row++) {
      const [a, b] = [x.dimension.finals[row], y.dimension.finals[row]];
      if (a !== null && b !== null) points.push({ row, x: a, y: b });
    }
    return points;
  }

  /** @param {number} width */
  draw(width) {
    const points = this.points();
    const { x, y } = this.axes;
    const at = { x: spread(x.dimension, SCATTER.left, width - SCATTER.right), y: spread(y.dimension, SCATTER.height - SCATTER.bottom, SCATTER.top) };
    const placed = points.map((point) => ({ ...point, left: at.x(point.x), top: at.y(point.y) }));
    const front = paretoFront(placed.filter(({ row }) => this.data.passed(row)), [x.sign, y.sign]);
    const svg = draw("svg", {
      height: SCATTER.height, viewBox: `0 0 ${width} ${SCATTER.height}`, role: "application", "aria-roledescription": "scatter plot", tabindex: 0,
      "aria-label": `${y.dimension.label} against ${x.dimension.label}, ${counted(points.length, "point")}, ${count(front.length)} on the front: ${front.slice(0, 12).map(({ row }) => this.data.points[row].number).join(", ")}. Arrow keys move through points, Enter selects.`,
    });
    this.placed = placed;
    this.front = front;
    this.width = width;
    svg.append(...this.grid(width, at), ...this.firsts(placed, at), frontPath(front, width, [x.sign, y.sign]), this.marks);
    this.paint();
    const ordered = [...placed].sort((a, b) => a.left - b.left);
    new Spots(svg, ordered.map((point) => ({ x: point.left, y: point.top, row: point.row, text: this.describe(point.row) })), {
      start: Math.max(0, ordered.findIndex(({ row }) => row === front[0]?.row)), pick: this.pick,
    });
    this.room.replaceChildren(svg);
    const numbers = front.map(({ row }) => this.data.points[row].number);
    this.about.textContent = front.length
      ? `${front.length === 1 ? "Point" : "Points"} ${numbers.slice(0, 20).join(", ")}${numbers.length > 20 ? ` and ${numbers.length - 20} more` : ""} ${front.length === 1 ? "is" : "are"} on the front: no point that passed is better in one and not worse in the other.`
      : "No point that passed has both.";
  }

  /**
   * The first measurement of points that were measured again, and a line from it to the second.
   * @param {Placed[]} placed
   * @param {Scales} at
   */
  firsts(placed, at) {
    const { x, y } = this.axes;
    return placed.filter(({ row }) => this.data.points[row].again).flatMap(({ row, left, top }) => {
      const [a, b] = [x.dimension.numbers[row], y.dimension.numbers[row]];
      if (a === null || b === null || (at.x(a) === left && at.y(b) === top)) return [];
      return [draw("line", { class: "first-line", x1: at.x(a), y1: at.y(b), x2: left, y2: top }), draw("circle", { class: "first-mark", cx: at.x(a), cy: at.y(b), r: 3 })];
    });
  }

  // Redraw only the marks, so that the chart keeps the keyboard's position.
  paint() {
    const { placed, front, width } = this;
    this.marks.replaceChildren(...this.dots(placed, new Set(front.map(({ row }) => row))), ...this.labels(placed, front, width));
  }

  /** @param {number} row */
  describe(row) {
    const { x, y } = this.axes;
    return [this.data.title(row), this.data.settings(row), `${y.dimension.short} ${y.dimension.text(row)}`, `${x.dimension.short} ${x.dimension.text(row)}`, ...this.data.againWords(row)].join("\n");
  }

  /**
   * @param {number} width
   * @param {Scales} at
   */
  grid(width, at) {
    const bottom = SCATTER.height - SCATTER.bottom;
    const { x, y } = this.axes;
    /** @type {(sign: number, less: string, more: string) => string} */
    const better = (sign, less, more) => (sign > 0 ? less : more);
    return [
      ...x.dimension.marks(Math.max(2, Math.floor(width / 130))).flatMap(({ value, text }) => [
        draw("line", { class: "grid", x1: at.x(value), x2: at.x(value), y1: SCATTER.top, y2: bottom }),
        draw("text", { x: at.x(value), y: bottom + 18, "text-anchor": "middle" }, text)]),
      ...y.dimension.marks(6).flatMap(({ value, text }) => [
        draw("line", { class: "grid", x1: SCATTER.left, x2: width - SCATTER.right, y1: at.y(value), y2: at.y(value) }),
        draw("text", { x: SCATTER.left - 8, y: at.y(value) + 4, "text-anchor": "end" }, text)]),
      draw("text", { class: "strong", x: width - SCATTER.right, y: SCATTER.height - 8, "text-anchor": "end" }, `${better(x.sign, "← ", "")}${shortened(x.dimension.label, 44)}${better(x.sign, "", " →")}`),
      draw("text", { class: "strong", x: 0, y: 10 }, `${better(y.sign, "↓", "↑")} ${shortened(y.dimension.label, 44)}`),
    ];
  }

  /**
   * One path for each kind of mark.
   * @param {Placed[]} placed
   * @param {Set<number>} front
   */
  dots(placed, front) {
    /** @type {Map<string, string>} */
    const paths = new Map();
    for (const { row, left, top } of placed) {
      const dim = this.alive(row) ? "" : " dim";
      const kind = this.kind(row, front);
      paths.set(kind + dim, `${paths.get(kind + dim) ?? ""}${MARKS[kind](left, top)}`);
    }
    const order = ["failed", "refused", "inconclusive", "plain", "front", "tie", "best"];
    const drawn = [...paths].sort(([a], [b]) => order.indexOf(a.split(" ")[0]) - order.indexOf(b.split(" ")[0]));
    const chosen = placed.filter(({ row }) => this.selected.has(row));
    return [...drawn.map(([kind, d]) => draw("path", { class: `mark mark-${kind}`, d })),
      ...chosen.slice(0, 200).map(({ left, top }) => draw("circle", { class: "chosen", cx: left, cy: top, r: 9 }))];
  }

  /**
   * @param {number} row
   * @param {Set<number>} front
   */
  kind(row, front) {
    const mark = this.data.points[row].mark;
    if (mark === "best" || mark === "tie") return mark;
    if (!this.data.passed(row)) return this.data.points[row].outcome;
    return front.has(row) ? "front" : "plain";
  }

  /**
   * Numbers of the important points, where there is room.
   * @param {Placed[]} placed
   * @param {Placed[]} front
   * @param {number} width
   */
  labels(placed, front, width) {
    const named = placed.filter(({ row }) => ["best", "tie"].includes(this.data.points[row].mark) || this.selected.has(row));
    /** @type {{x: number, y: number, wide: number}[]} */
    const taken = [];
    const texts = [];
    named.sort((a, b) => (this.data.points[a.row].rank ?? Infinity) - (this.data.points[b.row].rank ?? Infinity));
    for (const { row, left, top } of [...named, ...front]) {
      const text = String(this.data.points[row].number);
      const wide = 8 * text.length;
      const x = left + 10 + wide > width ? left - 10 - wide : left + 10;
      if (taken.some((label) => Math.abs(label.y - top) < 13 && x < label.x + label.wide + 4 && label.x < x + wide + 4)) continue;
      taken.push({ x, y: top, wide });
      texts.push(draw("text", { class: "point-number", x, y: top - 5 }, text));
    }
    return texts;
  }
}

// Shapes carry the same information as colours.
/** @type {Record<string, (x: number, y: number) => string>} */
const MARKS = {
  plain: (x, y) => `M${x.toFixed(1)} ${y.toFixed(1)}h.01`,
  front: (x, y) => `M${x.toFixed(1)} ${y.toFixed(1)}h.01`,
  refused: (x, y) => `M${(x - 3.5).toFixed(1)} ${y.toFixed(1)}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0`,
  inconclusive: (x, y) => `M${(x - 3.5).toFixed(1)} ${y.toFixed(1)}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0`,
  failed: (x, y) => `M${(x - 3.5).toFixed(1)} ${(y - 3.5).toFixed(1)}l7 7m0 -7l-7 7`,
  tie: (x, y) => `M${x.toFixed(1)} ${(y - 6).toFixed(1)}l6 6l-6 6l-6 -6z`,
  best: (x, y) => `M${x.toFixed(1)} ${(y - 8).toFixed(1)}l8 8l-8 8l-8 -8z`,
};

const MARK_KEYS = { best: "best", tie: "tie: within the noise", front: "on the front", plain: "passed", refused: "refused", inconclusive: "inconclusive", failed: "failed" };

/**
 * A legend for the kinds of points in this sweep.
 * @param {SweepData} data
 */
function scatterLegend(data) {
  const there = new Set(data.points.flatMap(({ mark, outcome }) => [mark, outcome === "passed" ? "plain" : outcome]).concat("front"));
  const key = (/** @type {[string, string]} */ [kind, text]) => make("span", {}, draw("svg", { width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": "true" }, draw("path", { class: `mark mark-${kind}`, d: MARKS[kind](10, 10) })), text);
  return make("p", { class: "small quiet mark-keys" }, ...Object.entries(MARK_KEYS).filter(([kind]) => there.has(kind)).map(key));
}

/**
 * A scale from values to pixels, with room at both ends.
 * @param {DrawnDimension} dimension
 * @param {number} from
 * @param {number} to
 * @returns {(value: number) => number}
 */
function spread(dimension, from, to) {
  const room = 0.05;
  return (value) => from + (to - from) * (room + (1 - 2 * room) * dimension.fractionOf(value));
}

/**
 * The front as steps: every point behind them is dominated.
 * @param {Placed[]} front
 * @param {number} width
 * @param {[number, number]} signs
 */
function frontPath(front, width, [xSign, ySign]) {
  if (front.length === 0) return draw("g");
  const [first, last] = [front[0], front[front.length - 1]];
  const steps = front.slice(1).map(({ left, top }) => `H${left.toFixed(1)}V${top.toFixed(1)}`).join("");
  const begin = ySign > 0 ? SCATTER.top : SCATTER.height - SCATTER.bottom;
  const end = xSign > 0 ? width - SCATTER.right : SCATTER.left;
  return draw("path", { class: "front-line", d: `M${first.left.toFixed(1)} ${begin}V${first.top.toFixed(1)}${steps}M${last.left.toFixed(1)} ${last.top.toFixed(1)}H${end}` });
}
