// The table of a sweep's points, and copying the recipe lines of a point.

/** @import { Column } from "../table.js" */
/** @import { DrawnDimension, SweepData } from "./data.js" */

import { copy } from "../conveniences.js";
import { make, shortened } from "../elements.js";
import { changeText, quantityText, ratioText, share } from "../quantities.js";
import { TableModel, TableView } from "../table.js";
import { scrollBox, selectionSummary } from "../widgets.js";

// Columns of the table of points, from SweepData.

/**
 * Room for the whole label and the arrow of the sort order.
 * @param {string} label
 */
const wideEnough = (label) => Math.max(88, Math.round(36 + 6.7 * label.length));

/**
 * @param {DrawnDimension} dimension
 * @param {boolean} hidden
 * @returns {Column}
 */
function dimensionColumn(dimension, hidden) {
  const isFirst = dimension.finals.some((value, row) => value !== dimension.numbers[row]);
  const label = `${shortened(dimension.short, 26)}${isFirst ? " first" : ""}`;
  // Room for its values, too, where they are texts: up to 22 letters.
  const longest = dimension.isText ? dimension.texts.reduce((most, text) => (text.length > most.length ? text : most), "").slice(0, 22) : "";
  const wide = `minmax(${Math.max(wideEnough(label), wideEnough(longest))}px, ${dimension.isText ? 1 : 0.8}fr)`;
  const spread = /\.latency\.(spread|cov)$/.test(dimension.label);
  /** @type {(value: unknown, row: number) => string} */
  const format = (_, row) => {
    const number = dimension.numbers[row];
    return spread && number !== null ? share(number) : dimension.kind === "axis" ? shortened(dimension.text(row), 60) : quantityText(number, dimension.unit);
  };
  const shared = { key: dimension.key, label, longLabel: shortened(dimension.label, 60), csvLabel: dimension.unit ? `${dimension.label} ${dimension.unit}` : dimension.label, width: wide, hidden };
  if (dimension.kind === "axis" && dimension.isText) {
    return { ...shared, tally: true, value: (row) => dimension.text(row), format: (value) => shortened(value, 60) };
  }
  const csv = (/** @type {number} */ row) => (dimension.kind === "axis" ? dimension.text(row) : dimension.numbers[row] ?? "");
  return {
    ...shared, numeric: true, right: true, position: dimension.direction === "minimize" || dimension.kind === "axis",
    measure: dimension.kind === "axis" ? undefined : "mean", value: (row) => dimension.numbers[row], format, csv,
    summaryLabel: shortened(dimension.short, 40),
  };
}

/**
 * Columns for the values that were measured again.
 * @param {SweepData} data
 * @returns {Column[]}
 */
function againColumns(data) {
  if (!data.points.some(({ again }) => again)) return [];
  /** @type {Column[]} */
  const columns = data.of("objective").map((objective, place) => ({
    key: `again_${place}`, label: `${shortened(objective.short, 20)} again`, longLabel: `${shortened(objective.label, 50)} again`, csvLabel: `${objective.label} again${objective.unit ? ` ${objective.unit}` : ""}`,
    width: `minmax(${wideEnough(`${shortened(objective.short, 20)} again`)}px, 0.8fr)`, numeric: true, right: true, position: objective.direction === "minimize", hidden: place > 0,
    value: (row) => (data.points[row].again ? objective.finals[row] : null),
    format: (value) => (value === null ? "" : quantityText(value, objective.unit)), csv: (row) => (data.points[row].again ? objective.finals[row] ?? "" : ""),
  }));
  const reasonOf = (/** @type {number} */ row) => {
    const { ratio, low, high } = data.points[row].again ?? { ratio: null, low: null, high: null };
    return ratio === null ? "" : low === null ? ratioText(ratio) : `${ratioText(low)} to ${ratioText(high)}`;
  };
  columns.push({
    key: "interval", label: "To the best", longLabel: "Ratio to the best, 95 % interval", width: "minmax(142px, 0.7fr)", hidden: false, right: true,
    value: (row) => reasonOf(row),
  });
  return columns;
}

/**
 * @param {SweepData} data
 * @returns {Column}
 */
function constraintColumn(data) {
  const broken = (/** @type {number} */ row) => data.points[row].constraints.filter(({ passed }) => !passed).map(({ gate }) => gate);
  const value = (/** @type {number} */ row) => {
    const { length } = data.points[row].constraints;
    return length === 0 ? "" : broken(row).length ? `broken: ${broken(row).join("; ")}` : "hold";
  };
  return { key: "constraints", label: "Constraints", width: "minmax(92px, 0.7fr)", value, tone: (row) => (broken(row).length ? "bad" : ""), hidden: !data.points.some(({ constraints }) => constraints.length) };
}

