// The trials of a precision search: the metric and the kept nodes of each in a plot, and all of them in a table.

/** @import { Column } from "../static/table.js" */

import { drawAtWidth, scale } from "../static/charts.js";
import { all, draw, make, shortened } from "../static/elements.js";
import { count, counted, plainNumber, seconds } from "../static/quantities.js";
import { Spots } from "../static/scatter_points.js";
import { TableModel, TableView } from "../static/table.js";
import { selectionSummary } from "../static/widgets.js";
import { decades, powerText } from "../static/report/depth_panels.js";
import { fileName } from "../static/report/layer_exports.js";
import { Fields } from "../static/unpack.js";

const TRIALS = { left: 74, right: 14, top: 20, errors: 150, gap: 26, bars: 64, bottom: 40 };

class TrialsData extends /** @type {new (trials: SearchTrials) => SearchTrials} */ (Fields) {
  /** @param {SearchTrials} trials */
  constructor(trials) {
    super(trials);
    this.length = trials.number.length;
    this.values = trials.metrics[trials.metric] ?? new Array(this.length).fill(null);
  }

  /**
   * The error, so that less is better: 1 - x for a cosine, the noise for decibels.
   * @param {number | null} value
   * @returns {number | null}
   */
  off(value) {
    if (value === null) return null;
    if (!Number.isFinite(value)) return NaN;
    if (this.metric.endsWith("_db")) return 10 ** (-value / 20);
    return this.higher ? 1 - value : value;
  }

  /**
   * @param {number | null} value
   * @param {string} metric
   */
  text(value, metric = this.metric) {
    if (value === null) return "–";
    if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf");
    if (!this.in_percent.includes(metric)) return plainNumber(value);
    return `${value < 0.995 ? Number((100 * value).toPrecision(2)) : count(Math.round(100 * value))} %`;
  }

  /** @param {number} row */
  outcome(row) {
    return this.values[row] === null && !this.passed[row] ? "skipped" : this.passed[row] ? "passed" : "failed";
  }

  /** @param {number} row */
  word(row) {
    return this.outcome(row) === "skipped" ? "not run" : this.outcome(row);
  }

  /** @param {number} row */
  keptWords(row) {
    const ranges = this.ranges[row];
    if (!ranges) return `${count(this.kept[row])} in many ranges`;
    const words = [];
    for (let place = 0; place < ranges.length; place += 2) words.push(ranges[place] === ranges[place + 1] ? `${ranges[place]}` : `${ranges[place]} to ${ranges[place + 1]}`);
    return words.join(", ");
  }

  /** @param {number} row */
  about(row) {
    const metric = this.metric ? `${this.metric} ${this.text(this.values[row])}` : "";
    return [`trial ${this.number[row]}, ${this.phase[row]}: ${this.word(row)}`, shortened(this.what[row], 120), metric, `${counted(this.kept[row], "node")} kept`, this.note[row]].filter(Boolean).join("\n");
  }
}

class TrialsPlot {
  /**
   * @param {HTMLElement} host
   * @param {TrialsData} data
   * @param {(row: number) => void} pick is called for a trial that was selected
   */
  constructor(host, data, pick) {
    this.data = data;
    this.pick = pick;
    this.room = make("div");
    host.replaceChildren(make("figure", { class: "picture trials" }, this.room));
    this.width = 0;
    /** @type {(row: number) => number} */
    this.x = Number;
    /** @type {(power: number) => number} */
    this.y = Number;
    drawAtWidth(this.room, (width) => this.draw(width));
  }

