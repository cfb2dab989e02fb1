// The page of a sweep: charts and table show the same points and follow each other's selection.

import { around, byId, live, required } from "../elements.js";
import { startConveniences } from "../conveniences.js";
import { readPageData } from "../unpack.js";
import { CurvePlot } from "./curves.js";
import { SweepData } from "./data.js";
import { Parallel } from "./parallel.js";
import { drawScatter } from "./scatter.js";
import { PointsTable } from "./table.js";

/**
 * Buttons that name points select them in the table.
 * @param {PointsTable} table
 */
function pointLinks(table) {
  document.addEventListener("click", (event) => {
    const button = around(event, "[data-points]");
    if (!button) return;
    table.choose((button.dataset.points ?? "").split(",").map(Number));
    byId("points").scrollIntoView();
  });
}

export async function start() {
  startConveniences();
  const data = new SweepData(await readPageData());
  if (data.length) {
    /** @type {PointsTable | null} */
    let table = null;
    const pick = (/** @type {number} */ row, /** @type {boolean} */ more) => table?.pick(row, more);
    const [lines, trade] = [live("parallel"), live("trade")];
    const parallel = lines && new Parallel(lines, data, { pick, changed: () => table?.again() });
    const views = [parallel, trade && drawScatter(trade, data, pick)];
    /** @param {PointsTable} points */
    const follow = (points) => {
      for (const view of views) view?.follow((row) => points.isShown(row), [...points.model.selected]);
    };
    table = new PointsTable(required("points"), data, {
      keep: (row) => !parallel || parallel.brushes.keeps(row), changed: () => table && follow(table),
    });
    for (const curve of data.curves) new CurvePlot(required("curves"), data, curve, pick);
    pointLinks(table);
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
