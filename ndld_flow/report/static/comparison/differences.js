// Where the difference between two profiles comes from: a waterfall, deltas by group, and coverage of the matching.

/** @import { View, RowPair } from "./data.js" */

import { drawAtWidth, scale } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { changeText, milliseconds, share } from "../quantities.js";
import { makeSwitch, scrollBox, tooltip } from "../widgets.js";
import { badge, named, signedMs } from "./data.js";

/** @typedef {ReturnType<RowPair["deltasBy"]>[number]} Change */

/** @typedef {"type" | "precision"} Key */

// A waterfall from the layer sum of the base over the change of each layer type to the layer sum of the candidate.

const WATERFALL_ROW = 26;
const WATERFALL_TYPES = 10;

/** @param {RowPair} pair */
function waterfallSteps(pair) {
  const all = pair.deltasBy("type").filter((delta) => delta.delta !== 0);
  const shown = all.slice(0, WATERFALL_TYPES);
  const rest = all.slice(WATERFALL_TYPES);
  if (rest.length) {
    const sum = (/** @type {"before" | "after" | "delta"} */ key) => rest.reduce((total, change) => total + change[key], 0);
    shown.push({ text: `${rest.length} more types`, before: sum("before"), after: sum("after"), delta: sum("delta"), rest: true });
  }
  return shown;
}

/**
 * The axis starts at zero unless the changes would be too small to see; a cut axis is marked.
 * @param {number} start
 * @param {Change[]} steps
 */
function waterfallRange(start, steps) {
  let [sum, low, high] = [start, start, start];
  for (const { delta } of steps) {
    sum += delta;
    low = Math.min(low, sum);
    high = Math.max(high, sum);
  }
  const cut = low > 0.75 * high;
  return { low: cut ? Math.max(0, low - (high - low) * 0.5 - high * 0.001) : 0, high: high || 1, cut };
}

/**
 * @param {number} from
 * @param {number} to
 * @param {(ms: number) => number} at
 * @param {number} top
 * @param {Record<string, unknown>} properties
 */
function waterfallBar(from, to, at, top, properties) {
  const [x0, x1] = [Math.min(from, to), Math.max(from, to)];
  return draw("rect", { x: at(x0), y: top + 5, width: Math.max(1.5, at(x1) - at(x0)), height: WATERFALL_ROW - 10, rx: 1, ...properties });
}

/**
 * @param {HTMLElement} figure
 * @param {View} view
 * @param {RowPair} pair
 * @param {number} width
 */
function drawWaterfallAt(figure, view, pair, width) {
  const steps = waterfallSteps(pair);
  const start = pair.rows.sums[pair.base];
  const range = waterfallRange(start, steps);
  const [left, right] = [Math.min(190, width * 0.34), 96];
  const at = scale(range.low, range.high, left, width - right);
  const height = WATERFALL_ROW * (steps.length + 2) + 4;
  const [base, candidate] = [view.subject(view.base), view.subject(view.candidate)];
  const svg = draw("svg", {
    height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `From ${milliseconds(start)} of ${base.letter} to ${milliseconds(pair.rows.sums[pair.candidate])} of ${candidate.letter}: ${steps.map((step) => `${shortened(step.text, 40)} ${signedMs(step.delta)}`).join(", ")}`,
  });
  /** @type {(row: number, label: string, value: string, strong?: boolean) => void} */
  const line = (row, label, value, strong = false) => svg.append(
    draw("text", { class: strong ? "strong" : null, x: left - 12, y: WATERFALL_ROW * row + 18, "text-anchor": "end" }, shortened(label, Math.max(8, Math.floor(left / 7.2)))),
    draw("text", { class: strong ? "strong" : null, x: width, y: WATERFALL_ROW * row + 18, "text-anchor": "end" }, value));
  /** @type {(row: number, place: number, subject: SubjectData) => void} */
  const total = (row, place, subject) => {
    const ms = pair.rows.sums[place];
    line(row, `${subject.letter} ${subject.label}`, milliseconds(ms), true);
    svg.append(draw("g", { class: `series series-${subject.series}` }, waterfallBar(range.low, ms, at, WATERFALL_ROW * row, { class: "total" })));
  };
  total(0, pair.base, base);
  let sum = start;
  steps.forEach((step, position) => {
    const row = position + 1;
    line(row, step.text || "(no type)", signedMs(step.delta));
    svg.append(draw("line", { class: "grid", x1: at(sum), x2: at(sum), y1: WATERFALL_ROW * row - 5, y2: WATERFALL_ROW * (row + 1) - 5 }),
      waterfallBar(sum, sum + step.delta, at, WATERFALL_ROW * row, {
        class: step.delta < 0 ? "faster" : "slower",
        onpointermove: step.rest ? null : (/** @type {PointerEvent} */ event) => tooltip.show(event.clientX, event.clientY, `${shortened(step.text, 80)}\n${milliseconds(step.before)} → ${milliseconds(step.after)}\n${signedMs(step.delta)}, ${changeText(step.before ? step.after / step.before : null)}`),
        onpointerleave: step.rest ? null : () => tooltip.hide(),
      }));
    sum += step.delta;
  });
  svg.append(draw("line", { class: "grid", x1: at(sum), x2: at(sum), y1: WATERFALL_ROW * (steps.length + 1) - 5, y2: WATERFALL_ROW * (steps.length + 1) + 5 }));
  total(steps.length + 1, pair.candidate, candidate);
  figure.replaceChildren(svg);
}