  /** @param {number} width */
  draw(width) {
    const { data } = this;
    const rows = Array.from({ length: data.length }, (_, row) => row);
    const bottom = TRIALS.top + TRIALS.errors;
    const height = bottom + TRIALS.gap + TRIALS.bars + TRIALS.bottom;
    this.width = width;
    this.x = scale(-0.5, data.length - 0.5, TRIALS.left, width - TRIALS.right);
    const offs = rows.map((row) => (Number(data.metrics.nonfinite?.[row]) > 0 ? NaN : data.off(data.values[row])));
    const bound = data.bound === null ? null : data.off(data.bound);
    const powers = [...offs, bound].filter((value) => value !== null && value > 0 && Number.isFinite(value)).map((value) => Math.log10(Number(value)));
    const low = powers.length ? Math.floor(powers.reduce((a, b) => Math.min(a, b)) - 0.1) : -4;
    const high = powers.length ? Math.ceil(powers.reduce((a, b) => Math.max(a, b)) + 0.1) : 0;
    this.y = scale(low, high, bottom, TRIALS.top);
    /** @param {number | null} off */
    const place = (off) => (off === null || Number.isNaN(off) || off === Infinity ? TRIALS.top - 6 : off <= 0 ? bottom : this.y(Math.log10(off)));
    const svg = draw("svg", {
      height, viewBox: `0 0 ${width} ${height}`, role: "application", "aria-roledescription": "chart of trials", tabindex: 0,
      "aria-label": `${count(data.length)} trials of ${data.step}. Arrow keys go through them, Enter selects.`,
    }, ...this.grid(low, high, bottom), ...this.boundLine(bound), ...this.bars(rows, bottom + TRIALS.gap), ...this.phases(height), ...this.dots(rows, offs, place));
    new Spots(svg, rows.map((row) => ({ x: this.x(row), y: place(offs[row]), row, text: data.about(row) })), { pick: (row) => this.pick(row) });
    this.room.replaceChildren(svg);
  }

  /**
   * @param {number} low
   * @param {number} high
   * @param {number} bottom
   */
  grid(low, high, bottom) {
    const { metric, higher } = this.data;
    const title = metric.endsWith("_db") ? `↓ ${metric}` : higher ? `↑ 1 − ${metric}` : `↑ ${metric}`;
    /** @type {(power: number) => string} */
    const text = metric.endsWith("_db") ? (power) => `${-20 * power} dB` : powerText;
    return [draw("text", { x: 0, y: TRIALS.top - 8 }, metric ? title : ""), ...decades(low, high, Math.floor((bottom - TRIALS.top) / 30)).flatMap((power) => [
      draw("line", { class: "grid", x1: TRIALS.left, x2: this.width - TRIALS.right, y1: this.y(power), y2: this.y(power) }),
      draw("text", { x: TRIALS.left - 8, y: this.y(power) + 4, "text-anchor": "end" }, text(power)),
    ])];
  }

  /** @param {number | null} bound */
  boundLine(bound) {
    if (bound === null || !(bound > 0)) return [];
    const y = this.y(Math.log10(bound));
    const { data } = this;
    return [draw("line", { class: "bound limit-line", x1: TRIALS.left, x2: this.width - TRIALS.right, y1: y, y2: y }),
      draw("text", { class: "bound-text", x: this.width - TRIALS.right, y: y - 5, "text-anchor": "end" }, `bound: ${data.metric} ${data.text(data.bound)}`)];
  }

  /**
   * Bars below the dots: the number of kept nodes of each trial.
   * @param {number[]} rows
   * @param {number} top
   */
  bars(rows, top) {
    const { data } = this;
    const most = data.kept.reduce((a, b) => Math.max(a, b), 1);
    const wide = Math.max(1, Math.min(14, (this.x(1) - this.x(0)) * 0.6));
    const base = top + TRIALS.bars;
    /** @param {number} row */
    const high = (row) => (TRIALS.bars * Math.log1p(data.kept[row])) / Math.log1p(most);
    const path = rows.map((row) => `M${this.x(row).toFixed(1)} ${base}v${(-high(row)).toFixed(1)}`).join("");
    const apart = this.x(1) - this.x(0);
    const numbers = rows.filter((row) => 7.5 * count(data.kept[row]).length < apart)
      .map((row) => draw("text", { x: this.x(row), y: base - high(row) - 4, "text-anchor": "middle" }, count(data.kept[row])));
    return [draw("line", { class: "grid", x1: TRIALS.left, x2: this.width - TRIALS.right, y1: base, y2: base }),
      draw("path", { class: "trial-bars", d: path, "stroke-width": wide }),
      ...(numbers.length ? numbers : [draw("text", { x: TRIALS.left - 8, y: top + 9, "text-anchor": "end" }, count(most))]),
      draw("text", { x: 0, y: base }, "nodes kept")];
  }

  /** @param {number} height */
  phases(height) {
    const { data } = this;
    /** @type {SVGElement[]} */
    const shapes = [];
    let free = 0;
    data.phase.forEach((phase, row) => {
      if (row && phase === data.phase[row - 1]) return;
      const x = this.x(row - 0.5);
      if (row) shapes.push(draw("line", { class: "grid", x1: x, x2: x, y1: TRIALS.top, y2: height - 22 }));
      if (x < free) return;
      const words = phase.replace("_", " ");
      free = x + 7 * words.length + 14;
      if (free < this.width + 20) shapes.push(draw("text", { x: x + 4, y: height - 20 }, words));
    });
    return shapes;
  }