/** @type {Record<string, string>} */
const MARK_WORDS = { best: "best", tie: "tie", front: "front", "": "" };

/**
 * @param {SweepData} data
 * @returns {Column[]}
 */
function pointColumns(data) {
  const varies = (/** @type {DrawnDimension} */ dimension) => (dimension.isText ? new Set(dimension.levels).size > 1 : dimension.low < dimension.high);
  const axes = data.of("axis").map((dimension) => dimensionColumn(dimension, data.length > 1 && !varies(dimension)));
  const goals = data.of("objective").map((dimension) => dimensionColumn(dimension, false));
  const metrics = data.of("metric").map((dimension) => dimensionColumn(dimension, !(dimension.isDefault || /\.latency\.spread$/.test(dimension.label))));
  const ranked = data.ranked > 0;
  /** @type {Column} */
  const number = {
    key: "number", label: "#", width: "62px", numeric: true, position: true, right: true, hidden: false, value: (row) => data.points[row].number,
    element: (value, row) => (data.points[row].report ? make("a", { href: data.points[row].report, title: "This point's own report" }, String(value)) : String(value)),
  };
  return [
    number,
    { key: "rank", label: "Rank", width: "68px", numeric: true, position: true, right: true, hidden: !ranked, value: (row) => data.points[row].rank, format: (value) => String(value ?? "–"), csv: (row) => data.points[row].rank ?? "" },
    { key: "mark", label: "Mark", width: "70px", hidden: !ranked, tally: true, value: (row) => MARK_WORDS[data.points[row].mark], element: (value) => make("span", { class: `point-mark ${value}` }, value) },
    ...axes, ...goals, ...againColumns(data), constraintColumn(data),
    {
      key: "outcome", label: "Outcome", width: "100px", hidden: false, tally: true, value: (row) => data.points[row].outcome,
      element: (value) => make("span", { class: `outcome ${value}` }, value),
    },
    { key: "reason", label: "Reason", width: "minmax(150px, 1.6fr)", hidden: !data.points.some(({ reason }) => reason), value: (row) => data.points[row].reason, tone: () => "aside" },
    ...metrics,
  ];
}

// A text with a button that copies it.

let copyBoxes = 0;

/** @param {string} text */
function copyBox(text) {
  const id = `copied-${copyBoxes++}`;
  const button = make("button", { type: "button", "data-copy": id, onclick: () => copy(button) }, "Copy");
  return make("div", { class: "with-copy" }, make("pre", { id }, make("bdi", {}, text)), button);
}

/**
 * A text as one word of a POSIX shell.
 * @param {string} text
 */