export class Waterfall {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.title = make("h3", { class: "minor" });
    const figure = make("figure", { class: "picture waterfall" });
    /** @type {{view: View, pair: RowPair} | null} */
    this.shown = null;
    host.replaceChildren(this.title, figure);
    this.picture = drawAtWidth(figure, (width) => this.shown && drawWaterfallAt(figure, this.shown.view, this.shown.pair, width));
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    this.shown = { view, pair };
    const { cut, low } = waterfallRange(pair.rows.sums[pair.base], waterfallSteps(pair));
    this.title.replaceChildren("From ", named(view.subject(view.base)), " to ", named(view.subject(view.candidate)),
      make("span", { class: "quiet" }, cut ? `, by type; bars begin at ${milliseconds(low)}` : ", by type"));
    this.picture.again();
  }
}

// The layers that changed most.

const LARGEST_SHOWN = 10;

/**
 * @param {HTMLElement} host
 * @param {View} view
 * @param {RowPair} pair
 * @param {(row: number) => void} choose
 */
export function drawLargest(host, view, pair, choose) {
  const rows = Array.from({ length: pair.length }, (_, row) => row).filter((row) => pair.either(row) && pair.delta(row) !== 0)
    .sort((a, b) => Math.abs(pair.delta(b)) - Math.abs(pair.delta(a)));
  const shown = rows.slice(0, LARGEST_SHOWN);
  const most = Math.abs(pair.delta(shown[0] ?? 0)) || 1;
  const time = (/** @type {number | null} */ ms) => (ms === null ? "–" : milliseconds(ms));
  const line = (/** @type {number} */ row) => {
    const [name, type] = [pair.text("name", row), pair.text("type", row)];
    const change = { text: name, before: pair.from(row) ?? 0, after: pair.to(row) ?? 0, delta: pair.delta(row) };
    const relative = pair.both(row) ? changeText(pair.ratio(row)) : pair.from(row) === null ? "new" : "gone";
    return make("tr", {},
      make("th", { scope: "row", class: "clip" }, make("button", { type: "button", title: `${shortened(name, 200)}\n${shortened(type, 80)}`, onclick: () => choose(row) }, make("bdi", {}, shortened(name, 60) || "(no name)"))),
      make("td", { class: "n quiet" }, time(pair.from(row))), make("td", { class: "n quiet" }, time(pair.to(row))),
      make("td", { class: "n" }, signedMs(change.delta)), make("td", { class: "n" }, relative),
      make("td", { class: "track" }, deltaBar(change, "ms", most)));
  };
  const title = rows.length > shown.length ? `The ${shown.length} largest of ${rows.length} changes` : "Layers that changed";
  host.replaceChildren(make("h3", { class: "minor" }, title), scrollBox(make("table", { class: "bars deltas largest" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Layer"), make("th", { class: "n", scope: "col" }, badge(view.subject(view.base))),
      make("th", { class: "n", scope: "col" }, badge(view.subject(view.candidate))), make("th", { class: "n", scope: "col" }, "Delta"), make("th", { class: "n", scope: "col" }, "%"), make("td"))),
    make("tbody", {}, ...shown.map(line)))));
}

// Changes by layer type and by precision, in ms or in %; bars of groups that became faster point to the left.

const DELTAS_SHOWN = 12;

/**
 * In percent, a new group has no bar: its ratio is infinite.
 * @param {Change} change
 * @param {string} unit
 * @param {number} most
 */
function deltaBar(change, unit, most) {
  const relative = change.before ? change.delta / change.before : null;
  const amount = unit === "ms" ? change.delta : relative;
  const track = make("div", { class: "delta axis" });
  if (amount !== null && amount !== 0) {
    const bar = make("i", { class: amount < 0 ? "faster" : "slower" });
    bar.style.width = `${Math.min(100, (100 * Math.abs(amount)) / most).toFixed(1)}%`;
    track.append(bar);
  }
  return track;
}

/**
 * @param {Change} change
 * @param {string} unit
 */
function deltaText(change, unit) {
  if (unit === "ms") return signedMs(change.delta);
  if (change.before === 0) return "new";
  return change.after === 0 ? "gone" : changeText(change.after / change.before);
}

/**
 * @param {Change} change
 * @param {string} unit
 * @param {number} most
 * @param {(text: string) => void} pick
 */
function deltaRow(change, unit, most, pick) {
  const name = make("bdi", {}, shortened(change.text, 60) || "(none)");
  return make("tr", {},
    make("th", { scope: "row", class: "clip" }, make("button", { type: "button", title: `Show only layers of ${shortened(change.text, 60)}`, onclick: () => pick(change.text) }, name)),
    make("td", { class: "n quiet" }, milliseconds(change.before)), make("td", { class: "n quiet" }, milliseconds(change.after)),
    make("td", { class: "n" }, deltaText(change, unit)), make("td", { class: "track" }, deltaBar(change, unit, most)));
}

