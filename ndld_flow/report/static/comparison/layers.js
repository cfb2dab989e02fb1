// The table of matched layers: columns, selection, filters.

/** @import { Column } from "../table.js" */
/** @import { View, RowPair } from "./data.js" */

import { make, shortened } from "../elements.js";
import { changeText, milliseconds, share, threeDigits } from "../quantities.js";
import { exactWord, Heat, TableModel, TableView } from "../table.js";
import { makeSwitch, selectionSummary } from "../widgets.js";
import { badge, named, signedMs, verdictWord } from "./data.js";

// The columns of the layer table: the time in each report, and the change from the base to the candidate.

/** @type {<T>(value: number, otherwise: T) => number | T} */
const finite = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);

// A layer is slower or faster by the threshold of the deciding metric, where no verdict says more.
const UNDECIDED_THRESHOLD = 0.03;

/** @param {View} view */
const thresholdOf = (view) => view.verdict(view.deciding, view.candidate)?.threshold ?? UNDECIDED_THRESHOLD;

/**
 * With two reports there is room for shares; the CSV file always has them. Times are coloured against the base.
 * @param {View} view
 * @param {RowPair} pair
 * @returns {Column[]}
 */
function timeColumns(view, pair) {
  const threshold = thresholdOf(view);
  return view.profile.subjects.flatMap((_, place) => {
    const { letter, label } = view.subject(place);
    const { [place]: times } = pair.rows.times;
    const sum = pair.rows.sums[place] || 1;
    const part = (/** @type {number} */ row) => {
      const ms = times[row];
      return ms === null ? null : ms / sum;
    };
    const key = letter.toLowerCase();
    const long = `${letter} ${shortened(label, 30)}`;
    return [
      {
        key, label: badge(view.subject(place)), longLabel: `${long}, ms`, summaryLabel: long, csvLabel: `${letter} ${label} ms`,
        width: "80px", numeric: true, right: true, measure: "sum",
        value: (row) => times[row], format: (value) => (value === null ? "–" : milliseconds(value)), csv: (row) => times[row] ?? "",
        tone: (row) => {
          const standing = pair.standing(place, row, threshold);
          return standing && `${standing} than-base`;
        },
      },
      {
        key: `${key}_share`, label: "%", longLabel: `${long}, %`, csvLabel: `${letter} ${label} percent of layer sum`,
        width: "68px", numeric: true, right: true, hidden: view.profile.subjects.length > 2,
        value: part, format: (value) => (value === null ? "–" : share(value)),
        csv: (row) => (times[row] === null ? "" : Number(((part(row) ?? 0) * 100).toPrecision(5))),
      },
    ];
  });
}

/**
 * @param {View} view
 * @param {RowPair} pair
 * @param {Heat} heat
 * @returns {Column[]}
 */
function changeColumns(view, pair, heat) {
  const threshold = thresholdOf(view);
  const size = (/** @type {number} */ row) => Math.abs(pair.delta(row));
  const sizes = Array.from({ length: pair.length }, (_, row) => size(row));
  const gained = (/** @type {number} */ row) => (pair.delta(row) < 0 ? "faster" : "slower");
  const direction = (/** @type {number} */ row) => (pair.both(row) ? pair.standing(pair.candidate, row, threshold) : gained(row));
  const word = (/** @type {number} */ row) => (pair.rows.has(pair.candidate, row) ? "new" : "gone");
  return [
    {
      key: "delta", label: "Delta", csvLabel: "delta ms", width: "86px", numeric: true, right: true, measure: "sum",
      value: (row) => pair.delta(row), format: signedMs,
      heat: (row) => (direction(row) ? heat.of("delta", sizes)(size(row)) : 0), tone: direction,
      csv: (row) => Number(pair.delta(row).toPrecision(5)),
    },
    {
      key: "size", label: "Size of delta", csvLabel: "absolute delta ms", width: "92px", numeric: true, right: true, hidden: true,
      value: size, format: milliseconds, csv: (row) => Number(size(row).toPrecision(5)),
    },
    {
      key: "percent", label: "%", csvLabel: "delta percent", width: "80px", numeric: true, right: true,
      value: (row) => (pair.either(row) ? finite(pair.ratio(row), 1e9) : null), format: (value, row) => (pair.both(row) ? changeText(pair.ratio(row)) : pair.either(row) ? word(row) : "–"),
      csv: (row) => (pair.both(row) ? Number(((pair.ratio(row) - 1) * 100).toPrecision(5)) : pair.either(row) ? word(row) : ""),
    },
    {
      key: "speedup", label: "Speed-up", width: "80px", numeric: true, right: true,
      value: (row) => (pair.both(row) ? finite(1 / pair.ratio(row), null) : null), format: (value) => (value === null ? "–" : `${threeDigits(value)}×`),
      csv: (row) => (pair.both(row) && pair.to(row) ? Number((1 / pair.ratio(row)).toPrecision(5)) : ""),
    },
  ];
}

