// State and data of a comparison's page: the chosen profile, base and candidate, and the matched rows.

import { make, shortened } from "../elements.js";
import { milliseconds } from "../quantities.js";

/** @typedef {NonNullable<ReturnType<typeof verdictOf>>} Verdict */

/**
 * A text of a layer.
 * @typedef {"name" | "type" | "precision" | "dims" | "role" | "tactic" | "provider"} Field
 */

// The choice of profile, base and candidate, kept in the address.

export class Choice {
  /** @param {ComparisonData} payload */
  constructor(payload) {
    this.payload = payload;
    this.profile = 0;
    this.base = 0;
    this.candidate = Math.min(1, payload.subjects.length - 1);
    /** @type {((choice: Choice) => void)[]} */
    this.followers = [];
  }

  /** @param {(choice: Choice) => void} follower */
  follow(follower) {
    this.followers.push(follower);
  }

  /**
   * Base and candidate are never the same: choosing one as the other swaps them.
   * @param {{profile?: number, base?: number, candidate?: number}} places
   */
  set({ profile = this.profile, base = this.base, candidate = this.candidate }) {
    if (base === candidate) {
      if (base !== this.base) candidate = this.base;
      else base = this.candidate;
    }
    this.profile = profile;
    this.base = base;
    this.candidate = candidate;
    this.remember();
    this.notify();
  }

  notify() {
    for (const follower of this.followers) follower(this);
  }

  /** @param {number} by */
  nextBase(by) {
    const { length } = this.payload.subjects;
    this.set({ base: (this.base + by + length) % length });
  }

  // Write the address: `#layers&base=B&against=C&profile=2`, without defaults.
  remember() {
    const { subjects } = this.payload;
    const section = location.hash.slice(1).split("&").find((part) => !part.includes("="));
    const usual = this.base === 0 && this.candidate === 1 && this.profile === 0;
    const parts = [section, !usual && `base=${subjects[this.base].letter}`,
      !usual && subjects.length > 2 && `against=${subjects[this.candidate].letter}`,
      this.profile > 0 && `profile=${this.profile + 1}`];
    try {
      const fragment = parts.filter(Boolean).join("&");
      history.replaceState(null, "", fragment ? `#${fragment}` : location.href.split("#")[0]);
    } catch { /* an address that may not change forgets */ }
  }

  recall() {
    /** @type {Map<string, string>} */
    const given = new Map(location.hash.slice(1).split("&").map((part) => /** @type {[string, string]} */ (part.split("="))));
    const { subjects, profiles } = this.payload;
    /** @type {(key: string, usual: number) => number} */
    const place = (key, usual) => {
      const position = subjects.findIndex((subject) => subject.letter === given.get(key));
      return position < 0 ? usual : position;
    };
    const base = place("base", 0);
    const profile = Math.min(Math.max(Number(given.get("profile") ?? 1) - 1 || 0, 0), Math.max(profiles.length - 1, 0));
    this.set({ profile, base, candidate: place("against", base === 0 ? 1 : 0) });
    const section = [...given.keys()].find((key) => key && given.get(key) === undefined);
    if (section && given.size > 1) document.getElementById(section)?.scrollIntoView();
  }
}

// The chosen profile. Positions count within the profile, which may lack some of the reports.
export class View {
  /** @param {Choice} choice */
  constructor(choice) {
    const { payload } = choice;
    this.payload = payload;
    this.profile = payload.profiles[choice.profile];
    const at = (/** @type {number} */ subject) => this.profile.subjects.indexOf(subject);
    this.base = Math.max(at(choice.base), 0);
    const wanted = at(choice.candidate);
    this.candidate = wanted < 0 || wanted === this.base ? Number(this.base === 0) : wanted;
    this.candidates = this.profile.subjects.map((_, place) => place).filter((place) => place !== this.base);
    this.first = this.base === 0; // the base that the comparison was made against
  }

  /** @param {number} place */
  subject(place) {
    return this.payload.subjects[this.profile.subjects[place]];
  }

  /** @param {number} place */
  report(place) {
    return this.profile.reports[place];
  }

  get deciding() {
    return this.profile.metrics.findIndex((metric) => metric.key === this.profile.decided_by);
  }

  /**
   * @param {number} metric
   * @param {number} candidate
   */
  verdict(metric, candidate) {
    return verdictOf(this.profile, metric, this.base, candidate);
  }
}

/**
 * One of the verdicts of a profile; undefined where there is none.
 * @param {ComparedProfile} profile
 * @param {number} metric
 * @param {number} base
 * @param {number} candidate
 */
export function verdictOf(profile, metric, base, candidate) {
  const verdict = profile.verdicts.find((row) => row.metric === metric && row.base === base && row.candidate === candidate);
  return verdict && { ...verdict, why: verdict.why.replaceAll("->", "→") };
}

// Rows of matched layers: the time of each row in each report.

