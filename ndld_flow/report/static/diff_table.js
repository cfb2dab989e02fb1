// The differences between two models as a table: added, removed and changed parts.

/** @import { Column } from "./table.js" */

import { all, make } from "./elements.js";
import { count } from "./quantities.js";
import { TableModel, TableView } from "./table.js";

/** @typedef {"part" | "sign" | "name" | "was" | "kind" | "scope" | "detail"} Field */

/** @type {Record<string, string>} */
const SIGN_WORDS = { "+": "added", "-": "removed", "~": "changed" };

// The rows of a diff, with texts instead of positions.
class DiffRows {
  /**
   * @param {DiffPayload} diff
   * @param {string[]} texts
   */
  constructor(diff, texts) {
    this.diff = diff;
    this.texts = texts;
    this.length = diff.sign.length;
  }

  /**
   * @param {Field} key
   * @param {number} row
   */
  text(key, row) {
    return this.texts[this.diff[key][row]];
  }

  /** @param {number} row */
  name(row) {
    const was = this.text("was", row);
    return was ? `${was} → ${this.text("name", row)}` : this.text("name", row);
  }

  /** @param {number} position */
  valueText(position) {
    return position < 0 ? "none" : this.texts[position] || "empty";
  }

  /** @param {number} row */
  lines(row) {
    return this.diff.lines[row].map(([label, before, after, consequence]) => ({
      label: this.texts[label], before: this.valueText(before), after: this.valueText(after), consequence: Boolean(consequence),
    }));
  }

  /** @param {number} row */
  changes(row) {
    const lines = this.lines(row).map(({ label, before, after, consequence }) =>
      `${label ? `${label}: ` : ""}${before} → ${after}${consequence ? " (as a consequence)" : ""}`);
    return [this.text("detail", row), ...lines].filter(Boolean).join("; ");
  }
}

/**
 * @param {HTMLElement} host
 * @param {DiffPayload} diff
 * @param {string[]} texts
 * @param {string} file
 */
function diffTable(host, diff, texts, file) {
  const rows = new DiffRows(diff, texts);
  /** @param {number} row */
  const tone = (row) => (diff.aside[row] ? "aside" : "");
  /** @param {number} row */
  const sign = (row) => SIGN_WORDS[rows.text("sign", row)];
  /** @param {number} row */
  const word = (row) => (rows.text("was", row) && !rows.changes(row) ? "renamed" : sign(row));
  /** @type {(key: Field) => (row: number) => string} */
  const plain = (key) => (row) => rows.text(key, row);
  /** @type {Column[]} */
  const columns = [
    {
      key: "change", label: "Change", width: "108px", value: word, tone,
      element: (value, row) => make("span", {}, make("span", { class: `sign ${sign(row)}`, "aria-hidden": "true" }, rows.text("sign", row)), ` ${value}`),
    },
    { key: "part", label: "Part", width: "86px", value: plain("part"), tone },
    { key: "kind", label: "Type", width: "minmax(130px, 0.7fr)", value: plain("kind"), tone },
    { key: "name", label: "Name", width: "minmax(180px, 1.4fr)", mono: true, value: (row) => rows.name(row), tone },
    { key: "what", label: "What", width: "minmax(220px, 1.8fr)", value: (row) => rows.changes(row), tone },
  ];
  if (diff.scope.some((text) => rows.texts[text])) columns.push({ key: "in", label: "In", width: "minmax(90px, 0.6fr)", mono: true, value: plain("scope"), tone });
  const model = new TableModel(columns, rows.length);
  const box = make("input", { type: "checkbox", checked: true });
  const aside = diff.aside.some(Boolean)
    ? [make("label", { class: "beside", title: "Nodes that are only renamed, or that read an inserted node" }, box, "renames and consequences")]
    : [];
  const table = new TableView(host, model, {
    label: "differences",
    file,
    describe: (shown) => describeDifference(shown, rows),
    tools: aside,
  });
  box.addEventListener("change", () => {
    model.keep = (row) => box.checked || !diff.aside[row];
    table.filter(table.field.value);
  });
  return table;
}

/**
 * @param {TableModel} model
 * @param {DiffRows} rows
 */
function describeDifference(model, rows) {
  if (model.selected.size !== 1) {
    const hint = model.selected.size ? `${count(model.selected.size)} differences selected.` : "Select a difference for its details.";
    return [make("p", {}, hint)];
  }
  const [row] = model.selected;
  const list = make("dl");
  /** @type {(label: string, ...parts: (Node | string)[]) => void} */
  const add = (label, ...parts) => list.append(make("dt", {}, label), make("dd", {}, ...parts));
  const fields = /** @type {Field[]} */ (["sign", "was", "kind", "scope", "detail"]);
  const [sign, was, kind, scope, detail] = fields.map((key) => rows.text(key, row));
  add(SIGN_WORDS[sign], make("bdi", { class: "mono" }, rows.text("name", row)));
  if (was) add("former name", make("bdi", { class: "mono" }, was));
  if (kind) add("type", make("bdi", {}, kind));
  if (scope) add("in", make("bdi", { class: "mono" }, scope));
  if (detail) add("", make("bdi", {}, detail));
  for (const { label, before, after, consequence } of rows.lines(row)) {
    const fromTo = make("span", { class: "from-to" },
      make("bdi", { class: "mono went" }, before), "→", make("bdi", { class: "mono came" }, after));
    add(label, fromTo, consequence ? " as a consequence of additions and removals" : "");
  }
  return [list];
}

// Tables of differences are built when they are first visible: most are inside of folded details.
/** @param {{diffs: (DiffPayload | null)[], texts: string[]}} payload */
export function diffTables(payload) {
  for (const host of all('[data-live="diff"]')) {
    const place = Number(host.dataset.diff);
    const diff = payload.diffs[place];
    if (!diff) continue;
    const draw = () => host.firstChild || diffTable(host, diff, payload.texts, host.dataset.file ?? "diff.csv");
    /** @type {HTMLDetailsElement | null} */
    const folded = host.closest("details.diff");
    if (!folded || folded.open) draw();
    else folded.addEventListener("toggle", draw, { once: true });
  }
}