/**
 * @param {string} title
 * @param {Change[]} deltas
 * @param {string} unit
 * @param {View} view
 * @param {(text: string) => void} pick
 */
function deltaTable(title, deltas, unit, view, pick) {
  const shown = deltas.slice(0, DELTAS_SHOWN);
  const amounts = shown.map((change) => (unit === "ms" ? change.delta : change.before ? change.delta / change.before : 0));
  const most = Math.max(...amounts.map(Math.abs), 1e-12);
  const more = deltas.length > shown.length ? ` (the ${shown.length} largest of ${deltas.length})` : "";
  return make("div", {}, make("h3", { class: "minor" }, `${title}${more}`),
    scrollBox(make("table", { class: "bars deltas" },
      make("thead", {}, make("tr", {}, make("td"), make("th", { class: "n", scope: "col" }, badge(view.subject(view.base))),
        make("th", { class: "n", scope: "col" }, badge(view.subject(view.candidate))), make("th", { class: "n", scope: "col" }, "Delta"), make("td"))),
      make("tbody", {}, ...shown.map((change) => deltaRow(change, unit, most, pick))))));
}

export class Deltas {
  /**
   * @param {HTMLElement} host
   * @param {(key: Key, text: string) => void} pick is called for a group that was selected
   */
  constructor(host, pick) {
    this.pick = pick;
    this.unit = "ms";
    /** @type {{view: View, pair: RowPair} | null} */
    this.shown = null;
    this.tables = make("div", { class: "columns" });
    const units = makeSwitch("Deltas in", { ms: "ms", "%": "%" }, this.unit, (unit) => {
      this.unit = unit;
      if (this.shown) this.draw(this.shown.view, this.shown.pair);
    });
    host.replaceChildren(units, this.tables);
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    this.shown = { view, pair };
    /** @type {[Key, string][]} */
    const groups = [["type", "By type"], ["precision", "By precision"]];
    this.tables.replaceChildren(...groups.map(([key, title]) =>
      deltaTable(title, pair.deltasBy(key), this.unit, view, (text) => this.pick(key, text))));
  }
}

// The share of both layer sums that is matched, by method.

/**
 * @param {RowPair} pair
 * @param {number} place
 */
function coverageOf(pair, place) {
  const sums = new Map([...pair.rows.methods].map((method) => [method, 0]));
  for (let row = 0; row < pair.length; row++) {
    const ms = pair.rows.times[place][row];
    if (ms !== null) sums.set(pair.method(row), (sums.get(pair.method(row)) ?? 0) + ms);
  }
  return sums;
}

/**
 * @param {View} view
 * @param {RowPair} pair
 * @param {number} place
 * @param {(method: string) => void} pick
 */
function coverageBar(view, pair, place, pick) {
  const sums = coverageOf(pair, place);
  const total = pair.rows.sums[place] || 1;
  const bar = make("div", { class: "coverage-bar" });
  for (const [number, method] of pair.rows.methods.entries()) {
    const ms = sums.get(method) ?? 0;
    if (ms === 0) continue;
    const part = ms / total;
    const text = `${method}: ${share(part)}, ${milliseconds(ms)}`;
    const piece = make("button", {
      type: "button", class: `method-${number}`, "aria-label": `Show ${text}`, onclick: () => pick(method),
      onpointermove: (/** @type {PointerEvent} */ event) => tooltip.show(event.clientX, event.clientY, text), onpointerleave: () => tooltip.hide(),
    }, part > 0.16 ? `${method} ${share(part)}` : "");
    piece.style.flexGrow = part.toFixed(5);
    bar.append(piece);
  }
  const matched = 1 - (sums.get("unmatched") ?? 0) / total;
  return make("tr", {}, make("th", { scope: "row" }, named(view.subject(place))),
    make("td", { class: "n" }, share(matched)), make("td", { class: "track" }, bar));
}

/** @param {RowPair} pair */
function coverageKeys(pair) {
  const [base, candidate] = [coverageOf(pair, pair.base), coverageOf(pair, pair.candidate)];
  const keys = [...pair.rows.methods.entries()].filter(([, method]) => base.get(method) || candidate.get(method));
  return make("p", { class: "small quiet coverage-keys" }, ...keys.map(([number, method]) =>
    make("span", { class: `method-${number}` }, method === "unmatched" ? method : `matched by ${method}`)));
}

/**
 * @param {HTMLElement} host
 * @param {View} view
 * @param {RowPair} pair
 * @param {(method: string) => void} pick
 */
export function drawCoverage(host, view, pair, pick) {
  host.replaceChildren(make("h3", { class: "minor" }, "Layer time that is matched in the other"),
    make("table", { class: "bars coverage" }, make("tbody", {},
      coverageBar(view, pair, view.base, pick), coverageBar(view, pair, view.candidate, pick))),
    coverageKeys(pair));
}