class ComparedRows {
  /**
   * @param {ComparedProfile} profile
   * @param {string[]} methods
   */
  constructor(profile, methods) {
    this.profile = profile;
    this.methods = methods;
    this.length = profile.rows.layers[0].length;
    this.times = profile.reports.map((report, place) => this.timesOf(report, place));
    this.sums = this.times.map((times) => times.reduce((/** @type {number} */ sum, ms) => sum + (ms ?? 0), 0));
    this.verdicts = this.verdictsByRow();
    /** @type {Map<number, number>[] | null} for each report the row of each layer, computed when it is first needed */
    this.homes = null;
  }

  /**
   * Milliseconds of each row; null where the report has no layer in it.
   * @param {ComparedReport} report
   * @param {number} place
   */
  timesOf({ layers }, place) {
    return this.profile.rows.layers[place].map((own) => (own.length ? own.reduce((sum, layer) => sum + (layers.ms[layer] ?? 0), 0) : null));
  }

  // For each candidate the verdict of each row that has one, which is against the first base.
  verdictsByRow() {
    const candidates = Map.groupBy(this.profile.layer_verdicts, ({ candidate }) => candidate);
    return new Map([...candidates].map(([candidate, own]) => [candidate, new Map(own.map((verdict) => [verdict.row, verdict]))]));
  }

  /**
   * The row that contains a layer of one report.
   * @param {number} place
   * @param {number} layer
   */
  rowOf(place, layer) {
    this.homes ??= this.profile.rows.layers.map((cells) => new Map(cells.flatMap((own, row) => own.map((member) => /** @type {[number, number]} */ ([member, row])))));
    return this.homes[place].get(layer) ?? -1;
  }

  /**
   * @param {number} place
   * @param {number} row
   */
  has(place, row) {
    return this.times[place][row] !== null;
  }

  /**
   * The distinct texts of a row's layers in one report.
   * @param {Field} key
   * @param {number} place
   * @param {number} row
   */
  text(key, place, row) {
    const column = this.profile.reports[place].layers[key];
    const texts = this.profile.rows.layers[place][row].map((layer) => column[layer]);
    return [...new Set(texts)].join(" + ");
  }

  /**
   * @param {number} place
   * @param {number} row
   */
  onnxNodes(place, row) {
    const { onnx } = this.profile.reports[place].layers;
    return [...new Set(this.profile.rows.layers[place][row].flatMap((layer) => onnx[layer]))];
  }
}

// The rows of two reports: base and candidate.
export class RowPair {
  /**
   * @param {ComparedRows} rows
   * @param {number} base
   * @param {number} candidate
   */
  constructor(rows, base, candidate) {
    this.rows = rows;
    this.base = base;
    this.candidate = candidate;
    this.length = rows.length;
  }

  /** @param {number} row */
  from(row) {
    return this.rows.times[this.base][row];
  }

  /** @param {number} row */
  to(row) {
    return this.rows.times[this.candidate][row];
  }

  /** @param {number} row */
  both(row) {
    return this.rows.has(this.base, row) && this.rows.has(this.candidate, row);
  }

  /** @param {number} row */
  either(row) {
    return this.rows.has(this.base, row) || this.rows.has(this.candidate, row);
  }

  /** @param {number} row */
  delta(row) {
    return (this.to(row) ?? 0) - (this.from(row) ?? 0);
  }

  /**
   * Infinity for an added row, 0 for a removed one.
   * @param {number} row
   */
  ratio(row) {
    const [from, to] = [this.from(row), this.to(row)];
    if (from === null || to === null) return to === null ? 0 : Infinity;
    return to / from;
  }

  /**
   * The text in the base, or in the candidate where the base has no such row.
   * @param {Field} key
   * @param {number} row
   */
  text(key, row) {
    return this.rows.text(key, this.rows.has(this.base, row) ? this.base : this.candidate, row);
  }

  /**
   * @param {Field} key
   * @param {number} row
   */
  change(key, row) {
    if (!this.both(row)) return this.text(key, row);
    const [before, after] = [this.rows.text(key, this.base, row), this.rows.text(key, this.candidate, row)];
    return before === after ? before : `${before || "–"} → ${after || "–"}`;
  }

  /**
   * A value that one of the two does not record counts as equal.
   * @param {Field} key
   * @param {number} row
   */
  changed(key, row) {
    if (!this.both(row)) return false;
    const [before, after] = [this.rows.text(key, this.base, row), this.rows.text(key, this.candidate, row)];
    return before !== after && ![before, after].includes("unknown");
  }

  /**
   * The weaker of the methods by which base and candidate were matched.
   * @param {number} row
   */
  method(row) {
    const { methods, profile } = this.rows;
    return methods[Math.max(profile.rows.methods[this.base][row], profile.rows.methods[this.candidate][row])];
  }