  /**
   * @param {number[]} rows
   * @param {(number | null)[]} offs
   * @param {(off: number | null) => number} place
   */
  dots(rows, offs, place) {
    return ["failed", "passed"].map((outcome) => {
      const own = rows.filter((row) => offs[row] !== null && this.data.outcome(row) === outcome);
      /** @param {number} row */
      const sign = (row) => {
        const [x, y] = [this.x(row), place(offs[row])];
        return outcome === "passed" ? `M${x.toFixed(1)} ${y.toFixed(1)}h.01` : `M${(x - 3.5).toFixed(1)} ${(y - 3.5).toFixed(1)}l7 7m0 -7l-7 7`;
      };
      return draw("path", { class: `trial-${outcome}`, d: own.map(sign).join("") });
    });
  }
}

/**
 * @param {TrialsData} data
 * @returns {Column[]}
 */
function trialColumns(data) {
  /** @type {Column[]} */
  const metrics = Object.entries(data.metrics).map(([metric, values], place) => ({
    key: `metric${place}`, label: shortened(metric, 18), csvLabel: metric, width: "minmax(104px, 0.6fr)", numeric: true, right: true, position: metric === data.metric && data.higher, hidden: place > 2,
    value: (row) => (values[row] === null || Number.isFinite(values[row]) ? values[row] : Infinity), format: (_, row) => data.text(values[row], metric), csv: (row) => values[row] ?? "",
    tone: (row) => (metric === data.metric && data.outcome(row) === "failed" ? "bad" : ""),
  }));
  return [
    { key: "number", label: "#", width: "56px", numeric: true, right: true, position: true, value: (row) => data.number[row] },
    { key: "phase", label: "Phase", width: "98px", tally: true, value: (row) => data.phase[row] },
    { key: "what", label: "What was tried", width: "minmax(220px, 2fr)", value: (row) => data.what[row] },
    { key: "kept", label: "Kept", width: "80px", numeric: true, right: true, measure: "mean", value: (row) => data.kept[row], format: count },
    ...metrics,
    { key: "outcome", label: "Outcome", width: "100px", tally: true, value: (row) => data.word(row), element: (value, row) => make("span", { class: `outcome ${data.outcome(row)}` }, value) },
    { key: "seconds", label: "Took", width: "84px", numeric: true, right: true, measure: "sum", value: (row) => data.wall_s[row], format: seconds },
    { key: "note", label: "Note", width: "minmax(120px, 0.8fr)", value: (row) => data.note[row], hidden: !data.note.some(Boolean) },
  ];
}

/**
 * @param {TableModel} model
 * @param {TrialsData} data
 */
function describeTrials(model, data) {
  if (model.selected.size > 1) return selectionSummary(model);
  if (!model.selected.size) return [make("p", {}, "Select a trial for the nodes that it kept.")];
  const [row] = model.selected;
  const list = make("dl");
  /** @type {(label: string, value: string) => void} */
  const add = (label, value) => value && list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  add("Trial", `${data.number[row]}, ${data.phase[row]}: ${data.word(row)}`);
  add("Tried", data.what[row]);
  add("Kept nodes, in order of execution", data.kept[row] ? data.keptWords(row) : "none");
  for (const [metric, values] of Object.entries(data.metrics)) add(metric, data.text(values[row], metric));
  add("Note", data.note[row]);
  return [list];
}

/** @param {ReportData} data */
export function show({ panels }) {
  for (const host of all('[data-live="trials"]')) {
    const search = panels.precision?.searches[Number(host.dataset.search)];
    if (!search) continue;
    const data = new TrialsData(search);
    const [plot, room] = [make("div"), make("div")];
    host.replaceChildren(plot, room);
    const table = new TableView(room, new TableModel(trialColumns(data), data.length), {
      label: "trials", file: `trials-${fileName(data.step)}.csv`, describe: (model) => describeTrials(model, data),
    });
    new TrialsPlot(plot, data, (row) => {
      table.choose([row]);
      table.tools.scrollIntoView({ block: "nearest" });
    });
  }
}