const LAYER_VERDICTS = ["incomparable", "unchanged", "inconclusive", "improved", "regressed"];

/**
 * @param {RowPair} pair
 * @returns {Column[]}
 */
function verdictColumns(pair) {
  const q = (/** @type {number} */ row) => pair.verdict(row)?.q_value ?? null;
  const qText = (/** @type {number | null} */ value) => (value === null ? "" : value < 0.001 ? "< 0.001" : value.toFixed(3));
  return [
    {
      key: "verdict", label: "Verdict", width: "122px", numeric: true,
      value: (row) => {
        const verdict = pair.verdict(row);
        return verdict ? LAYER_VERDICTS.indexOf(verdict.verdict) : null;
      },
      csv: (row) => pair.verdict(row)?.verdict ?? "",
      format: (value) => (value === null ? "–" : LAYER_VERDICTS[value]),
      element: (value) => (value === null ? "–" : verdictWord(LAYER_VERDICTS[value])),
    },
    {
      key: "q", label: "q", width: "70px", numeric: true, right: true, hidden: !pair.rows.profile.layer_verdicts.some(({ q_value }) => q_value !== null),
      value: q, format: (value) => (value === null ? "–" : qText(value)), csv: (row) => q(row) ?? "",
    },
  ];
}

/**
 * @param {RowPair} pair
 * @returns {Column[]}
 */
function confidenceColumns(pair) {
  return [
    { key: "precision", label: "Precision", width: "140px", tally: true, value: (row) => pair.change("precision", row) },
    {
      key: "tactic", label: "Tactic", width: "minmax(96px, 0.7fr)", hidden: true, value: (row) => pair.change("tactic", row),
      format: (value, row) => (pair.changed("tactic", row) ? `changed: ${shortened(value, 140)}` : shortened(value, 160)),
    },
    {
      key: "matched", label: "Matched by", width: "138px", tally: true, value: (row) => (pair.either(row) ? pair.method(row) : ""),
      format: (value, row) => (pair.both(row) ? `${value}, ${pair.confidence(row).toFixed(2)}` : value),
    },
    {
      key: "confidence", label: "Confidence", width: "92px", numeric: true, right: true, hidden: true,
      value: (row) => (pair.both(row) ? pair.confidence(row) : null), format: (value) => (value === null ? "–" : value.toFixed(2)),
      csv: (row) => (pair.both(row) ? pair.confidence(row) : ""),
    },
  ];
}

/**
 * @param {View} view
 * @param {RowPair} pair
 * @param {Heat} heat
 * @returns {Column[]}
 */
function comparedColumns(view, pair, heat) {
  return [
    { key: "row", label: "#", width: "46px", numeric: true, position: true, right: true, value: (row) => row, format: (value) => String(value + 1), csv: (row) => row + 1 },
    { key: "name", label: "Name", width: "minmax(170px, 2.4fr)", mono: true, value: (row) => pair.text("name", row) },
    { key: "type", label: "Type", width: "minmax(88px, 0.8fr)", tally: true, value: (row) => pair.text("type", row) },
    { key: "dims", label: "Dims", width: "128px", hidden: true, value: (row) => pair.change("dims", row) },
    ...timeColumns(view, pair),
    ...changeColumns(view, pair, heat),
    ...confidenceColumns(pair),
    ...verdictColumns(pair),
  ];
}

// The text about the selected rows: one in full, several as sums.

const FIELDS = /** @type {const} */ (["name", "type", "dims", "precision", "tactic", "provider"]);

/**
 * @param {View} view
 * @param {RowPair} pair
 * @param {number} row
 */