const shellWord = (text) => (/^[\w@%+=:,./-]+(#\d+)?$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);

// The table of points: one selected point is shown in full, two are compared.

export class PointsTable extends TableView {
  /**
   * @param {HTMLElement} host
   * @param {SweepData} data
   * @param {{keep: (row: number) => boolean, changed: () => void}} options `keep` filters rows, `changed` is called when the
   *   shown or the selected rows may have changed
   */
  constructor(host, data, { keep, changed }) {
    const model = new TableModel(pointColumns(data), data.length);
    model.keep = keep;
    super(host, model, {
      label: "points", file: `${data.name.replace(/[^\w.-]+/g, "-") || "sweep"}-points.csv`, describe: () => describePoints(model, data), selected: () => changed(),
    });
    this.changed = changed;
    if (data.ranked) this.sort("rank");
    model.active = -1;
    this.box.scrollTop = 0;
    this.refresh();
  }

  // The base class refreshes before the fields of this class are set.
  refresh() {
    super.refresh();
    if (this.model.shown === this.reportedRows) return;
    /** @type {number[] | undefined} */
    this.reportedRows = this.model.shown;
    this.shownRows = new Set(this.model.shown);
    this.changed?.();
  }

  // Brushes on the axes have changed.
  again() {
    this.model.arrange();
    this.box.scrollTop = 0;
    this.refresh();
  }

  /** @param {number} row */
  isShown(row) {
    return this.shownRows?.has(row) ?? true;
  }

  /**
   * Select a point of a chart, alone or in addition.
   * @param {number} row
   * @param {boolean} more
   */
  pick(row, more) {
    if (!more) this.choose([row]);
    else this.choose(this.model.selected.has(row) ? [...this.model.selected].filter((other) => other !== row) : [...this.model.selected, row]);
  }
}

/**
 * @param {TableModel} model
 * @param {SweepData} data
 */
function describePoints(model, data) {
  const rows = [...model.selected];
  if (rows.length === 0) {
    return [make("p", {}, "Select a point for its details, two points for the command that compares them: click, Ctrl-click or Shift-click; by keyboard arrows and Space. Columns has every metric.")];
  }
  if (rows.length === 1) return describePoint(rows[0], data);
  return rows.length === 2 ? describeTwo(rows[0], rows[1], data) : selectionSummary(model);
}

/**
 * @param {SweepData} data
 * @param {number} row
 */
const reference = (data, row) => shellWord(`${data.id}#${data.points[row].number}`);

/**
 * @param {number} row
 * @param {SweepData} data
 */
function pointHead(row, data) {
  const { number, outcome, rank, report } = data.points[row];
  return make("h3", { class: "minor point-head" }, make("span", { class: "strong" }, `Point ${number} `), make("span", { class: `outcome ${outcome}` }, outcome),
    rank ? ` rank ${rank} of ${data.ranked} ` : " ", report ? make("a", { href: report }, "its own report") : "");
}

/**
 * @param {number} row
 * @param {SweepData} data
 */
function stepsList(row, data) {
  const list = make("table", { class: "dense" });
  for (const { name, outcome, reason } of data.points[row].steps) {
    list.append(make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), make("td", {}, make("span", { class: `outcome ${outcome}` }, outcome)), make("td", { class: "quiet" }, make("bdi", {}, reason))));
  }
  return list;
}

/**
 * @param {number} row
 * @param {SweepData} data
 */
function describePoint(row, data) {
  const list = make("dl");
  /** @type {(label: string, text: string) => void} */
  const add = (label, text) => list.append(make("dt", {}, make("bdi", {}, label)), make("dd", {}, make("bdi", {}, text)));
  const { reason, failed_step, constraints, again, steps, lines } = data.points[row];
  if (reason) add(failed_step || "reason", reason);
  for (const { gate, passed, measured } of constraints) add(gate, `${passed ? "passed" : "failed"}: ${measured}`);
  for (const dimension of data.dimensions.filter(({ kind }) => kind !== "metric")) add(dimension.label, dimension.text(row));
  if (again) data.of("objective").forEach((objective) => add(`${objective.label} first`, quantityText(objective.numbers[row], objective.unit)));
  const metrics = make("dl");
  for (const dimension of data.of("metric").filter((metric) => metric.numbers[row] !== null)) {
    metrics.append(make("dt", {}, make("bdi", {}, dimension.label)), make("dd", {}, dimension.text(row)));
  }
  return [pointHead(row, data), make("div", { class: "summary point-detail" },
    make("div", {}, list, steps.length ? scrollBox(stepsList(row, data)) : ""),
    make("div", {}, make("h3", { class: "minor" }, "For the recipe"), copyBox(lines),
      make("details", { class: "plain" }, make("summary", {}, `All metrics`), metrics)))];
}

/**
 * The command that compares two points, and the values in which they differ.
 * @param {number} first
 * @param {number} second
 * @param {SweepData} data
 */
function describeTwo(first, second, data) {
  const differing = data.dimensions.filter((dimension) => (dimension.kind !== "metric" || dimension.isDefault) && dimension.text(first) !== dimension.text(second));
  /** @param {DrawnDimension} dimension */
  const change = (dimension) => {
    const [from, to] = [dimension.numbers[first] ?? 0, dimension.numbers[second] ?? null];
    return dimension.kind !== "axis" && from > 0 && to !== null ? changeText(to / from) : "";
  };
  const table = make("table", { class: "dense" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "What differs"), ...[first, second].map((row) => make("th", { scope: "col", class: "n" }, `Point ${data.points[row].number}`)), make("th", { class: "n", scope: "col" }, "Change"))),
    make("tbody", {}, ...differing.map((dimension) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, dimension.label)),
      ...[first, second].map((row) => make("td", { class: "n" }, make("bdi", {}, shortened(dimension.text(row), 40)))), make("td", { class: "n" }, change(dimension))))));
  return [make("h3", { class: "minor" }, `Compare point ${data.points[first].number}, the base, with point ${data.points[second].number}`),
    copyBox(`ndld-flow compare ${reference(data, first)} ${reference(data, second)}`), scrollBox(table)];
}
