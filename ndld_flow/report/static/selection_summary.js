// What selected rows have in common: texts by how often they occur, numbers as least, most, sum and mean.
// A column takes part by `tally` (a discrete one) or `measure` (a numeric one; "sum" where adding up means something).

const TALLIES_SHOWN = 6;

function tally(rows, column) {
  const times = new Map();
  for (const row of rows) {
    const value = String(column.value(row));
    times.set(value, (times.get(value) ?? 0) + 1);
  }
  return [...times].sort((a, b) => b[1] - a[1]);
}

function measure(rows, column) {
  const values = rows.map((row) => column.value(row)).filter((value) => value !== null && Number.isFinite(value));
  if (values.length === 0) return null;
  const total = values.reduce((a, b) => a + b, 0);
  return {
    min: values.reduce((a, b) => Math.min(a, b)),
    max: values.reduce((a, b) => Math.max(a, b)),
    total: column.measure === "sum" ? total : null,
    mean: total / values.length,
  };
}

function tallyText(found) {
  const shown = found.slice(0, TALLIES_SHOWN).map(([value, times]) => `${shortened(value, 40) || "none"}\u00a0(${count(times)})`);
  const rest = found.length - TALLIES_SHOWN;
  return rest > 0 ? `${shown.join(", ")}, ${count(rest)} more` : shown.join(", ");
}

function selectionSummary(model) {
  const rows = [...model.selected];
  const list = make("dl", {}, make("dt", {}, "Selected"), make("dd", {}, `${count(rows.length)} of ${count(model.length)} rows`));
  for (const column of model.columns.filter((one) => one.tally)) {
    const found = tally(rows, column);
    if (found.length === 1 && found[0][0] === "") continue;
    list.append(make("dt", {}, column.label), make("dd", {}, make("bdi", {}, tallyText(found))));
  }
  const lines = model.columns.filter((one) => one.measure).map((column) => [column, measure(rows, column)]).filter(([, found]) => found);
  const cell = (column, value) => make("td", { class: "n" }, value === null ? "–" : column.format(value));
  const table = make("table", { class: "dense" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }), ...["Min", "Max", "Total", "Mean"].map((head) => make("th", { scope: "col", class: "n" }, head)))),
    make("tbody", {}, ...lines.map(([column, { min, max, total, mean }]) => make("tr", {},
      make("th", { scope: "row" }, column.summaryLabel ?? column.label),
      ...[min, max, total, mean].map((value) => cell(column, value))))));
  return [make("div", { class: "summary" }, list, make("div", { class: "scroll" }, table))];
}