function describeRow(view, pair, row) {
  const list = make("dl");
  const both = pair.both(row)
    ? `${milliseconds(pair.from(row) ?? 0)} → ${milliseconds(pair.to(row) ?? 0)}: ${signedMs(pair.delta(row))}, ${changeText(pair.ratio(row))}, speed-up ${threeDigits(1 / pair.ratio(row))}×`
    : pair.either(row) ? `${pair.rows.has(pair.base, row) ? "only in the base" : "only in the candidate"}: ${signedMs(pair.delta(row))}` : "in neither of the two";
  /** @type {[string | Node, string][]} */
  const lines = [["Change", both]];
  for (const place of view.profile.subjects.keys()) {
    if (!pair.rows.has(place, row)) continue;
    const words = FIELDS.map((key) => pair.rows.text(key, place, row)).filter(Boolean);
    lines.push([badge(view.subject(place)), `${words.join(" · ")} · ${milliseconds(pair.rows.times[place][row] ?? 0)}`]);
    const nodes = pair.rows.onnxNodes(place, row);
    if (nodes.length && place === pair.base) lines.push(["ONNX nodes", nodes.join(", ")]);
  }
  if (pair.both(row)) lines.push(["Matched by", `${pair.method(row)}, confidence ${pair.confidence(row).toFixed(2)}`]);
  const verdict = pair.verdict(row);
  if (verdict) lines.push(["Verdict", `${verdict.verdict}${verdict.p_value === null ? "" : `, p ${threeDigits(verdict.p_value)}, q ${threeDigits(verdict.q_value ?? NaN)} over all rows`}: advisory, gates do not use it`]);
  for (const [label, text] of lines) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, text)));
  return [list];
}

/**
 * The ratio of two sums, so that a fused layer counts with those it replaces.
 * @param {View} view
 * @param {RowPair} pair
 * @param {TableModel} model
 */
function describeRows(view, pair, model) {
  const rows = [...model.selected];
  const sum = (/** @type {(row: number) => number | null} */ time) => rows.reduce((total, row) => total + (time(row) ?? 0), 0);
  const [before, after] = [sum((row) => pair.from(row)), sum((row) => pair.to(row))];
  const change = make("p", {}, make("b", {}, `${milliseconds(before)} → ${milliseconds(after)}`), `: ${signedMs(after - before)}`,
    before ? `, ${changeText(after / before)}` : "", after ? `, speed-up ${threeDigits(before / after)}×` : "");
  return [change, ...selectionSummary(model)];
}

/**
 * @param {View} view
 * @param {RowPair} pair
 * @param {TableModel} model
 */
function describeCompared(view, pair, model) {
  if (model.selected.size === 1) return describeRow(view, pair, [...model.selected][0]);
  if (model.selected.size > 1) return describeRows(view, pair, model);
  const advice = [make("p", {}, "Select rows to add them up: click, Shift or Ctrl and click, or the arrow keys and Space. ",
    make("kbd", {}, "1"), " to ", make("kbd", {}, "9"), " sort by a column, ", make("kbd", {}, "b"), " makes the next report the base.")];
  if (!view.first) advice.push(make("p", {}, "Verdicts of layers were computed against ", named(view.subject(0)), ": make it the base to see them."));
  return advice;
}

// The table of the matched layers of all reports, with the filters of its rows.

/** @type {Record<string, {label: string, keep: (pair: RowPair, limit: number) => (row: number) => boolean}>} */
const LAYER_CHOICES = {
  precision: { label: "precision changed", keep: (pair) => (row) => pair.changed("precision", row) },
  tactic: { label: "tactic changed", keep: (pair) => (row) => pair.changed("tactic", row) },
  slower: { label: "slower", keep: (pair, limit) => (row) => pair.delta(row) > 0 && pair.ratio(row) > 1 + limit },
  faster: { label: "faster", keep: (pair, limit) => (row) => pair.delta(row) < 0 && pair.ratio(row) < 1 / (1 + limit) },
  unmatched: { label: "unmatched", keep: (pair) => (row) => pair.either(row) && !pair.both(row) },
};

export class ComparedLayers {
  /**
   * @param {HTMLElement} host
   * @param {View} view
   * @param {RowPair} pair
   * @param {(rows: number[]) => void} selected is called when the selection changes
   */
  constructor(host, view, pair, selected) {
    this.view = view;
    this.pair = pair;
    this.selected = selected;
    /** @type {Set<string>} */
    this.chosen = new Set();
    this.method = "";
    this.scale = "linear";
    this.limit = 0;
    this.heat = new Heat(this.scale);
    this.buttons = Object.entries(LAYER_CHOICES).map(([key, { label }]) => make("button", {
      type: "button", "aria-pressed": "false", "data-choice": key, onclick: () => this.toggle(key),
    }, label));
    this.methods = make("select", { "aria-label": "Matched by", onchange: () => this.showMethod(this.methods.value) });
    this.choices = make("div", { class: "layer-choices", role: "group", "aria-label": "Show only" },
      make("span", { class: "quiet" }, "Only"), ...this.buttons, this.methods);
    this.about = make("p", { class: "quiet small" });
    this.inner = make("div", { "data-live": "compared-layers" });
    host.replaceChildren(this.choices, this.about, this.inner);
    this.model = this.newModel(comparedColumns(view, pair, this.heat));
    this.table = this.newTable();
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    const sameProfile = this.view.profile === view.profile;
    this.view = view;
    this.pair = pair;
    this.limit = thresholdOf(view);
    this.namePair();
    this.offerMethods();
    this.heat = new Heat(this.scale);
    const columns = comparedColumns(view, pair, this.heat);
    const { field } = this.table;
    const top = sameProfile ? this.table.box.scrollTop : 0;
    if (sameProfile) this.follow(columns);
    else this.model = this.newModel(columns);
    this.keep();
    this.table = this.newTable();
    this.table.filter(sameProfile ? field.value : "");
    this.table.box.scrollTop = top;
  }

