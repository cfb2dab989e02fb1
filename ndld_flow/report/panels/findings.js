// Findings of the lint steps as a table.

/** @import { Column } from "../static/table.js" */

import { live, make } from "../static/elements.js";
import { counted } from "../static/quantities.js";
import { TableModel, TableView } from "../static/table.js";

const SEVERITIES = ["error", "warning", "info"];

/**
 * @param {HTMLElement} host
 * @param {FindingRow[]} findings
 */
function findingsTable(host, findings) {
  /** @type {(key: keyof FindingRow) => (row: number) => string} */
  const text = (key) => (row) => findings[row][key];
  /** @type {Column[]} */
  const columns = [
    {
      key: "severity", label: "Severity", width: "110px", numeric: true,
      value: (row) => SEVERITIES.length - SEVERITIES.indexOf(text("severity")(row)),
      csv: text("severity"),
      element: (value) => {
        const word = SEVERITIES[SEVERITIES.length - value];
        return make("span", { class: `outcome ${word}` }, word);
      },
    },
    { key: "check", label: "Check", width: "150px", value: text("check") },
    { key: "node", label: "Node", width: "minmax(140px, 1fr)", mono: true, value: text("node") },
    { key: "type", label: "Type", width: "140px", value: text("op_type") },
    { key: "message", label: "Message", width: "minmax(240px, 2.4fr)", value: text("message") },
  ];
  const severityWord = { key: "severity", label: "Severity", width: "", value: text("severity") };
  const model = new TableModel(columns, findings.length);
  // The word is searched though the column sorts by rank.
  const words = columns.map((column) => (column.key === "severity" ? severityWord : column));
  model.searched = (key) => words.filter((column) => !key || column.key === key);
  return new TableView(host, model, {
    label: "findings",
    file: "findings.csv",
    least: 780,
    describe: (table) => describeFindings(table, findings),
  });
}

/**
 * @param {TableModel} table
 * @param {FindingRow[]} findings
 */
function describeFindings(table, findings) {
  if (table.selected.size !== 1) {
    const hint = table.selected.size ? `${counted(table.selected.size, "finding")} selected.` : "Select a finding for its details.";
    return [make("p", {}, hint)];
  }
  const [row] = table.selected;
  const list = make("dl");
  /** @type {[string, keyof FindingRow][]} */
  const facts = [["Message", "message"], ["Node", "node"], ["Type", "op_type"], ["Check", "check"], ["Step", "step"]];
  for (const [label, key] of facts) {
    const value = findings[row][key];
    if (value) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  }
  return [list];
}

/** @param {ReportData} data */
export function show({ panels: { findings } }) {
  const host = live("findings");
  if (host && findings?.length) findingsTable(host, findings);
}
