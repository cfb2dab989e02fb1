// The page of two engines that are compared without times: the table of their layers.

/** @import { Column } from "../table.js" */

import { startConveniences } from "../conveniences.js";
import { live, make } from "../elements.js";
import { count, counted, size } from "../quantities.js";
import { readPageData } from "../unpack.js";
import { TableModel, TableView } from "../table.js";

/** @typedef {"precision" | "type" | "tactic" | "formats" | "shapes"} Aspect */

/** @type {Aspect[]} */
const ASPECTS = ["precision", "type", "tactic", "formats", "shapes"];
/** @type {Record<string, string>} */
const WIDTHS = {
  precision: "minmax(150px, 0.6fr)", type: "minmax(120px, 0.5fr)", tactic: "minmax(170px, 1fr)", formats: "minmax(250px, 1.3fr)", shapes: "minmax(200px, 1fr)",
};
const NONE = "–";

/**
 * @param {EngineRow} row
 * @param {Aspect} aspect
 */
function pair({ before, after }, aspect) {
  return before[aspect] === after[aspect] ? before[aspect] || NONE : `${before[aspect] || NONE} → ${after[aspect] || NONE}`;
}

/**
 * True where both are recorded, and differ.
 * @param {EngineRow} row
 * @param {Aspect} aspect
 */
function changed({ before, after }, aspect) {
  return Boolean(before[aspect] && after[aspect] && before[aspect] !== after[aspect]);
}

/**
 * @param {EngineRow[]} rows
 * @returns {Column[]}
 */
function columnsOf(rows) {
  /** @param {number} row */
  const tone = (row) => (rows[row].differs ? "" : "aside");
  return [
    {
      key: "change", label: "Difference", width: "104px", value: (row) => rows[row].change, tone, tally: true,
      element: (value) => (ASPECTS.some((aspect) => value.includes(aspect)) ? "changed" : value), // the filter has all
      about: (row) => rows[row].change,
    },
    { key: "name", label: "Layer", width: "minmax(180px, 1.1fr)", mono: true, value: (row) => rows[row].name, tone },
    ...ASPECTS.map((aspect) => /** @type {Column} */ ({
      key: aspect,
      label: aspect[0].toUpperCase() + aspect.slice(1),
      width: WIDTHS[aspect],
      mono: aspect === "tactic",
      hidden: aspect === "shapes",
      value: (row) => pair(rows[row], aspect),
      tone: (row) => (changed(rows[row], aspect) ? "changed" : "aside"),
    })),
    {
      key: "match", label: "Match", width: "minmax(150px, 0.6fr)", value: (row) => rows[row].method, tone,
      format: (value, row) => (value ? `${value}, ${Math.round(rows[row].confidence * 100)} %` : ""),
      about: () => "How the layers were matched, and the share of such matches that are correct",
    },
  ];
}

/**
 * @param {TableModel} model
 * @param {EngineRow[]} rows
 */
function describe(model, rows) {
  if (model.selected.size !== 1) {
    return [make("p", {}, model.selected.size ? `${counted(model.selected.size, "row")} selected.` : "Select a layer for its details.")];
  }
  const { name, was, change, before, after, method, confidence } = rows[[...model.selected][0]];
  const list = make("dl");
  /** @type {(label: string, ...parts: (Node | string)[]) => void} */
  const add = (label, ...parts) => list.append(make("dt", {}, label), make("dd", {}, ...parts));
  add("layer", make("bdi", { class: "mono" }, name));
  if (was) add("in A", make("bdi", { class: "mono" }, was));
  add("difference", change);
  for (const aspect of ASPECTS) {
    const [ours, theirs] = [before[aspect], after[aspect]];
    if (ours === theirs) add(aspect, make("bdi", { class: "mono" }, ours || "not recorded"));
    else add(aspect, make("span", { class: "from-to" },
      make("bdi", { class: "mono went" }, ours || "not recorded"), "→", make("bdi", { class: "mono came" }, theirs || "not recorded")));
  }
  if (before.bytes || after.bytes) add("weights", before.bytes === after.bytes ? size(after.bytes) : `${size(before.bytes)} → ${size(after.bytes)}`);
  if (method) add("match", `by ${method}; ${Math.round(confidence * 100)} % of such matches are correct`);
  return [list];
}

/**
 * @param {HTMLElement} host
 * @param {EngineRow[]} rows
 */
function layerTable(host, rows) {
  const model = new TableModel(columnsOf(rows), rows.length);
  const differing = rows.filter((row) => row.differs).length;
  const box = make("input", { type: "checkbox", checked: differing > 0 });
  const table = new TableView(host, model, {
    label: "layers",
    file: "engines.csv",
    describe: (shown) => describe(shown, rows),
    tools: differing ? [make("label", { class: "beside" }, box, `only the ${count(differing)} that differ`)] : [],
  });
  const choose = () => {
    model.keep = (row) => !box.checked || rows[row].differs;
    table.filter(table.field.value);
  };
  box.addEventListener("change", choose);
  choose();
}

export async function start() {
  startConveniences();
  const host = live("engines");
  if (host) layerTable(host, await readPageData());
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
