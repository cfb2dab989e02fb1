// The page of a sweep: charts and table show the same points and follow each other's selection.

import { around, live } from "../elements.js";
import { startConveniences } from "../conveniences.js";
import { readPayload } from "../payload.js";
import { CurvePlot } from "./curves.js";
import { SweepData } from "./data.js";
import { Parallel } from "./parallel.js";
import { Scatter } from "./scatter.js";
import { PointsTable } from "./table.js";

function pointLinks(table) {
  document.addEventListener("click", (event) => {
    const button = around(event, "[data-points]");
    if (!button) return;
    table.choose(button.dataset.points.split(",").map(Number));
    document.getElementById("points").scrollIntoView();
  });
}

export async function start() {
  startConveniences();
  const data = new SweepData(await readPayload());
  if (data.length) {
    const views = [];
    let table = null;
    const keep = (row) => !parallel || parallel.brushes.keeps(row);
    const pick = (row, more) => table.pick(row, more);
    const parallel = live("parallel") && new Parallel(live("parallel"), data, { pick, changed: () => table.again() });
    if (parallel) views.push(parallel);
    if (live("trade")) views.push(new Scatter(live("trade"), data, pick));
    table = new PointsTable(live("points"), data, {
      keep, changed: () => table && views.forEach((view) => view.follow((row) => table.isShown(row), [...table.model.selected])),
    });
    for (const curve of data.curves) new CurvePlot(live("curves"), data, curve, pick);
    pointLinks(table);
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
