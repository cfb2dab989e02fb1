// The differences between two models as a table: added, removed and changed parts.

/** @import { Column } from "./table.js" */

import { all, make } from "./elements.js";
import { count } from "./quantities.js";
import { TableModel, TableView } from "./table.js";

/** @type {Record<string, string>} */
const SIGN_WORDS = { "+": "added", "-": "removed", "~": "changed" };

/** @param {string | null} value */
const valueText = (value) => (value === null ? "none" : value || "empty");

/** @param {DiffRow} row */
function changes({ detail, lines }) {
  const words = lines.map(({ label, before, after, is_consequence: consequence }) =>
    `${label ? `${label}: ` : ""}${valueText(before)} → ${valueText(after)}${consequence ? " (as a consequence)" : ""}`);
  return [detail, ...words].filter(Boolean).join("; ");
}

/**
 * @param {HTMLElement} host
 * @param {DiffRow[]} rows
 * @param {string} file
 */
function diffTable(host, rows, file) {
  /** @param {number} row */
  const tone = (row) => (rows[row].is_aside ? "aside" : "");
  /** @param {number} row */
  const sign = (row) => SIGN_WORDS[rows[row].sign];
  /** @param {number} row */
  const word = (row) => (rows[row].was && !changes(rows[row]) ? "renamed" : sign(row));
  /** @type {Column[]} */
  const columns = [
    {
      key: "change", label: "Change", width: "108px", value: word, tone,
      element: (value, row) => make("span", {}, make("span", { class: `sign ${sign(row)}`, "aria-hidden": "true" }, rows[row].sign), ` ${value}`),
    },
    { key: "part", label: "Part", width: "86px", value: (row) => rows[row].part, tone },
    { key: "kind", label: "Type", width: "minmax(130px, 0.7fr)", value: (row) => rows[row].kind, tone },
    { key: "name", label: "Name", width: "minmax(180px, 1.4fr)", mono: true, value: (row) => (rows[row].was ? `${rows[row].was} → ${rows[row].name}` : rows[row].name), tone },
    { key: "what", label: "What", width: "minmax(220px, 1.8fr)", value: (row) => changes(rows[row]), tone },
  ];
  if (rows.some(({ scope }) => scope)) columns.push({ key: "in", label: "In", width: "minmax(90px, 0.6fr)", mono: true, value: (row) => rows[row].scope, tone });
  const model = new TableModel(columns, rows.length);
  const box = make("input", { type: "checkbox", checked: true });
  const aside = rows.some((row) => row.is_aside)
    ? [make("label", { class: "beside", title: "Nodes that are only renamed, or that read an inserted node" }, box, "renames and consequences")]
    : [];
  const table = new TableView(host, model, {
    label: "differences",
    file,
    describe: (shown) => describeDifference(shown, rows),
    tools: aside,
  });
  box.addEventListener("change", () => {
    model.keep = (row) => box.checked || !rows[row].is_aside;
    table.filter(table.field.value);
  });
  return table;
}

/**
 * @param {TableModel} model
 * @param {DiffRow[]} rows
 */
function describeDifference(model, rows) {
  if (model.selected.size !== 1) {
    const hint = model.selected.size ? `${count(model.selected.size)} differences selected.` : "Select a difference for its details.";
    return [make("p", {}, hint)];
  }
  const { sign, name, was, kind, scope, detail, lines } = rows[[...model.selected][0]];
  const list = make("dl");
  /** @type {(label: string, ...parts: (Node | string)[]) => void} */
  const add = (label, ...parts) => list.append(make("dt", {}, label), make("dd", {}, ...parts));
  add(SIGN_WORDS[sign], make("bdi", { class: "mono" }, name));
  if (was) add("former name", make("bdi", { class: "mono" }, was));
  if (kind) add("type", make("bdi", {}, kind));
  if (scope) add("in", make("bdi", { class: "mono" }, scope));
  if (detail) add("", make("bdi", {}, detail));
  for (const { label, before, after, is_consequence: consequence } of lines) {
    const fromTo = make("span", { class: "from-to" },
      make("bdi", { class: "mono went" }, valueText(before)), "→", make("bdi", { class: "mono came" }, valueText(after)));
    add(label, fromTo, consequence ? " as a consequence of additions and removals" : "");
  }
  return [list];
}

// Tables of differences are built when they are first visible: most are inside of folded details.
/** @param {(DiffRow[] | null)[]} diffs */
export function diffTables(diffs) {
  for (const host of all('[data-live="diff"]')) {
    const rows = diffs[Number(host.dataset.diff)];
    if (!rows) continue;
    const draw = () => host.firstChild || diffTable(host, rows, host.dataset.file ?? "diff.csv");
    /** @type {HTMLDetailsElement | null} */
    const folded = host.closest("details.diff");
    if (!folded || folded.open) draw();
    else folded.addEventListener("toggle", draw, { once: true });
  }
}
