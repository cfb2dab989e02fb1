// The page of two engines that are compared without times: the table of their layers.

/** @import { Column } from "../table.js" */

import { startConveniences } from "../conveniences.js";
import { live, make } from "../elements.js";
import { count, counted, size } from "../quantities.js";
import { readPageData } from "../unpack.js";
import { TableModel, TableView } from "../table.js";

const ASPECTS = ["precision", "type", "tactic", "formats", "shapes"];
/** @type {Record<string, string>} */
const WIDTHS = {
  precision: "minmax(150px, 0.6fr)", type: "minmax(120px, 0.5fr)", tactic: "minmax(170px, 1fr)", formats: "minmax(250px, 1.3fr)", shapes: "minmax(200px, 1fr)",
};
const NONE = "–";

// The rows of a comparison, with texts instead of positions.
class Rows {
  /** @param {EnginesPayload} data */
  constructor(data) {
    this.data = data;
    this.length = data.name.length;
  }

  /** @type {(places: number[]) => (row: number) => string} */
  text = (places) => (row) => this.data.texts[places[row]];

  /**
   * @param {"before" | "after"} side
   * @param {string} aspect
   * @param {number} row
   */
  value(side, aspect, row) {
    return this.data.texts[this.data[side][aspect][row]];
  }

  /**
   * @param {string} aspect
   * @param {number} row
   */
  pair(aspect, row) {
    const [before, after] = [this.value("before", aspect, row), this.value("after", aspect, row)];
    return before === after ? before || NONE : `${before || NONE} → ${after || NONE}`;
  }

  /**
   * True where both are recorded, and differ.
   * @param {string} aspect
   * @param {number} row
   */
  changed(aspect, row) {
    const [before, after] = [this.value("before", aspect, row), this.value("after", aspect, row)];
    return Boolean(before && after && before !== after);
  }
}

/**
 * @param {Rows} rows
 * @returns {Column[]}
 */
function columnsOf(rows) {
  const { data } = rows;
  const method = rows.text(data.method);
  /** @param {number} row */
  const tone = (row) => (data.differs[row] ? "" : "aside");
  return [
    {
      key: "change", label: "Difference", width: "104px", value: rows.text(data.change), tone, tally: true,
      element: (value) => (ASPECTS.some((aspect) => value.includes(aspect)) ? "changed" : value), // the filter has all
      about: rows.text(data.change),
    },
    { key: "name", label: "Layer", width: "minmax(180px, 1.1fr)", mono: true, value: rows.text(data.name), tone },
    ...ASPECTS.map((aspect) => /** @type {Column} */ ({
      key: aspect,
      label: aspect[0].toUpperCase() + aspect.slice(1),
      width: WIDTHS[aspect],
      mono: aspect === "tactic",
      hidden: aspect === "shapes",
      value: (row) => rows.pair(aspect, row),
      tone: (row) => (rows.changed(aspect, row) ? "changed" : "aside"),
    })),
    {
      key: "match", label: "Match", width: "minmax(150px, 0.6fr)", value: method, tone,
      format: (value, row) => (value ? `${value}, ${Math.round(data.confidence[row] * 100)} %` : ""),
      about: () => "How the layers were matched, and the share of such matches that are correct",
    },
  ];
}

/**
 * @param {TableModel} model
 * @param {Rows} rows
 */
function describe(model, rows) {
  if (model.selected.size !== 1) {
    return [make("p", {}, model.selected.size ? `${counted(model.selected.size, "row")} selected.` : "Select a layer for its details.")];
  }
  const { data } = rows;
  const [row] = model.selected;
  const list = make("dl");
  /** @type {(label: string, ...parts: (Node | string)[]) => void} */
  const add = (label, ...parts) => list.append(make("dt", {}, label), make("dd", {}, ...parts));
  add("layer", make("bdi", { class: "mono" }, rows.text(data.name)(row)));
  const was = rows.text(data.was)(row);
  if (was) add("in A", make("bdi", { class: "mono" }, was));
  add("difference", rows.text(data.change)(row));
  for (const aspect of ASPECTS) {
    const [before, after] = [rows.value("before", aspect, row), rows.value("after", aspect, row)];
    if (before === after) add(aspect, make("bdi", { class: "mono" }, before || "not recorded"));
    else add(aspect, make("span", { class: "from-to" },
      make("bdi", { class: "mono went" }, before || "not recorded"), "→", make("bdi", { class: "mono came" }, after || "not recorded")));
  }
  const [ours, theirs] = data.bytes[row];
  if (ours || theirs) add("weights", ours === theirs ? size(ours) : `${size(ours)} → ${size(theirs)}`);
  const method = rows.text(data.method)(row);
  if (method) add("match", `by ${method}; ${Math.round(data.confidence[row] * 100)} % of such matches are correct`);
  return [list];
}

/**
 * @param {HTMLElement} host
 * @param {EnginesPayload} data
 */
function layerTable(host, data) {
  const rows = new Rows(data);
  const model = new TableModel(columnsOf(rows), rows.length);
  const differing = data.differs.filter(Boolean).length;
  const box = make("input", { type: "checkbox", checked: differing > 0 });
  const table = new TableView(host, model, {
    label: "layers",
    file: "engines.csv",
    describe: (shown) => describe(shown, rows),
    tools: differing ? [make("label", { class: "beside" }, box, `only the ${count(differing)} that differ`)] : [],
  });
  const choose = () => {
    model.keep = (row) => !box.checked || Boolean(data.differs[row]);
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