  /** @param {Column[]} columns */
  newModel(columns) {
    const model = new TableModel(columns, this.pair.length);
    model.sorting = { key: "size", descending: true };
    return model;
  }

  /**
   * Another base keeps rows, selection, order, filter and hidden columns.
   * @param {Column[]} columns
   */
  follow(columns) {
    const hidden = new Map(this.model.columns.map((column) => [column.key, column.hidden]));
    for (const column of columns) if ("hidden" in column) column.hidden = hidden.get(column.key);
    this.model.columns = columns;
    this.model.haystacks.clear();
  }

  newTable() {
    const { subjects, name } = this.view.profile;
    const table = new TableView(this.inner, this.model, {
      label: "layers",
      file: `layers-${name.replaceAll(/[^\w.-]+/g, "_").slice(0, 60)}-${this.view.subject(this.pair.candidate).letter}-against-${this.view.subject(this.pair.base).letter}.csv`,
      describe: (model) => describeCompared(this.view, this.pair, model),
      selected: (rows) => this.selected(rows),
      tools: [makeSwitch("Heat", { linear: "linear", log: "log", rank: "rank", none: "off" }, this.scale, (scale) => this.warm(scale))],
    });
    table.box.dataset.reports = String(subjects.length);
    return table;
  }

  /** @param {string} scale */
  warm(scale) {
    this.scale = scale;
    this.heat.use(scale);
    this.table.paint();
  }

  namePair() {
    this.about.replaceChildren("Delta, %, speed-up and changes: ", named(this.view.subject(this.pair.candidate)), " against ", named(this.view.subject(this.pair.base)),
      this.view.first ? "; the largest change comes first. " : "; the largest change comes first. Verdicts were computed against another base. ",
      make("span", { class: "than-base faster" }, "faster"), " and ", make("span", { class: "than-base slower" }, "slower"), " than in ",
      named(this.view.subject(this.pair.base)), "; without a colour, no difference beyond the noise is known.");
  }

  offerMethods() {
    const present = this.pair.rows.methods.filter((method) => method !== "unmatched");
    this.methods.replaceChildren(make("option", { value: "" }, "matched by any method"),
      ...present.map((method) => make("option", { value: method }, `matched by ${method}`)));
    this.methods.value = this.method;
    const tactics = Array.from({ length: this.pair.length }, (_, row) => row).some((row) => this.pair.changed("tactic", row));
    const tactic = this.buttons.find((button) => button.dataset.choice === "tactic");
    if (tactic) tactic.hidden = !tactics && !this.chosen.has("tactic");
  }

  /**
   * Slower and faster exclude each other; all other filters combine.
   * @param {string} key
   */
  toggle(key) {
    if (!this.chosen.delete(key)) this.chosen.add(key);
    if (this.chosen.has(key) && key === "slower") this.chosen.delete("faster");
    if (this.chosen.has(key) && key === "faster") this.chosen.delete("slower");
    this.apply();
  }

  /** @param {string} method */
  showMethod(method) {
    this.chosen.delete("unmatched");
    this.method = method === "unmatched" ? "" : method;
    if (method === "unmatched") this.chosen.add("unmatched");
    this.methods.value = this.method;
    this.apply();
  }

  /**
   * Filter by a type or precision that was selected elsewhere; selected again, the filter is removed.
   * @param {string} key
   * @param {string} text
   */
  pick(key, text) {
    const word = exactWord(key, text);
    this.table.filter(this.table.field.value === word ? "" : word);
  }

  apply() {
    this.keep();
    this.table.filter(this.table.field.value);
  }

  keep() {
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(this.chosen.has(button.dataset.choice ?? "")));
    const tests = [...this.chosen].map((key) => LAYER_CHOICES[key].keep(this.pair, this.limit));
    const byMethod = this.method;
    this.model.keep = (row) => tests.every((test) => test(row)) && (!byMethod || this.pair.method(row) === byMethod);
  }
}
