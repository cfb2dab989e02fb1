// Bring the page of a sweep to life: pictures and table are about the same points, and follow each other.

import { startConveniences } from "../conveniences.js";
import { readPayload } from "../payload.js";
import { CurvePlot } from "./curves.js";
import { SweepData } from "./data.js";
import { Parallel } from "./parallel.js";
import { Scatter } from "./scatter.js";
import { PointsTable } from "./table.js";

const sweepHost = (name) => document.querySelector(`[data-live="${name}"]`);

function pointLinks(table) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-points]");
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
    const parallel = sweepHost("parallel") && new Parallel(sweepHost("parallel"), data, { pick, changed: () => table.again() });
    if (parallel) views.push(parallel);
    if (sweepHost("trade")) views.push(new Scatter(sweepHost("trade"), data, pick));
    table = new PointsTable(sweepHost("points"), data, {
      keep, changed: () => table && views.forEach((view) => view.follow((row) => table.isShown(row), [...table.model.selected])),
    });
    for (const curve of data.curves) new CurvePlot(sweepHost("curves"), data, curve, pick);
    pointLinks(table);
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