  /**
   * The confidence of a report is that of its match with the first report of the row.
   * @param {number} row
   */
  confidence(row) {
    const { confidences } = this.rows.profile.rows;
    return Math.min(confidences[this.base][row] ?? 0, confidences[this.candidate][row] ?? 0);
  }

  /**
   * The verdict of a row; undefined for another base than the first.
   * @param {number} row
   */
  verdict(row) {
    if (this.base !== 0) return undefined;
    return this.rows.verdicts.get(this.candidate)?.get(row);
  }

  /**
   * `faster` or `slower` than in the base beyond the noise; empty for an unchanged row, and where that is not known.
   * Verdicts decide. Between reports without them, it is the threshold of the deciding metric.
   * @param {number} place
   * @param {number} row
   * @param {number} threshold
   */
  standing(place, row, threshold) {
    const pair = new RowPair(this.rows, this.base, place);
    if (place === this.base || !pair.both(row)) return "";
    const known = pair.verdict(row)?.verdict ?? null;
    const inverse = place === 0 ? new RowPair(this.rows, 0, this.base).verdict(row)?.verdict ?? null : null;
    if (known !== null) return known === "improved" ? "faster" : known === "regressed" ? "slower" : "";
    if (inverse !== null) return inverse === "improved" ? "slower" : inverse === "regressed" ? "faster" : "";
    const ratio = pair.ratio(row);
    return ratio > 1 + threshold ? "slower" : ratio < 1 / (1 + threshold) ? "faster" : "";
  }

  /**
   * Time by layer type of one report.
   * @param {number} place
   */
  types(place) {
    const { layers } = this.rows.profile.reports[place];
    /** @type {Map<string, {type: string, count: number, ms: number}>} */
    const totals = new Map();
    layers.ms.forEach((ms, layer) => {
      const type = layers.type[layer];
      const total = totals.get(type) ?? { type, count: 0, ms: 0 };
      totals.set(type, { type, count: total.count + 1, ms: total.ms + (ms ?? 0) });
    });
    return [...totals.values()];
  }

  /**
   * Layer time of one report, grouped by a text of its layers.
   * @param {"type" | "precision"} key
   * @param {number} place
   */
  timeBy(key, place) {
    const { layers } = this.rows.profile.reports[place];
    /** @type {Map<string, number>} */
    const sums = new Map();
    layers.ms.forEach((ms, layer) => {
      const text = layers[key][layer];
      sums.set(text, (sums.get(text) ?? 0) + (ms ?? 0));
    });
    return sums;
  }

  /**
   * Largest change first.
   * @param {"type" | "precision"} key
   * @returns {{text: string, before: number, after: number, delta: number, rest?: boolean}[]}
   */
  deltasBy(key) {
    const [before, after] = [this.timeBy(key, this.base), this.timeBy(key, this.candidate)];
    return [...new Set([...before.keys(), ...after.keys()])]
      .map((text) => ({ text, before: before.get(text) ?? 0, after: after.get(text) ?? 0 }))
      .map((entry) => ({ ...entry, delta: entry.after - entry.before }))
      .sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  }
}

/** @type {WeakMap<ComparedProfile, ComparedRows>} */
const rowsOfProfile = new WeakMap();

/**
 * The rows of the chosen base and candidate; those of a profile are computed when it is first shown.
 * @param {View} view
 */
export function pairOf(view) {
  const { profile, payload } = view;
  const rows = rowsOfProfile.get(profile) ?? new ComparedRows(profile, payload.methods);
  rowsOfProfile.set(profile, rows);
  return new RowPair(rows, view.base, view.candidate);
}

// The badge and the name of a report.

/** @param {SubjectData} subject */
export const badge = (subject) =>
  make("b", { class: `badge series series-${subject.series}`, title: subject.label }, subject.letter);

/** @param {SubjectData} subject */
export const named = (subject) =>
  make("span", { class: "report" }, badge(subject), " ", make("bdi", {}, shortened(subject.label, 40)));

/**
 * @param {string} word
 * @param {string} [text]
 */
export const verdictWord = (word, text = word) => make("span", { class: `outcome verdict ${word}` }, text);

/**
 * A group of radio buttons.
 * @param {string} name
 * @param {string} label
 * @param {{content: Node, value: number}[]} options
 * @param {(value: number) => void} choose
 */
export function chooser(name, label, options, choose) {
  const inputs = options.map(({ content, value }) => {
    const input = make("input", { type: "radio", name, value, onchange: () => choose(value) });
    return { input, element: make("label", {}, input, content) };
  });
  const element = make("fieldset", { class: "choice", role: "radiogroup", "aria-label": label }, make("span", { class: "quiet" }, label),
    ...inputs.map((input) => input.element));
  /** @param {number} value */
  const show = (value) => {
    for (const { input } of inputs) input.checked = input.value === String(value);
  };
  return { element, show };
}

/** @param {number} value */
export const signedMs = (value) => (value === 0 ? "±0" : `${value < 0 ? "−" : "+"}${milliseconds(Math.abs(value))}`);
